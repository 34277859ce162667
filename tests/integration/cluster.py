"""A cluster on this machine: simulated hosts, which are containers with their own sshd and Docker Engine.

`Cluster` starts them, accesses them without ddpctl (`exec`, `containers`, `processes`), harms them
(`cut`, `kill_host`, `stop_dockerd`, `slow`) and heals them. `Home` is a launching machine: a home
folder with a key, known_hosts and an SSH config in which the hosts are called node0, node1, ...
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
TREE = hashlib.sha256(str(REPOSITORY).encode()).hexdigest()[:6]
NODE_IMAGE = "ddpctl-node"
PYTHON_NODE_IMAGE = "ddpctl-node-python3"
PODMAN_NODE_IMAGE = "ddpctl-node-podman"
PROCESS_NODE_IMAGE = "ddpctl-node-process"
APPTAINER_NODE_IMAGE = "ddpctl-node-apptainer"
TRAINER_IMAGE = "ddpctl-trainer:latest"
USER = "ddp"  # on the hosts; in the group docker
LABEL = "io.ddpctl.test"

# everything in `privileged` that a machine without CAP_SYS_RESOURCE can grant
POWERS = (
    *("--cap-add=ALL", "--cap-drop=SYS_RESOURCE"),
    *("--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined", "--init"),
)
MACHINES_CGROUPS = ("--cgroupns=host", "--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw")
OWN_CGROUPS = ("--cgroupns=private", "--security-opt=systempaths=unconfined", "--tmpfs=/run:exec")


@dataclass(frozen=True)
class Kind:
    """The kind of a simulated host: how it is made, and which engine runs there for which user."""

    image: str
    options: tuple[str, ...] = MACHINES_CGROUPS
    user: str = USER  # whom ddpctl logs in as
    engine: str = "docker"  # its command, used as `user` if rootless
    rootless: bool = False
    storage: str = "/var/lib/docker"
    layers: str = "overlay2"  # below the storage

    @property
    def has_dockerd(self) -> bool:
        return self.image in (NODE_IMAGE, PYTHON_NODE_IMAGE)

    @property
    def has_engine(self) -> bool:
        """Whether something besides the supervisor holds a node together."""
        return self.engine != "true"

    @property
    def job(self) -> dict[str, Any]:
        """The job settings that such a host needs, as in a hosts file."""
        if self == PROCESSES:
            return {"engine": "process", "python": "/opt/venv/bin/python"}
        if self == APPTAINER:
            return {"engine": "apptainer", "image": str(image_file())}
        return {"image": TRAINER_IMAGE}


DOCKER = Kind(NODE_IMAGE)
DOCKER_AND_PYTHON = Kind(PYTHON_NODE_IMAGE)
PODMAN = Kind(
    PODMAN_NODE_IMAGE,
    OWN_CGROUPS,
    user="root",
    storage="/var/lib/containers/storage",
    layers="overlay",
)
ROOTLESS_PODMAN = Kind(
    PODMAN_NODE_IMAGE,
    OWN_CGROUPS,
    engine="podman",
    rootless=True,
    storage=f"/home/{USER}/.local/share/containers/storage",
    layers="overlay",
)
PROCESSES = Kind(PROCESS_NODE_IMAGE, (), engine="true", storage="")  # `true` lists no container
APPTAINER = Kind(APPTAINER_NODE_IMAGE, ("--device=/dev/fuse",), engine="true", storage="")

# Answers ddpctl's question to nvidia-smi about its GPUs, and no other.
NVIDIA_SMI = """#!/bin/sh
case "$*" in
*index,uuid,name,memory.total*) printf '{rows}' ;;
esac
"""

# Containers with GPUs may lock memory without limit, which a machine without CAP_SYS_RESOURCE
# cannot give: there the simulated hosts leave that one limit out.
RUNC = r"""#!/bin/sh
for word; do
    if [ "$before" = --bundle ]; then
        sed -i -E 's/,?\{"type":"RLIMIT_MEMLOCK"[^}]*\}//; s/"rlimits":\[,/"rlimits":[/' "$word/config.json"
    fi
    before=$word
