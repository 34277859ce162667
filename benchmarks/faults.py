"""Inflict 28 faults: how soon do all nodes stop or start again, and is the cause named correctly?

    python -m benchmarks.faults [--only 1,2,16] [--part ends|restarts] [--write | --engine process]

On the simulated cluster, three hosts with two ranks each all-reduce in a loop. The baseline is plain
torchrun, started by hand with `ssh HOST docker run` on every host, with the same script and the same
faults; the benchmark waits CAP seconds for it. In a second table, the runs may restart, and the baseline
is torchrun's own --max-restarts on one node. `--write` replaces single rows in RESULTS.md, so you can
measure the tables in pieces. With `--part ends`, `--engine` may name an engine without Docker; then there
is no baseline, and faults of a container engine are left out.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import hand, restarts
from benchmarks.needs import need_cluster
from benchmarks.restarts import CAP, rank_died
from benchmarks.results import PATH, commit, write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import APPTAINER, DOCKER, PROCESSES, USER, Cluster, Home, until
from faults import (
    BY_HAND,
    FAULTS,
    LOOP,
    PORT,
    SLOW_DEEDS,
    VICTIM,
    Fault,
    Run,
    cut_ssh,
    kill_container,
    launch,
    let_go_of_port,
    lines_are_whole,
    small_disk,
    steps,
    suffer,
    take_port,
    verdict,
    write_job,
)

KINDS = {"docker": DOCKER, "process": PROCESSES, "apptainer": APPTAINER}  # hosts by engine
OF_CONTAINERS = (6, 7, 12, 15)  # faults that need a container engine on the hosts
TITLE = "Faults"
HEAD = """\
Three simulated hosts x 2 ranks. Seconds from the fault until the launcher has reported the cause and exited
(15: until nothing runs on the hosts that are left), on two cores that serve all hosts and other work
too. torchrun by hand: until no rank runs on the hosts that are left, waited for {cap:.0f} s; without that
cap a stopped rank left the others hanging for more than 560 s, and a host cut off silently for 962 s.
It names no cause across hosts.

**{right} of {all} named correctly.**

| fault | bar | ddpctl: all stopped | named correctly? | torchrun by hand: all stopped |
|---|---|---|---|---|
"""
RESTARTS = "Faults of runs that restart"
RESTARTS_HEAD = """\
The runs have three simulated hosts with 2 ranks each. In rows 7 to 9, and where a row mentions a spare, the
third host is the spare. The columns show the seconds from the fault to the first line that the script
prints after its next start, before it imports torch. All hosts share two cores with other work. The last
column is torchrun alone, with `--max-restarts` and two ranks on one node, for {cap:.0f} s at most. "-":
the fault needs several nodes.

**{right} of {all} as documented.**

| fault | ddpctl: first line again | as documented? | torchrun on one node: first line again |
|---|---|---|---|
"""
ROW = re.compile(r"^\| (\d+)\. .*\|$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    took: str
    wrong: str  # "" when the cause was named correctly
    named: str


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", default="", metavar="1,2", help="numbers of the faults to measure"
    )
    parser.add_argument("--part", choices=("ends", "restarts"), help="measure only this table")
    parser.add_argument("--write", action="store_true", help="write rows into RESULTS.md")
    parser.add_argument("--engine", choices=KINDS, default="docker", help="engine of the hosts")
    args = parser.parse_args()
    if args.engine != "docker" and (args.write or args.part != "ends"):
        parser.error(f"--engine {args.engine} measures --part ends; RESULTS.md has no table of it")
    need_cluster("faults")
    only = [int(number) for number in args.only.split(",") if number] or range(1, 100)
    if args.engine != "docker":
        only = [number for number in only if number not in OF_CONTAINERS]
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="faults-")), [KINDS[args.engine]] * 3)
    tables = [
        (TITLE, HEAD, TRIALS, measure),
        (RESTARTS, RESTARTS_HEAD, RESTARTING, measure_restart),
    ]
    try:
        cluster.up()
        for title, head, numbers, measured in tables[slice(*PARTS[args.part])]:
            for number in (each for each in only if each in numbers):
                row = measured(cluster, number)
                print(row, flush=True)
                if args.write:
                    write_row(title, head, number, row)
    finally:
        cluster.down()


def measure(cluster: Cluster, number: int) -> str:
    """Measure one row of the first table: ddpctl, then torchrun by hand."""
    trial = TRIALS[number]
    ours = trial.ours(*fresh(cluster))
    theirs = trial.by_hand(*fresh(cluster)) if cluster.kinds[VICTIM] == DOCKER else "-"
    named = f"NO: {ours.wrong}" if ours.wrong else f"yes: {ours.named}"
    return f"| {number}. {trial.name} | {trial.bar} | {ours.took} | {named} | {theirs} |"


def measure_restart(cluster: Cluster, number: int) -> str:
    """Measure one row of the second table: ddpctl, then torchrun's own --max-restarts."""
    if fault := FAULT.get(number):
        name, again = fault.name, restarts.next_start(*fresh(cluster), fault)
    else:
        name, act = restarts.NIGHT[number]
        again = act(*fresh(cluster))
    alone = restarts.alone(*fresh(cluster), fault) if fault and not fault.act else "-"
    right = f"NO: {again.wrong}" if again.wrong else f"yes: {again.told}"
    return f"| {number}. {name} | {again.shown} | {right} | {alone} |"


