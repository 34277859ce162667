"""Inflict random blows, one after the other, on a run that restarts until it has done all its steps.

    python -m benchmarks.blows [--blows 30] [--seed 1] [--write]

On the simulated cluster, three hosts and a spare, with a stand-in for one GPU each. A blow kills, stops or
cuts off a rank, torchrun, a supervisor, a container, an engine, a host, or puts the launching machine to
sleep; what it broke outside the run is repaired after some seconds, as by an administrator. The next
blow comes after the next checkpoint, or now and then before it. All the while, another launching machine
tries to start a run on the GPU of one of the run's hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.needs import need_cluster
from benchmarks.results import commit, write_section
from launcher.outcomes import Exit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import DOCKER, TRAINER_IMAGE, Cluster, Home, until

TITLE = "Random blows"
STEPS_BETWEEN = 60  # from one blow to the next, on average; the run has this many steps per blow
PAUSE = 0.05  # seconds of a step
HEAD = """\
Three simulated hosts x 1 rank and a spare, `max_restarts: 40`, `min_nodes: 2`. Blows at random: {blows}.
The run must exit with 0, with each step once in the sum that it carries from checkpoint to checkpoint and
in the lines of each rank from one start to the next. No host may ever run two containers. Another machine
tries again and again to launch on one of the run's hosts, and must never get a GPU that the run has or
needs later. No container, process or ticket may be left on a host. The last column names each rule
that was broken.

| seed | blows | restarts in place | by the launcher | steps | launches refused | took | wrong |
|---|---|---|---|---|---|---|---|
"""
SCRIPT = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist

last, folder = int(sys.argv[1]), Path(os.environ["DDPCTL_CHECKPOINT_DIR"])
dist.init_process_group("gloo")
rank = dist.get_rank()
state = torch.zeros(2, dtype=torch.int64)  # the number of steps, and the sum of their numbers
newest = max(folder.glob("step-*"), default=None)
if rank == 0 and newest:
    state = torch.load(newest)
dist.broadcast(state, 0)
print("begin after step", int(state[0]), flush=True)
while state[0] < last:
    one = torch.ones(1)
    dist.all_reduce(one)
    assert one == dist.get_world_size()
    state[0] += 1
    state[1] += state[0]
    print("step", int(state[0]), flush=True)
    if rank == 0 and state[0] % 10 == 0:
        torch.save(state, folder / ".new.pt")
        (folder / ".new.pt").rename(folder / ("step-%08d" % state[0]))
        for old in sorted(folder.glob("step-*"))[:-2]:
            old.unlink()
    time.sleep(PAUSE)
dist.barrier()
print("done", *map(int, state), flush=True)
dist.destroy_process_group()
""".replace("PAUSE", str(PAUSE))
RANK = r"^[^ ]*python[^ ]* -u steps.py"  # command lines in a node
TORCHRUN = r"^[^ ]*python[^ ]* [^ ]*torchrun"
RIVAL = "rival"  # name of the other machine's launches
SUPERVISOR = r"^[^ ]*python3 -I -S .*supervisor.pyz"


@dataclass
class Trial:
    """A run under blows. process: the launcher that follows the run."""

    cluster: Cluster
    home: Home
    folder: Path
    chance: random.Random
    steps: int
    process: object = None
    doubles: set[str] = field(default_factory=set)  # hosts that had containers of two runs at once
    refused: int = 0  # launches by the other machine that were refused
    intruded: list[str] = field(default_factory=list)  # hosts where such a launch got a GPU

    def launch(self) -> None:
        code = self.folder / "code"
        code.mkdir(parents=True)
        (code / "steps.py").write_text(SCRIPT)
        for node in self.cluster.nodes:
            self.cluster.give_gpus(node, 1)
        *hosts, spare = ({"host": node, "gpus": 1} for node in self.cluster.nodes)
        job = {"workdir": str(code), "image": TRAINER_IMAGE, "nproc_per_node": 1, "min_nodes": 2}
        job |= {"max_restarts": 40, "command": ["steps.py", str(self.steps)], "stop_timeout": 10}
        file = self.cluster.hosts_yaml(self.folder / "hosts.yaml", hosts, **job)
        file.write_text(file.read_text() + f"spares: [{json.dumps(spare)}]\n")
        self.out, self.err = self.folder / "out", self.folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = self.home.start("launch", file, "--no-check", stdout=out, stderr=err)

    def step(self) -> int:
        """Return the highest step that any rank has reported."""
        found = re.findall(r"\] step (\d+)$", self.out.read_text(errors="replace"), re.MULTILINE)
        return max(map(int, found), default=0)

    def reach(self, step: int) -> None:
        until(lambda: self.over() or self.step() > step, 400, f"step {step}")

    def over(self) -> bool:
        return self.process.poll() is not None

    def hosts(self) -> list[str]:
        """Return the hosts of the newest attempt."""
        return [node["host"] for node in self.home.record()["attempts"][-1]["nodes"]]

    def signal(self, name: str, pattern: str) -> str:
        """Send a signal to one matching process on a random host of the run. Return which it was."""
        host = self.chance.choice(self.hosts())
        self.cluster.exec(host, "sh", "-c", f"pkill -{name} -o -f '{pattern}'; true")
        return host