done
exec /usr/sbin/runc "$@"
"""

# Empties a host once its sshd and its engine answer. "$@" is its command, $1 what keeps dockerd off.
SWEEP = """
rm -f "$1" /usr/local/bin/nvidia-* /usr/local/bin/runc
shift
tries=0
until nc -z 127.0.0.1 22 && containers=$("$@" ps -aq 2>/dev/null); do
    tries=$((tries + 1))
    if [ "$tries" = 300 ]; then tail -n 20 /var/log/dockerd.log >&2; exit 1; fi
    sleep 0.2
done
set -e
[ -z "$containers" ] || "$@" rm -f $containers
"$@" volume ls -q --filter label=io.ddpctl.run-id | xargs -r "$@" volume rm
umount /home/ddp/.ddpctl 2>/dev/null || true
pkill -KILL -f '[s]upervisor[.]pyz|[t]orchrun|[v]env/bin/python|[s]leep 4321' || true
rm -rf /shared/* /home/ddp/.ddpctl/runs /root/.ddpctl/runs /tmp/ddpctl-claims-*
"""

# Layers are never written after a load, so the hosts' engines share them by hard links; the rest,
# databases that are written in place, is copied.
COPY_ROOTS = """
set -e
layers=$1 template=$2; shift 2
cd "/v/$template/_data"
for to in "$@"; do
    to=/v/$to/_data
    chown --reference=. "$to"; chmod --reference=. "$to"
    mkdir "$to/$layers"
    chown --reference="$layers" "$to/$layers"; chmod --reference="$layers" "$to/$layers"
    for each in "$layers"/*; do
        case $each in */backingFsBlockDev) ;; *) cp -al "$each" "$to/$layers/" ;; esac
    done
    for each in *; do
        [ "$each" = "$layers" ] || cp -a "$each" "$to/"
    done
done
"""


def docker(*argv: str, stdin: bytes | None = None, timeout: float = 120) -> str:
    """Run a command of this machine's engine. Raises AssertionError with its message if it fails."""
    done = subprocess.run(["docker", *argv], input=stdin, capture_output=True, timeout=timeout)
    assert done.returncode == 0, f"docker {shlex.join(argv)}: {done.stderr.decode()}"
    return done.stdout.decode().strip()


def engine_problem() -> str | None:
    """Return why a cluster cannot run here, in one line, or None if it can."""
    if shutil.which("docker") is None:
        return "no docker command"
    done = subprocess.run(["docker", "info"], capture_output=True, timeout=60)
    if done.returncode != 0:
        return "no Docker Engine answers"
    images = (NODE_IMAGE, PYTHON_NODE_IMAGE, PODMAN_NODE_IMAGE, PROCESS_NODE_IMAGE)
    for image in (*images, APPTAINER_NODE_IMAGE, TRAINER_IMAGE):
        found = subprocess.run(["docker", "image", "inspect", image], capture_output=True)
        if found.returncode != 0:
            return f"no image {image}: scripts/test-images builds it"
    return None


