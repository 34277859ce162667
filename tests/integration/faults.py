"""Faults: how each is inflicted on a run on the simulated cluster, and what ddpctl must report.

The run has three hosts with two ranks each, which all-reduce in a loop. Used by the tests and by
`benchmarks/faults.py`, which inflicts the same on plain torchrun.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import TRAINER_IMAGE, Cluster, Home, until

PORT = 29500
SLOW_DEEDS = ("hog", "disk")  # the fault occurs some time after the rank has announced it
VICTIM = "node1"  # where rank 3 lives
LOOP = """
import os, signal, sys, time


def say(text):  # in one write: by hand, all ranks of a host share a pipe
    os.write(1, (text + "\\n").encode())


again = os.environ.get("DDPCTL_RESUME") == "1" or os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
if again:  # not at the first start: --hang-timeout counts from the first line, and torch loads slowly
    say("AGAIN %.3f" % time.time())
import torch, torch.distributed as dist

deed, who = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, step = dist.get_rank(), 0
value = torch.ones(1000)
checkpoints = os.environ.get("DDPCTL_CHECKPOINT_DIR", "/checkpoints")
metrics = os.path.join(os.environ.get("DDPCTL_OUTPUT_DIR", "/tmp"), "metrics.jsonl")


def misbehave():
    say("FAULT %.3f" % time.time())
    if deed == "raise":
        raise ValueError("boom")
    if deed == "exit":
        os._exit(7)  # bypasses gloo, whose threads may abort a process that ends by itself
    if deed == "ecc":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if deed == "zero":
        os._exit(0)
    if deed in ("kill", "segv", "stop"):
        name = {"kill": "SIGKILL", "segv": "SIGSEGV", "stop": "SIGSTOP"}[deed]
        os.kill(os.getpid(), getattr(signal, name))
    if deed == "hog":
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20) * 50))
    if deed == "disk":
        while True:
            torch.save(torch.zeros(10_000_000), "%s/%d.pt" % (checkpoints, time.time_ns()))
    if deed == "sleep":
        time.sleep(3600)


while True:
    dist.all_reduce(value)
    value.fill_(1)
    step += 1
    if step == 5:
        say("WORKING")
        if rank == 0:
            open(checkpoints + "/saved", "w").close()
    if deed == "sleep" and rank == 0:
        with open(metrics, "a") as file:
            file.write('{"kind": "train", "step": %d}\\n' % step)
    if deed == "talk":
        say("line %d of rank %d" % (step, rank))
    if again and step == 20 and (deed != "stay" or os.environ["DDPCTL_ATTEMPT"] == "3"):
        break  # a fault occurs once; twice in those that stay
    if rank == who and step == 40:
        misbehave()
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass
class Run:
    """A launch in progress, and its output so far."""

    cluster: Cluster
    home: Home
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    fault_at: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    others: Sequence[subprocess.Popen[bytes]] = ()  # the other hosts' logins, if started by hand
    ranks: int = 6

    def lines(self) -> list[str]:
        return self.out.read_text(errors="replace").splitlines()

    def working(self, timeout: float = 120) -> None:
        def work() -> bool:
            return sum("WORKING" in line for line in self.lines()) >= self.ranks

        until(work, timeout, "ranks work")

    def wait(self, timeout: float = 90) -> int:
        return self.process.wait(timeout)

    def done_by_script(self) -> None:
        """Wait until the rank has inflicted the fault on itself, and note the time that it printed."""
        line = until(
            lambda: next((each for each in self.lines() if "FAULT" in each), None),
            60,
            "the rank says that it misbehaves",
        )
        self.fault_at = float(line.split()[-1])

    def now(self) -> None:
        self.fault_at = time.time()

    @property
    def record(self) -> dict[str, Any]:
        return self.home.record()

    @property
    def failure(self) -> dict[str, Any]:
        return self.record["attempts"][-1]["first_failure"] or {}


Act = Callable[[Run], None]