# --- the blows ------------------------------------------------------------------------------------


def kill_rank(trial: Trial) -> str:
    return trial.signal("KILL", RANK)


def crash_rank(trial: Trial) -> str:
    return trial.signal("SEGV", RANK)


def stop_rank(trial: Trial) -> str:
    return trial.signal("STOP", RANK)


def kill_torchrun(trial: Trial) -> str:
    return trial.signal("KILL", TORCHRUN)


def kill_supervisor(trial: Trial) -> str:
    return trial.signal("KILL", SUPERVISOR)


def kill_container(trial: Trial) -> str:
    host = trial.chance.choice(trial.hosts())
    kill = "docker ps -q --filter label=io.ddpctl.run-id | xargs -r docker kill"
    trial.cluster.exec(host, "sh", "-c", kill)
    return host


def restart_engine(trial: Trial) -> str:
    host = trial.chance.choice(trial.hosts())
    trial.cluster.stop_dockerd(host)
    later(5, lambda: trial.cluster.start_dockerd(host))
    return host


def reboot_host(trial: Trial) -> str:
    host = trial.chance.choice(trial.hosts())
    trial.cluster.kill_host(host)
    later(5, lambda: trial.cluster.start_host(host))
    return host


def cut_host(trial: Trial) -> str:
    """Cut a host off silently for 15 s."""
    host = trial.chance.choice(trial.hosts())
    rules = ("INPUT ! -i lo -j DROP", "OUTPUT ! -o lo -j DROP")
    change = lambda how: trial.cluster.exec(  # noqa: E731
        host, "sh", "-c", "; ".join(f"iptables {how} {rule}" for rule in rules)
    )
    change("-I")
    later(15, lambda: change("-D"))
    return host


def sleep_and_kill_rank(trial: Trial) -> str:
    """Put the launching machine to sleep for 20 s, and kill a rank in the meantime."""
    trial.process.send_signal(signal.SIGSTOP)
    later(20, lambda: trial.process.send_signal(signal.SIGCONT))
    return kill_rank(trial)


BLOWS: dict[Callable[[Trial], str], int] = {  # with their weights
    kill_rank: 4,
    crash_rank: 4,
    stop_rank: 3,
    kill_torchrun: 3,
    kill_supervisor: 3,
    kill_container: 3,
    restart_engine: 2,
    reboot_host: 2,
    cut_host: 2,
    sleep_and_kill_rank: 4,
}
repairs: list[threading.Thread] = []


def later(seconds: float, act: Callable[[], object]) -> None:
    repairs.append(threading.Timer(seconds, act))
    repairs[-1].start()


# --- a trial --------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched(trial: Trial) -> Iterator[None]:
    """Record hosts on which two containers of runs are running at the same time."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(2):
            for node in trial.cluster.nodes:
                with contextlib.suppress(Exception):  # the host is down
                    of_run = "label=io.ddpctl.node-rank"
                    names = trial.cluster.engine(node, "ps", "-q", "--filter", of_run).split()
                    if len(names) > 1:
                        trial.doubles.add(node)

    threads = [threading.Thread(target=work) for work in (look, lambda: contend(trial, over))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def contend(trial: Trial, over: threading.Event) -> None:
    """Launch on the run's hosts again and again until the run ends, as another machine would."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    home = trial.cluster.home_at(trial.folder / "rival-state")
    hosts = [{"host": node, "gpus": 1} for node in trial.cluster.nodes]
    command = ["-m", "http.server", "0"]
    file = trial.cluster.hosts_yaml(
        trial.folder / "rival.yaml", hosts, command=command, master_port="auto"
    )
    launch = ["launch", file, "--no-check", "--no-push", "--detach", "--name", RIVAL, "--include"]
    while not over.wait(1):
        with contextlib.suppress(OSError, ValueError):  # the run has not started yet
            for host in trial.hosts():
                code = home.ddpctl(*launch, host, timeout=300).returncode
                trial.refused += code == Exit.PREFLIGHT
                if code == Exit.DONE:
                    if not trial.over() and host in trial.hosts():
                        trial.intruded.append(host)
                    print(f"{time.time():.0f} another run started on {host}", flush=True)
                    home.ddpctl("kill", "-y")