def until(true: Callable[[], Any], timeout: float, what: str, pause: float = 0.3) -> Any:
    """Return `true()` once it is true. Raises AssertionError with `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while True:
        if value := true():
            return value
        assert time.monotonic() < end, f"not within {timeout:g} s: {what}"
        time.sleep(pause)


@dataclass
class Home:
    """A launching machine: its keys and its state, and a way to run ddpctl on it.

    fork: what makes a fork of this process run the command line, instead of a new Python.
    """

    fork: ClassVar[Callable[[list[str], dict[str, str]], Callable[[], None]] | None] = None
    folder: Path
    state: Path
    environment: dict[str, str] = field(default_factory=dict)

    def start(
        self, *args: str | Path, env: Mapping[str, str] = {}, cwd: Path | None = None, **how: Any
    ) -> subprocess.Popen[bytes]:
        """Start the real command line as a separate process, whose stdout and stderr are pipes."""
        line = [sys.executable, "-m", "launcher", *map(str, args)]
        environment = {**self.environment, **env}
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        given |= {"stderr": subprocess.PIPE, "cwd": cwd or self.folder}
        given |= {"preexec_fn": self.fork and self.fork(line, environment)}
        return subprocess.Popen(line, env=environment, **{**given, **how})

    def ddpctl(
        self,
        *args: str | Path,
        timeout: float = 120,
        input: str | None = None,
        env: Mapping[str, str] = {},
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ddpctl to the end. If the assertion fails, its message has both output streams."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        process = self.start(*args, env=env, cwd=cwd, stdin=stdin)
        try:
            out, err = process.communicate(input and input.encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(
                f"ddpctl {shlex.join(map(str, args))}: not within {timeout:g} s\n{_words(out, err)}"
            ) from None
        return subprocess.CompletedProcess(
            process.args, process.returncode, out.decode(), err.decode()
        )

    def record(self, run_id: str | None = None) -> dict[str, Any]:
        """Return run.json of a run, by default of the only one."""
        runs = self.state / "ddpctl" / "runs"
        [folder] = [runs / run_id] if run_id else list(runs.iterdir())
        return dict(json.loads((folder / "run.json").read_text()))


def _words(out: bytes, err: bytes) -> str:
    return f"stdout:\n{out.decode()[-4000:]}\nstderr:\n{err.decode()[-4000:]}"


class Cluster:
    """Simulated hosts node0, node1, ... on their own network, one for each of `kinds`."""

    def __init__(
        self,
        folder: Path,
        kinds: Sequence[Kind] = (DOCKER, DOCKER, DOCKER),
        name: str = "",
        *,
        engine_has: str = TRAINER_IMAGE,
    ) -> None:
        self.folder = folder
        self.engine_has = engine_has  # the image that the hosts' engines start with
        self.project = f"ddpctl-test-{TREE}-{name}{os.getpid()}"
        self.kinds = {f"node{i}": kind for i, kind in enumerate(kinds)}
        self.nodes = list(self.kinds)
        self.addresses: dict[str, str] = {}
        self._slowed: set[str] = set()
        self.keys = folder / "keys"
        self.home = folder / "home"

    # -- life

    def up(self) -> None:
        make_keys(self.keys)
        with locked("engine"):
            remove_leftovers()
            self._make_network()
            kinds = {kind for kind in self.kinds.values() if kind.storage}
            templates = loaded_engines(self.keys, kinds, self.engine_has)
        self._make_hosts(templates)
        docker("start", *map(self.container, self.nodes), timeout=600)
        self.wait_healthy(self.nodes)
        self._make_home()

    def down(self) -> None:
        remove_project(self.project)

    def reset(self) -> None:
        """Make the hosts healthy and empty again, whatever a test did to them."""
        states = json.loads(docker("inspect", *map(self.container, self.nodes)))
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(self._reset, self.nodes, states))

    def _reset(self, node: str, state: Mapping[str, Any]) -> None:
        if not state["State"]["Running"]:
            docker("start", self.container(node))
        if self.project not in state["NetworkSettings"]["Networks"]:
            self.mend(node)
            # the engine never assigns eth0 twice
            docker("restart", "--time=0", self.container(node))
        if node in self._slowed:
            self._quicken(node)
        kind = self.kinds[node]
        off = "/run/dockerd.off" if kind.has_dockerd else ""
        self.exec(node, "sh", "-c", SWEEP, "sh", off, *_engine(kind), timeout=120)

    def wait_healthy(self, nodes: Sequence[str], timeout: float = 60) -> None:
        """Wait until sshd and dockerd of all `nodes` answer."""
        for node in nodes:
            until(
                lambda node=node: self._healthy(node), timeout, f"{node} is up; {self._logs(node)}"
            )

    # -- the launching machine

    def home_at(self, state: Path) -> Home:
        """Return a launching machine whose state folder is `state`."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(state),
            "XDG_CACHE_HOME": str(state / "cache"),
            "PYTHONPATH": str(REPOSITORY),
            "LANG": "C.UTF-8",
        }
        if engine := os.environ.get("DOCKER_HOST"):
            environment["DOCKER_HOST"] = engine
        return Home(self.folder, state, environment)

    def hosts_yaml(
        self,
        path: Path,
        hosts: Sequence[str | dict[str, Any]] | None = None,
        **job: Any,
    ) -> Path:
        """Write a hosts file of CPU hosts, by default of all. job: the keys of the section `job:`."""
        content: dict[str, Any] = {
            "defaults": {"gpus": 0},
            "hosts": list(self.nodes if hosts is None else hosts),
            "job": {**self.kinds["node1"].job, **job},
        }
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    # -- the hosts, seen without ddpctl

    def container(self, node: str) -> str:
        return f"{self.project}-{node}"

    def exec(
        self,
        node: str,
        *argv: str,
        user: str = "root",
        stdin: bytes | None = None,
        timeout: float = 60,
    ) -> str:
        """Run a command on a host, without SSH. Raises AssertionError if it fails."""
        where = [
            "exec",
            "--user",
            user,
            *(["-i"] if stdin is not None else []),
            self.container(node),
        ]
        return docker(*where, *argv, stdin=stdin, timeout=timeout)

    def containers(self, node: str, all: bool = True) -> list[dict[str, Any]]:
        """Return `docker inspect` of a host's containers, including stopped ones unless `all` is False."""
        ids = self.engine(node, "ps", "-q", "--no-trunc", *(["-a"] if all else [])).split()
        if not ids:
            return []
        # a container may be gone since it was listed, such as one of a check
        found = '"$@" || true'
        inspect = _engine(self.kinds[node], "inspect", *ids)
        return list(json.loads(self.exec(node, "sh", "-c", found, "sh", *inspect)))

    def engine(self, node: str, *argv: str, stdin: bytes | None = None) -> str:
        """Run a command of a host's container engine."""
        return self.exec(node, *_engine(self.kinds[node], *argv), stdin=stdin)

    def processes(self, node: str) -> list[str]:
        """Return the command lines of a host's processes, including those in containers, without ours."""
        return [
            line
            for line in self.exec(node, "ps", "-eo", "args").splitlines()[1:]
            if not line.startswith(("ps ", "sh /boot.sh", "/bin/sh /boot.sh", "sleep 0.5"))
        ]

    def ranks(self, node: str) -> list[str]:
        """Return the processes of a run on a host: torchrun, its ranks, the supervisor."""
        words = ("torchrun", "torch.distributed.run", "/ddpctl/supervisor", "/venv/bin/python")
        return [line for line in self.processes(node) if any(word in line for word in words)]

    def idle(self) -> bool:
        """Return whether all hosts are free of containers and processes of runs."""
        return not any(self.engine(n, "ps", "-q") or self.ranks(n) for n in self.nodes)

    # -- harm and healing

    def cut(self, node: str) -> None:
        """Take a host off the network silently: connections stop without being closed."""
        docker("network", "disconnect", "--force", self.project, self.container(node))

    def mend(self, node: str) -> None:
        """Put a host back on the network, at the same address."""
        docker(
            "network", "connect", "--ip", self.addresses[node], self.project, self.container(node)
        )

    def hang_up(self, node: str) -> int:
        """End every SSH connection to the host, but accept new ones. Return how many processes died."""
        find = "found=$(pgrep -f '^sshd(-session)?: ddp'); kill -9 $found; echo $found"
        return len(self.exec(node, "sh", "-c", find).split())

    def kill_host(self, node: str) -> None:
        """Power a host off."""
        docker("kill", self.container(node))

    def start_host(self, node: str) -> None:
        docker("start", self.container(node))
        self.wait_healthy([node])

    def stop_dockerd(self, node: str) -> None:
        """Stop a host's engine, while the host stays up."""
        self.exec(node, "sh", "-c", "touch /run/dockerd.off; pkill -x dockerd; true")
        until(lambda: not self._engine(node), 30, f"dockerd of {node} ended")

    def start_dockerd(self, node: str) -> None:
        self.exec(node, "rm", "-f", "/run/dockerd.off")
        until(lambda: self._engine(node), 60, f"dockerd of {node} answers")

    def slow(self, node: str, rate: str) -> None:
        """Limit the host's link to `rate` each way, such as 200mbit."""
        limit = ["root", "tbf", "rate", rate, "burst", "256k", "latency", "50ms"]
        self.exec(node, "tc", "qdisc", "replace", "dev", "eth0", *limit)
        self._at_the_other_end(node, f"tc qdisc replace dev $peer {' '.join(limit)}")
        self._slowed.add(node)

    def _quicken(self, node: str) -> None:
        self.exec(node, "sh", "-c", "tc qdisc del dev eth0 root || true")
        self._at_the_other_end(node, "tc qdisc del dev $peer root || true")
        self._slowed.discard(node)

    def _at_the_other_end(self, node: str, command: str) -> None:
        """Run a script at this machine's end of the host's link, whose name is in `$peer`."""
        index = self.exec(node, "cat", "/sys/class/net/eth0/iflink")
        find = f"peer=$(ip -o link | sed -n 's/^{index}: \\([^:@]*\\).*/\\1/p')"
        here = ["run", "--rm", "--network=host", *POWERS, NODE_IMAGE, "sh", "-ec"]
        docker(*here, f"{find}; {command}")

    def share_home(self, *nodes: str) -> None:
        """Give these hosts one ~/.ddpctl, as home folders on NFS do. `reset` undoes it."""
        share = "mkdir -p .ddpctl && chown ddp: /shared .ddpctl && mount --bind /shared .ddpctl"
        for node in nodes:
            self.exec(node, "sh", "-c", f"cd /home/{USER} && {share}")

    # -- stand-ins for GPUs

    def give_gpus(self, node: str, count: int) -> None:
        """Install stand-ins for the driver and the container toolkit. The rest is real."""
        rows = "".join(f"{i}, GPU-{node}-{i}, NVIDIA H100, 81559\\n" for i in range(count))
        programs = {"nvidia-smi": NVIDIA_SMI.format(rows=rows), "runc": RUNC}
        programs["nvidia-container-runtime-hook"] = "#!/bin/sh\n"
        for name, text in programs.items():
            put = f"cat >/usr/local/bin/{name}; chmod 755 /usr/local/bin/{name}"
            self.exec(node, "sh", "-c", put, stdin=text.encode())
        self.stop_dockerd(node)  # an engine looks for the hook when it starts
        self.start_dockerd(node)

    # -- inside

    def _make_network(self) -> None:
        """Create a network, then again with the subnet it got: only a requested one has fixed addresses."""
        labels = ["--label", f"{LABEL}={TREE}", "--label", f"{LABEL}.project={self.project}"]
        docker("network", "create", *labels, self.project)
        config = json.loads(docker("network", "inspect", self.project))[0]["IPAM"]["Config"][0]
        docker("network", "rm", self.project)
        docker("network", "create", *labels, "--subnet", config["Subnet"], self.project)
        prefix = config["Subnet"].split("/")[0].rpartition(".")[0]
        self.addresses = {node: f"{prefix}.{10 + i}" for i, node in enumerate(self.nodes)}

    def _make_hosts(self, templates: Mapping[Kind, str]) -> None:
        labels = ["--label", f"{LABEL}={TREE}", "--label", f"{LABEL}.project={self.project}"]
        volumes = {node: f"{self.container(node)}-docker" for node in self.nodes}
        docker("volume", "create", *labels, f"{self.project}-shared")
        for node, volume in volumes.items():
            kind = self.kinds[node]
            place = [
                f"--network={self.project}",
                f"--ip={self.addresses[node]}",
                f"--hostname={node}",
            ]
            names = [
                f"--name={self.container(node)}",
                f"--env=CGROUP_PARENT={self.container(node)}",
            ]
            how = [*POWERS, *kind.options, "--no-healthcheck"]
            how += [f"--volume={self.project}-shared:/shared"]
            if kind.storage:
                docker("volume", "create", *labels, volume)
                how += [f"--volume={volume}:{kind.storage}"]
            docker("create", *names, *labels, *place, *how, kind.image)
            docker("cp", f"{self.keys}/.", f"{self.container(node)}:/keys")
        for kind, template in templates.items():
            copies = [volume for node, volume in volumes.items() if self.kinds[node] == kind]
            copy_engine(template, kind, copies)

    def _make_home(self) -> None:
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        for name in ("id_ed25519", "id_ed25519.pub"):
            shutil.copy(self.keys / name, ssh / name)
        kind, key, *_ = (self.keys / "ssh_host_ed25519_key.pub").read_text().split()
        with (ssh / "known_hosts").open("w") as known, (ssh / "config").open("w") as config:
            for node, address in self.addresses.items():
                known.write(f"{address} {kind} {key}\n[{address}]:2222 {kind} {key}\n")
                user = self.kinds[node].user
                config.write(f"Host {node}\n  HostName {address}\n  User {user}\n")
            config.write("Host *\n  IdentityFile ~/.ssh/id_ed25519\n")

    def _healthy(self, node: str) -> bool:
        look = 'nc -z 127.0.0.1 22 && "$@" info'
        argv = ["docker", "exec", self.container(node), "sh", "-c", look, "sh"]
        answers = subprocess.run(
            [*argv, *_engine(self.kinds[node])], capture_output=True, timeout=60
        )
        return answers.returncode == 0

    def _engine(self, node: str) -> bool:
        argv = ["docker", "exec", self.container(node), *_engine(self.kinds[node], "info")]
        return subprocess.run(argv, capture_output=True, timeout=60).returncode == 0

    def _logs(self, node: str) -> str:
        argv = ["docker", "exec", self.container(node), "tail", "-n", "20", "/var/log/dockerd.log"]
        return subprocess.run(argv, capture_output=True, timeout=60).stdout.decode()