@dataclass(frozen=True)
class Fault:
    number: int
    name: str
    kinds: tuple[str, ...]  # any of them is right; the first is the best
    within: float  # seconds from the fault to the end of the launcher and of all nodes
    deed: str = "wait"  # what rank 3 does in the script
    rank: int | None = 3
    host: str = VICTIM
    act: Act | None = None
    before: Act | None = None
    options: tuple[str, ...] = ()


@contextlib.contextmanager
def small_disk(cluster: Cluster, fault: Fault) -> Iterator[None]:
    """Context manager: let runs write only 400 MB on the victim if `fault` fills the disk."""
    if fault.deed != "disk":
        yield
        return
    where = "/home/ddp/.ddpctl/runs"
    mount = f"mkdir -p {where} && mount -t tmpfs -o size=400m,mode=777 tmpfs {where}"
    cluster.exec(VICTIM, "sh", "-c", mount)
    try:
        yield
    finally:
        cluster.exec(VICTIM, "umount", "-l", where)


def container_of(run: Run, node: str) -> str:
    [name] = run.cluster.exec(node, "docker", "ps", "-q").split()
    return name


def kill_container(run: Run) -> None:
    if run.cluster.kinds[VICTIM].has_engine:
        kill = ["docker", "kill", container_of(run, VICTIM)]
    else:
        kill = ["pkill", "-KILL", "-f", "^[^ ]*python.*supervisor[.]pyz"]
    run.now()
    run.cluster.exec(VICTIM, *kill)


def limit_memory(run: Run) -> None:
    name = container_of(run, VICTIM)
    limit = ["--memory", "1200m", "--memory-swap", "1200m"]
    run.cluster.exec(VICTIM, "docker", "update", *limit, name)


def stop_engine(run: Run) -> None:
    run.now()
    run.cluster.stop_dockerd(VICTIM)


def kill_host(run: Run) -> None:
    run.now()
    run.cluster.kill_host(VICTIM)


def cut_host(run: Run) -> None:
    run.now()
    run.cluster.cut(VICTIM)


TAKE = """
until {come}; do :; done
touch /tmp/go
"""
STRANGER = f"""
import os, socket, time
while not os.path.exists('/flag/go'):
    time.sleep(0.01)
held = socket.create_server(('', {PORT}))
time.sleep(600)
"""


@contextlib.contextmanager
def let_go_of_port(cluster: Cluster) -> Iterator[None]:
    """Start a stranger's container on node0 that binds the master port once `take_port` tells it to."""
    stranger = ["docker", "run", "-d", "--network=host", "-v/tmp:/flag", "--entrypoint=python3"]
    cluster.exec("node0", "rm", "-f", "/tmp/go")
    name = cluster.exec("node0", *stranger, "--name=stranger", TRAINER_IMAGE, "-c", STRANGER)
    try:
        yield
    finally:
        cluster.exec("node0", "sh", "-c", f"rm -f /tmp/go; docker rm -f {name} || true")


OURS = "docker ps -aq --filter label=io.ddpctl.run-id | grep -q ."
BY_HAND = "[ $(docker ps -q | wc -l) -gt 1 ]"  # the stranger's container already exists


def take_port(cluster: Cluster, come: str = OURS) -> float:
    """Bind the master port as soon as the run's container exists. Return the time."""
    cluster.exec("node0", "sh", "-c", TAKE.format(come=come), timeout=120)
    return time.time()


def cut_ssh(run: Run, seconds: float) -> None:
    """End every SSH connection to the victim, and drop new ones for `seconds`."""
    rule = "INPUT -p tcp --dport 22 -j DROP"
    hang_up = "kill -9 $(pgrep -f '^sshd(-session)?: ddp')"
    run.cluster.exec(VICTIM, "sh", "-c", f"iptables -I {rule}; {hang_up}")
    try:
        time.sleep(seconds)  # what the bar says
    finally:
        run.cluster.exec(VICTIM, "sh", "-c", f"iptables -D {rule}")


def steps(run: Run, rank: int) -> list[int]:
    """Return what the ranks of the deed `talk` printed, in the order of the lines."""
    ending = f"of rank {rank}"
    return [int(line.split()[-4]) for line in run.lines() if line.endswith(ending)]


