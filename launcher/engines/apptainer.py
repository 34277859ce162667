"""The Apptainer engine: a node is a process of the user, as with `engine: process`, in a container.

Apptainer shares the host's processes and network with the container, so the process engine's code
works here too. The image is a single file. The container gets neither the user's login environment
nor the home folder, and has its own /tmp.
"""

from collections.abc import Sequence
from typing import ClassVar

from ..errors import CommandFailed
from ..plan.plan import Container, EngineTraits, Mount, NodePlan
from ..ssh import shell
from ..ssh.script_files import load_script
from .engine_info import EngineInfo
from .process import Processes

PYTHON = load_script(__file__, "python_in_apptainer.sh")
CHECK = load_script(__file__, "check_apptainer.sh")
ADMINISTRATOR = "ask the host's administrator to"
INSTALL = "install it on that host: https://apptainer.org/docs/admin/latest"
PROBLEMS = {  # exit code of check_apptainer.sh -> the problem, the remedy
    3: ("Apptainer is not installed", INSTALL),
    4: (
        "Apptainer cannot start containers: user namespaces are off, and it is not setuid root",
        f"{ADMINISTRATOR} allow user namespaces or install apptainer-suid",
    ),
    5: (
        "Apptainer cannot mount images: this user cannot write to /dev/fuse",
        f"{ADMINISTRATOR} run `chmod 666 /dev/fuse`",
    ),
    6: (
        "Apptainer cannot mount images: squashfuse is not installed",
        "install squashfuse on that host",
    ),
}


class Apptainer(Processes):
    traits: ClassVar[EngineTraits] = EngineTraits("apptainer", in_container=True, image_files=True)
    exec_script: ClassVar[str] = load_script(__file__, "exec_apptainer.sh")

    def engine_info(self, image: str) -> EngineInfo | None:
        """Return None, because there is no image store. Raises CommandFailed if Apptainer cannot run."""
        done = self.connection.script(CHECK)
        if done.code:
            what, remedy = PROBLEMS.get(done.code, (f"Apptainer failed: {done.reason}", ""))
            raise CommandFailed(what, remedy, host=self.connection.name)
        return None

    def python_in_image(self, image: str) -> Sequence[str]:
        """Return a command for python3 in the newest pushed image. For checks, any image will do."""
        return shell.script(PYTHON, [])

    def _enter(self, node: NodePlan) -> Sequence[str]:
        own_tmp = [Mount(f"{node.place.control_dir}/tmp", to) for to in ("/tmp", "/var/tmp")]
        return ["apptainer", *exec_arguments(node.container, own_tmp)]


def exec_arguments(container: Container, own_tmp: Sequence[Mount]) -> list[str]:
    """Return the arguments of `apptainer` that precede the command to run in the container."""
    gpus = "--rocm" if container.gpu_vendor == "amd" else "--nv"
    return [
        *("--silent", "exec", "--cleanenv", "--no-mount", "home,cwd,tmp"),
        *("--pwd", container.working_dir or "/"),
        *([gpus] if container.gpus else ()),
        *(word for each in (*own_tmp, *container.mounts) for word in ("--mount", _mount(each))),
        container.image,
    ]


def _mount(mount: Mount) -> str:
    """Return the argument of --mount, a line of CSV, in which paths may contain any character."""
    pairs = ("type=bind", f"source={mount.source}", f"destination={mount.target}")
    fields = [*pairs, *(["ro"] if mount.read_only else [])]
    return ",".join('"' + each.replace('"', '""') + '"' for each in fields)
