"""The container test: run one short container on each machine, configured as for a launch.

It finds problems that facts cannot show: an image without torch, or a container that sees no GPU or
cannot write to a run's folders.
"""

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..budget import parse_json
from ..engines.choose import engine_of
from ..errors import CommandFailed
from ..hosts import Job
from ..logs.event_reader import parsed
from ..plan.container import container_user, with_access
from ..plan.labels import LABEL
from ..plan.plan import Container, Mount
from ..ssh.host_connection import HostConnection
from ..ssh.many import try_each
from .fleet import Fleet
from .machine import ContainerReport, Machine

TIMEOUT = 25  # seconds; the first import of torch from a cold disk is slow
MARK = "ddpctl-check "
SCRIPT = r"""
import ctypes, json, os, platform, resource, sys
found = {"python": platform.python_version()}
found["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
try:
    found["verbs"] = bool(ctypes.CDLL("libibverbs.so.1"))
except OSError:
    found["verbs"] = False
try:
    path = "/output/.check"
    open(path, "w").close(); os.unlink(path)
except OSError as error:
    found["write_error"] = str(error)
if sys.argv[1:] == ["torch"]:
    try:
        import torch, torch.distributed as dist
        found["torch"] = torch.__version__
        found["cuda"] = torch.version.cuda or ""
        found["gpus"] = torch.cuda.device_count()
        if dist.is_nccl_available():
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        try:
            gpus = [torch.cuda.get_device_properties(i) for i in range(found["gpus"])]
            found["architectures"] = [
                gpu.gcnArchName.split(":")[0] if torch.version.hip
                else "sm_%d%d" % (gpu.major, gpu.minor)
                for gpu in gpus]
            found["built_for"] = [name.split(":")[0] for name in torch.cuda.get_arch_list()]
        except Exception as error:
            found["cuda_error"] = (str(error).splitlines() or [type(error).__name__])[0]
    except Exception as error:
        found["torch_error"] = "%s: %s" % (type(error).__name__, error)
print("ddpctl-check " + json.dumps(found), flush=True)
os._exit(0)
"""


def with_reports(fleet: Fleet, connections: Mapping[int, HostConnection]) -> Fleet:
    """Run the test on each machine that has the image. Return the fleet with the reports.

    connections: one to each machine to test, by the rank of the machine's first node.
    """
    token, job = secrets.token_hex(4), fleet.cluster.job
    able = [m for m in fleet.machines if m.rank in connections and m.engine and m.engine.image]
    with_torch = needing_torch(able)

    machines = {connections[machine.rank]: machine for machine in able}

    def test(connection: HostConnection) -> ContainerReport:
        machine = machines[connection]
        folder = f"{machine.facts.folder}/check-{token}-{machine.rank}"  # hosts may share a home
        argument = "torch" if machine.rank in with_torch else ""
        container = container_for(machine, job, folder, token, argument)
        return parse_report(
            engine_of(connection, job.engine).run_to_end(container, folder, TIMEOUT)
        )

    reports, errors = try_each([*machines], test)
    reports |= {connection: ContainerReport(error=error) for connection, error in errors.items()}
    by_rank = {machine.rank: reports[connection] for connection, machine in machines.items()}
    return replace(fleet, machines=[replace(m, report=by_rank.get(m.rank)) for m in fleet.machines])


def container_for(machine: Machine, job: Job, folder: str, token: str, argument: str) -> Container:
    """Return the test container, configured as for a launch, with `folder` mounted at /output."""
    container = Container(
        name=f"ddpctl-check-{token}-{machine.rank}",
        image=job.image,
        env={"HOME": "/tmp"},
        labels={f"{LABEL}.check": token},
        mounts=(Mount(folder, "/output"),),
        gpus=tuple(sorted(machine.gpus)) if machine.has_driver else (),
        user=container_user(job, machine.facts),
        shm_size=job.shm_size,
        stop_timeout=1,
        entrypoint=("python3", "-c", SCRIPT),
        command=(argument,),
        working_dir="/",
    )
    return with_access(container, job, machine.facts)


def needing_torch(machines: Sequence[Machine]) -> set[int]:
    """Return the ranks of the machines that test torch: one per image, and all that use GPUs.

    The other machines skip this test, because it is slow.
    """
    images = {
        m.engine.image.layers: m.rank for m in reversed(machines) if m.engine and m.engine.image
    }
    return {*images.values(), *(m.rank for m in machines if m.has_driver and m.gpus)}


def parse_report(output: str) -> ContainerReport:
    """Parse the script's output. Ignores anything else that the image prints when it starts.

    Without a well-formed report, returns one whose error quotes the last line.
    """
    lines = output.strip().splitlines() or ["it printed nothing"]
    reports = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    with contextlib.suppress(ValueError):
        if reports:
            return parsed(ContainerReport, parse_json(reports[-1].encode()))
    what = f"python3 did not run in the image: {lines[-1]}"
    return ContainerReport(error=CommandFailed(what, "use an image with python3"))