def fresh(cluster: Cluster) -> tuple[Cluster, Path]:
    cluster.reset()
    return cluster, Path(tempfile.mkdtemp())


def write_row(title: str, head: str, number: int, row: str) -> None:
    text = PATH.read_text() if PATH.exists() else ""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = {int(found[1]): found[0] for found in ROW.finditer(section)} | {number: row}
    right = sum("| yes: " in each for each in rows.values())
    table = "\n".join(rows[key] for key in sorted(rows))
    command = f"python -m benchmarks.faults --write` at `{commit()}"
    write_section(title, command, head.format(cap=CAP, right=right, all=len(rows)) + table)


# --- with ddpctl ----------------------------------------------------------------------------------


def run_fault(cluster: Cluster, fault: Fault, folder: Path) -> Outcome:
    with small_disk(cluster, fault):
        run = launch(cluster, cluster.home_at(folder / "state"), folder, fault)
        seconds = suffer(run, fault)
        return Outcome(f"{seconds:.1f} s", verdict(run, fault), str(run.failure.get("kind")))


def port_taken(cluster: Cluster, folder: Path) -> Outcome:
    home = cluster.home_at(folder / "state")
    file = write_job(cluster, folder, "wait", None)
    with let_go_of_port(cluster):
        launcher = home.start("launch", file, "--no-check")
        taken = take_port(cluster)
        _, err = launcher.communicate(timeout=120)
        seconds = time.time() - taken
    told = err.decode()
    right = str(PORT) in told and "node0" in told and launcher.returncode in (1, 3)
    return Outcome(f"{seconds:.1f} s", "" if right else told[-300:], "port-in-use")


def launcher_killed(cluster: Cluster, folder: Path) -> Outcome:
    """Kill the launcher before each of the first ten faults, then let `attach` name the cause."""
    took, wrong = dict[int, float](), ""
    for number in range(1, 11):
        cluster.reset()
        home = cluster.home_at(folder / f"state{number}")
        run = launch(cluster, home, folder / str(number), FAULT[number])
        run.process.kill()
        run.process.wait(10)
        if before := FAULT[number].before:
            before(run)
        if act := FAULT[number].act:
            act(run)
        reachable = others(cluster) if FAULT[number].act else cluster.nodes
        until(lambda nodes=reachable: not any(map(cluster.ranks, nodes)), 90, "all have ended")
        ended = time.time()
        told = home.ddpctl("attach", timeout=90)
        took[number] = ended - began(run, FAULT[number], told.stdout)
        bad = verdict(run, FAULT[number]) or ("" if VICTIM in told.stderr else told.stderr)
        print(f"15, before {number}: {took[number]:.1f} s {bad}", flush=True)
        wrong = wrong or bad
    soon, late = max(took[n] for n in range(1, 9)), max(took[9], took[10])
    return Outcome(f"1-8: {soon:.1f} s, 9-10: {late:.1f} s", wrong, "all ten, by attach")


def began(run: Run, fault: Fault, lines: str) -> float:
    """Return the unix time of a fault: the one that the rank printed, or that of its death."""
    if fault.act:
        return run.fault_at
    if fault.deed in SLOW_DEEDS:
        return datetime.datetime.fromisoformat(run.failure["time"]).timestamp()
    [line] = [line for line in lines.splitlines() if "FAULT" in line]
    return float(line.split()[-1])


def ssh_was_cut(cluster: Cluster, folder: Path) -> Outcome:
    run = launch(cluster, cluster.home_at(folder / "state"), folder, TALK)
    cut_ssh(run, 20)
    mark = max(steps(run, 0)) + 60
    until(lambda: max(steps(run, 3)) > mark, 90, "lines come again")
    running = run.process.poll() is None
    run.process.terminate()
    run.wait()
    wrong = "" if running and lines_are_whole(run) else "lines lost or doubled, or the run stopped"
    if f"lost contact with {VICTIM}" not in run.err.read_text():
        wrong = wrong or "no notice"
    return Outcome("no effect", wrong, "a notice, no line lost or doubled")