def lines_are_whole(run: Run) -> bool:
    """Return whether each line of each rank is there once, and in order."""
    said = [steps(run, rank) for rank in range(run.ranks)]
    return all(seen and seen == list(range(1, len(seen) + 1)) for seen in said)


FAULTS = (
    Fault(1, "exception on rank 3", ("exception",), 5, "raise"),
    Fault(2, "exit code 7", ("exit-code",), 5, "exit"),
    Fault(3, "SIGKILL of a rank", ("killed",), 5, "kill"),
    Fault(4, "SIGSEGV", ("segv",), 5, "segv"),
    Fault(5, "container killed", ("container-killed",), 5, rank=None, act=kill_container),
    Fault(6, "memory limit exceeded", ("oom-killed",), 5, "hog", before=limit_memory),
    Fault(
        7,
        "dockerd of a host stopped",
        ("terminated", "container-killed", "host-lost"),
        5,
        rank=None,
        act=stop_engine,
    ),
    Fault(8, "host killed", ("host-lost", "container-killed"), 5, rank=None, act=kill_host),
    Fault(9, "host cut off silently", ("host-lost", "network-cut"), 20, rank=None, act=cut_host),
    Fault(10, "rank stopped (SIGSTOP)", ("stopped",), 20, "stop"),
    Fault(11, "rank exits 0 early", ("early-exit",), 20, "zero"),
    Fault(13, "disk full under /checkpoints", ("disk-full",), 20, "disk"),
    Fault(
        14,
        "rank sleeps before an all-reduce",
        ("hung",),
        20,
        "sleep",
        options=("--hang-timeout", "10s"),
    ),
)


def write_job(
    cluster: Cluster,
    folder: Path,
    deed: str,
    rank: int | None,
    hosts: Sequence[str] | None = None,
    spares: Sequence[str | dict[str, Any]] = (),
    gpus: int = 0,
    **job: Any,
) -> Path:
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "loop.py").write_text(LOOP)
    fixed = {
        "workdir": "./code",
        "command": ["loop.py", deed, str(3 if rank is None else rank)],
        "nproc_per_node": 2,
        "master_port": PORT,
    }
    file = cluster.hosts_yaml(folder / "hosts.yaml", hosts, **(fixed | job))
    text = file.read_text().replace("gpus: 0", f"gpus: {gpus}", 1)
    file.write_text(f"{text}spares: {json.dumps(spares)}\n")
    return file


def launch(
    cluster: Cluster,
    home: Home,
    folder: Path,
    fault: Fault,
    options: Iterable[str] = ("--no-check",),
    **job: Any,
) -> Run:
    """Return a run, once all its ranks are working. job: as in `write_job`."""
    file = write_job(cluster, folder, fault.deed, fault.rank, **job)
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        words = ["launch", file, *fault.options, *options]
        process = home.start(*words, stdout=stdout, stderr=stderr)
    ranks = job.get("nproc_per_node", 2) * len(job.get("hosts") or cluster.nodes)
    run = Run(cluster, home, process, out, err, ranks=ranks)
    run.working()
    return run


def suffer(run: Run, fault: Fault) -> float:
    """Inflict the fault and wait for the end. Return the seconds from the fault to the launcher's exit."""
    if fault.before:
        fault.before(run)
    if fault.act:
        fault.act(run)
    else:
        run.done_by_script()
    run.notes["code"] = run.wait()
    ended = time.time()
    if fault.deed in SLOW_DEEDS and run.failure:
        run.fault_at = datetime.datetime.fromisoformat(run.failure["time"]).timestamp()
    return ended - run.fault_at


def verdict(run: Run, fault: Fault) -> str:
    """Return "" if the right host, rank and kind were named, else the first failure that was."""
    failure = run.failure
    right = failure.get("kind") in fault.kinds and failure.get("host") == fault.host
    if right and (fault.rank is None or failure.get("rank") == fault.rank):
        return ""
    return json.dumps(failure)