def play(trial: Trial, blows: int) -> list[str]:
    """Inflict all blows on the run and let it end. Return what was wrong."""
    trial.launch()
    impatient = 0  # blows in a row before a checkpoint
    for number in range(1, blows + 1):
        before = trial.step()
        impatient = impatient + 1 if number > 1 and trial.chance.random() < 0.2 else 0
        if impatient in (1, 2):
            time.sleep(trial.chance.uniform(0, 8))  # a random moment
        else:
            impatient = 0
            enough = before + trial.chance.randint(20, 40)  # at least one checkpoint
            trial.reach(enough)
        if trial.over():
            return [f"it ended before blow {number}: {trial.process.returncode}"]
        [blow] = trial.chance.choices([*BLOWS], [*BLOWS.values()])
        print(
            f"{time.time():.0f} {number}. {blow.__name__}: {blow(trial)}, step {before}", flush=True
        )
        while repairs and (number == blows or not repairs[0].is_alive()):
            repairs.pop(0).join()
    code = trial.process.wait(600)
    return list(faults_of(trial, code))


def faults_of(trial: Trial, code: int) -> Iterator[str]:
    """Yield what is wrong after the end."""
    if code:
        yield f"exit code {code}"
    lines = trial.out.read_text(errors="replace").splitlines()
    sums = {line.partition("] ")[2] for line in lines if "] done " in line}
    if sums != {f"done {trial.steps} {trial.steps * (trial.steps + 1) // 2}"}:
        yield f"the steps add up to {sums}"
    reached: dict[str, int] = {}  # by rank
    for line in lines:
        if said := re.match(r"\[\w+:(\d+)\] (begin after )?step (\d+)$", line):
            rank, step = said[1], int(said[3])
            if not said[2] and step != reached.get(rank, 0) + 1:
                yield f"rank {rank}: step {step} after {reached.get(rank, 0)}"
            reached[rank] = step
    if trial.doubles:
        yield f"two containers at once on {', '.join(sorted(trial.doubles))}"
    if trial.intruded or f"run {RIVAL}-" in trial.err.read_text():
        yield f"another run got a GPU of this run {trial.intruded}"


def leftovers(cluster: Cluster) -> Iterator[str]:
    """Yield what is left on the hosts after the run."""
    tickets = ["volume", "ls", "-q", "--filter", "label=io.ddpctl.run-id"]
    for node in cluster.nodes:
        for what, seconds, left in (
            ("container", 20, lambda node=node: cluster.engine(node, "ps", "-q")),
            ("process", 5, lambda node=node: cluster.ranks(node)),
            ("ticket", 5, lambda node=node: cluster.engine(node, *tickets)),
        ):
            try:
                until(lambda left=left: not left(), seconds, f"no {what} is left")
            except AssertionError:
                yield f"a {what} is left on {node}"


def result(trial: Trial, args: argparse.Namespace, seconds: float, wrong: list[str]) -> str:
    """Return the row of the table."""
    attempts = trial.home.record()["attempts"]
    kinds = Counter(restart["kind"] for attempt in attempts for restart in attempt["restarts"])
    return (
        f"| {args.seed} | {args.blows} | {kinds['in-place']} | {kinds['launcher']} | {trial.steps} | "
        f"{trial.refused} | {seconds / 60:.0f} min | {'; '.join(wrong) or 'none'} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--blows", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the row into RESULTS.md")
    args = parser.parse_args()
    need_cluster("blows")
    folder = Path(tempfile.mkdtemp(prefix="blows-"))
    cluster = Cluster(folder / "cluster", [DOCKER] * 4, "blows-")
    began = time.monotonic()
    try:
        (folder / "cluster").mkdir()
        cluster.up()
        chance = random.Random(args.seed)
        steps = STEPS_BETWEEN * args.blows
        trial = Trial(cluster, cluster.home_at(folder / "state"), folder / "run", chance, steps)
        with watched(trial):
            wrong = play(trial, args.blows)
        wrong += leftovers(cluster)
        row = result(trial, args, time.monotonic() - began, wrong)
        print(row)
        if args.write:
            command = f"python -m benchmarks.blows --write` at `{commit()}"
            write_section(
                TITLE, command, HEAD.format(blows=", ".join(each.__name__ for each in BLOWS)) + row
            )
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