# --- by hand --------------------------------------------------------------------------------------


@contextmanager
def plain(cluster: Cluster, fault: Fault, folder: Path) -> Iterator[Run]:
    out = folder / "out"
    for node in cluster.nodes:
        put = "cat > /tmp/loop.py; mkdir -p ~/.ddpctl/runs"
        cluster.exec(node, "sh", "-c", put, user=USER, stdin=LOOP.encode())
    docker = ["-v/tmp/loop.py:/tmp/loop.py", "-v/home/ddp/.ddpctl/runs:/checkpoints"]
    script = ["/tmp/loop.py", fault.deed, str(3 if fault.rank is None else fault.rank)]
    with small_disk(cluster, fault), out.open("wb") as stdout:
        logins = hand.start_all(cluster, 2, PORT, docker, script, stdout)
        try:
            yield Run(cluster, Home(folder, folder), logins[0], out, out, others=logins[1:])
        finally:
            for login in logins:
                login.kill()


def run_fault_by_hand(cluster: Cluster, fault: Fault, folder: Path) -> str:
    with plain(cluster, fault, folder) as run:
        run.working()
        if fault.before:
            fault.before(run)
        (fault.act or Run.done_by_script)(run)
        if fault.deed in SLOW_DEEDS:  # time is measured from the rank's death
            until(lambda: rank_died(cluster), 90, "the rank ends")
            run.now()
        left = cluster.nodes if fault.act is None else others(cluster)
        return shown(stopped_after(run, left))


def port_taken_by_hand(cluster: Cluster, folder: Path) -> str:
    with let_go_of_port(cluster), plain(cluster, TALK, folder) as run:
        run.fault_at = take_port(cluster, BY_HAND)
        until(lambda: cluster.ranks("node2"), 60, "it starts")
        return shown(stopped_after(run, cluster.nodes))


def launcher_killed_by_hand(cluster: Cluster, folder: Path) -> str:
    with plain(cluster, FAULT[5], folder) as run:
        run.working()
        for login in (run.process, *run.others):
            login.kill()
        kill_container(run)
        return shown(stopped_after(run, others(cluster)))


def ssh_was_cut_by_hand(cluster: Cluster, folder: Path) -> str:
    with plain(cluster, TALK, folder) as run:
        run.working()
        cut_ssh(run, 20)
        missing = max(steps(run, 0)) - max(steps(run, 3))
        lost = f"{missing} lines of a rank of that host are missing by then and more follow"
        return f"runs on; {lost}" if missing > 100 else "no effect"


def stopped_after(run: Run, nodes: list[str]) -> float | None:
    """Return the seconds from the fault until no rank is left on `nodes`, or None after CAP seconds."""
    try:
        until(lambda: not any(run.cluster.ranks(node) for node in nodes), CAP, "all have ended")
    except AssertionError:
        return None
    return time.time() - run.fault_at


def shown(seconds: float | None) -> str:
    return f"> {CAP:.0f} s" if seconds is None else f"{seconds:.1f} s"


def others(cluster: Cluster) -> list[str]:
    return [node for node in cluster.nodes if node != VICTIM]


# --- the first sixteen ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    name: str
    bar: str
    ours: Callable[[Cluster, Path], Outcome]
    by_hand: Callable[[Cluster, Path], str]


def ordinary(fault: Fault) -> Trial:
    return Trial(
        fault.name,
        f"{fault.within:g} s",
        lambda cluster, folder: run_fault(cluster, fault, folder),
        lambda cluster, folder: run_fault_by_hand(cluster, fault, folder),
    )


FAULT = {fault.number: fault for fault in FAULTS}
TALK = Fault(16, "SSH cut for 20 s", (), 0, deed="talk", rank=None)
TRIALS = {number: ordinary(fault) for number, fault in FAULT.items()} | {
    12: Trial("master port taken after the check", "20 s", port_taken, port_taken_by_hand),
    15: Trial(
        "launcher killed before each of 1-10 (by hand: before 5)",
        "5 s, 20 s",
        launcher_killed,
        launcher_killed_by_hand,
    ),
    16: Trial(TALK.name, "no effect", ssh_was_cut, ssh_was_cut_by_hand),
}
RESTARTING = {*FAULT, *restarts.NIGHT}
PARTS = {None: (0, 2), "ends": (0, 1), "restarts": (1, 2)}


if __name__ == "__main__":
    main()