@contextlib.contextmanager
def locked(name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Context manager: hold a lock among the test processes of this machine."""
    with Path(tempfile.gettempdir(), f"ddpctl-test-{name}.lock").open("w") as file:
        fcntl.flock(file, how)
        yield


@contextlib.contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Context manager: run alone, or beside others that need not. First come, first served."""
    with contextlib.ExitStack() as inside:
        with locked("queue"):
            inside.enter_context(locked("turn", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


def _engine(kind: Kind, *argv: str) -> list[str]:
    """Return the argv of an engine command for root to run on such a host."""
    as_user = ["runuser", "-u", USER, "--", "env", "-C", f"/home/{USER}", f"HOME=/home/{USER}"]
    return [*(as_user if kind.rootless else []), kind.engine, *argv]


def make_keys(folder: Path) -> None:
    """Create the key that may log in to the hosts, and the hosts' own key."""
    folder.mkdir(parents=True)
    for name in ("id_ed25519", "ssh_host_ed25519_key"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name]
        subprocess.run(keygen, cwd=folder, check=True)
    shutil.copy(folder / "id_ed25519.pub", folder / "authorized_keys")


def loaded_engines(keys: Path, kinds: Collection[Kind], image: str) -> dict[Kind, str]:
    """Return `loaded_engine` for each, prepared concurrently: once for kinds with the same engine."""
    same = {kind: DOCKER if kind == DOCKER_AND_PYTHON else kind for kind in kinds}
    engines = {*same.values()}
    with ThreadPoolExecutor(len(engines) or 1) as pool:
        made = pool.map(lambda kind: loaded_engine(keys, kind, image), engines)
        volumes = dict(zip(engines, made, strict=True))
    return {kind: volumes[engine] for kind, engine in same.items()}


def loaded_engine(keys: Path, kind: Kind, image: str) -> str:
    """Return a volume with the data of an engine that has `image`. It is kept for later tests."""
    identity = docker("image", "inspect", "--format={{.Id}}", kind.image, image) + kind.storage
    name = f"ddpctl-test-engine-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    look = ["run", "--rm", "--network=none", f"--volume={name}:/t", NODE_IMAGE, "ls", "/t"]
    if name in docker("volume", "ls", "-q").split() and "loaded" in docker(*look).split():
        return name
    label = f"{LABEL}.engine={TREE}-{kind.storage}-{image}"
    for old in docker("volume", "ls", "-q", "--filter", f"label={label}").split():
        subprocess.run(["docker", "volume", "rm", old], capture_output=True)  # fails if in use
    seed = f"{name}-seed"
    subprocess.run(["docker", "rm", "-f", "-v", seed], capture_output=True)
    docker("volume", "create", "--label", label, name)
    how = [*POWERS, *kind.options, "--network=none", "--no-healthcheck"]
    how += [f"--env=CGROUP_PARENT={seed}", f"--volume={name}:{kind.storage}"]
    docker("create", f"--name={seed}", *how, kind.image)
    try:
        docker("cp", f"{keys}/.", f"{seed}:/keys")
        docker("start", seed)
        ready = ["docker", "exec", seed, *_engine(kind, "info")]
        until(
            lambda: subprocess.run(ready, capture_output=True).returncode == 0,
            60,
            "its engine is up",
        )
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
            load = ["docker", "exec", "-i", seed, *_engine(kind, "load")]
            subprocess.run(load, stdin=save.stdout, check=True, capture_output=True)
        end = "touch /run/dockerd.off; pkill -x dockerd; while pgrep -x dockerd; do sleep 0.2; done"
        docker("exec", seed, "sh", "-c", f"{end}; touch {kind.storage}/loaded")
    finally:
        docker("rm", "-f", "-v", seed)
    return name


def image_file() -> Path:
    """Return the trainer's image as a file for Apptainer. It is kept for later tests."""
    identity = docker("image", "inspect", "--format={{.Id}}", TRAINER_IMAGE).removeprefix("sha256:")
    folder = Path(tempfile.gettempdir(), "ddpctl-test-images")
    file = folder / f"{identity[:12]}.sif"
    with locked("image-file"):
        if not file.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            docker("save", TRAINER_IMAGE, "-o", str(folder / "image.tar"), timeout=600)
            fast = "--mksquashfs-args=-comp lz4"  # rather than small
            build = ["apptainer", "build", fast, "draft", "docker-archive:image.tar"]
            where = ["run", "--rm", *POWERS, f"--volume={folder}:/out", "--workdir=/out"]
            docker(*where, APPTAINER_NODE_IMAGE, *build, timeout=600)
            (folder / "image.tar").unlink()
            (folder / "draft").rename(file)
    return file


def copy_engine(template: str, kind: Kind, volumes: Sequence[str]) -> None:
    """Fill empty volumes with the engine data of such a host."""
    root = docker("volume", "inspect", "--format={{.Mountpoint}}", template)
    how = ["--network=none", *POWERS, f"--volume={Path(root).parents[1]}:/v", NODE_IMAGE]
    docker("run", "--rm", *how, "sh", "-c", COPY_ROOTS, "sh", kind.layers, template, *volumes)


def remove_project(project: str) -> None:
    """Remove a cluster's hosts, volumes and network, and what its engines left in the cgroup tree."""
    mine = ["--filter", f"label={LABEL}.project={project}"]
    if hosts := docker("ps", "-aq", *mine).split():
        docker("rm", "--force", "--volumes", *hosts)
        empty = (
            f"find /sys/fs/cgroup -depth -type d -path '*/{project}-*' -exec rmdir {{}} + ; true"
        )
        docker(
            "run",
            "--rm",
            "--network=none",
            *POWERS,
            *MACHINES_CGROUPS,
            NODE_IMAGE,
            "sh",
            "-c",
            empty,
        )
    if volumes := docker("volume", "ls", "-q", *mine).split():
        docker("volume", "rm", *volumes)
    if networks := docker("network", "ls", "-q", *mine).split():
        docker("network", "rm", *networks)


def remove_leftovers() -> None:
    """Remove the clusters of this work tree whose test process is gone."""
    for project in set(_projects()):
        pid = project.rpartition("-")[2]
        if not Path("/proc", pid).exists():
            # another process is removing it already, or the engine is slow
            with contextlib.suppress(AssertionError):
                remove_project(project)


def _projects() -> Iterator[str]:
    mine = ["--filter", f"label={LABEL}={TREE}"]
    template = f'--format={{{{.Label "{LABEL}.project"}}}}'
    yield from docker("ps", "-a", *mine, template).split()
    yield from docker("network", "ls", *mine, template).split()
    yield from docker("volume", "ls", *mine, template).split()


def prepare() -> None:
    """Create what all clusters start with, so that no test has to wait for it."""
    with ThreadPoolExecutor(1) as pool, tempfile.TemporaryDirectory() as folder, locked("engine"):
        file = pool.submit(image_file)
        make_keys(Path(folder, "keys"))
        loaded_engines(Path(folder, "keys"), (DOCKER, PODMAN, ROOTLESS_PODMAN), TRAINER_IMAGE)
        file.result()


if __name__ == "__main__":
    prepare()
