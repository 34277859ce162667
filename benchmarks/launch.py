"""Measure what ddpctl adds to a launch: python -m benchmarks.launch [--rounds 3] [--write]

On the simulated cluster, with image, dataset and code already on every host: the time from the
command to the first line of every rank, compared with the same containers started by hand with `ssh
HOST docker run` on all hosts at once. Each round measures both and yields one ratio, because the
machine's speed changes between rounds. The script imports torch and prints a line, as training
does; one row uses a script that imports nothing. By hand, nothing is checked, so one row skips the
check. Three hosts have python3, as most hosts do; one row uses three without it: there the probe runs
in a container of the job's image. The last rows show the time to exit, the memory and `--help`.
Use an optimized Python as users have it: pyenv's default build needs a fifth more CPU.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from benchmarks import hand
from benchmarks.needs import need_cluster
from benchmarks.results import write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import DOCKER, DOCKER_AND_PYTHON, USER, Cluster, Home, Kind, docker

# One write, because by hand both ranks of a node share a pipe and would tear each other's lines. Then the
# script keeps running, as training does, so that one rank's end does not disturb another's start.
SAY = """
import os, time
os.write(1, f"first line of {os.environ['RANK']}\\n".encode())
time.sleep(3)
"""
SCRIPTS = {"with_torch.py": "import torch\n" + SAY, "bare.py": SAY}
CASES = {
    "with check and push": ("with_torch.py", (), DOCKER_AND_PYTHON),
    "with --no-check --no-push": ("with_torch.py", ("--no-check", "--no-push"), DOCKER_AND_PYTHON),
    "checked, a script without torch": ("bare.py", (), DOCKER_AND_PYTHON),
    "with check and push, hosts without python3": ("with_torch.py", (), DOCKER),
}
FIRST = re.compile(rb"first line of (\d+)")
NPROC = 2
REST = 2.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--hosts", type=int, default=3, metavar="N")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("launch")
    ours: dict[str, list[Launched]] = {case: [] for case in CASES}
    theirs: dict[str, list[float]] = {case: [] for case in CASES}
    for kind in (DOCKER_AND_PYTHON, DOCKER):
        with running(args.hosts, kind) as (cluster, home, hosts):
            for case, (script, options, hosts_kind) in CASES.items():
                for number in range(args.rounds if hosts_kind is kind else 0):
                    if number % 2:  # alternate the order
                        theirs[case].append(by_hand(cluster, script))
                    ours[case].append(by_ddpctl(cluster, home, hosts, [*options, "--", script]))
                    if not number % 2:
                        theirs[case].append(by_hand(cluster, script))
    text = report(args.hosts, ours, theirs, [help_time() for _ in range(5)])
    print(text)
    if args.write:
        write_section("Launch", "python -m benchmarks.launch", text)


@dataclass(frozen=True)
class Launched:
    """The times of one launch with ddpctl."""

    first: float  # seconds from the command to the first line of the last rank
    end: float  # seconds from the end of the last container to our exit
    peak: int  # KiB


@contextmanager
def running(count: int, kind: Kind) -> Iterator[tuple[Cluster, Home, Path]]:
    """Start hosts that already have everything. Compiles ddpctl, as pip does."""
    compileall.compile_dir(Path(__file__).parents[1] / "launcher", quiet=1)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "cluster", [kind] * count)
        try:
            cluster.up()
            code = Path(folder, "code")
            code.mkdir()
            for name, text in SCRIPTS.items():
                (code / name).write_text(text)
            job = {"workdir": str(code), "nproc_per_node": NPROC, "command": ["none given"]}
            hosts = cluster.hosts_yaml(Path(folder, "hosts.yaml"), **job)
            home = cluster.home_at(Path(folder, "state"))
            done = home.ddpctl("push", hosts, timeout=300)
            assert done.returncode == 0, done.stderr
            for node in cluster.nodes:
                for name, text in SCRIPTS.items():
                    put = ["sh", "-c", f"mkdir -p ~/code && cat > ~/code/{name}"]
                    cluster.exec(node, *put, user=USER, stdin=text.encode())
            yield cluster, home, hosts
        finally:
            cluster.down()


def by_ddpctl(cluster: Cluster, home: Home, hosts: Path, words: list[str]) -> Launched:
    at_rest(cluster)
    began = time.monotonic()
    process = home.start("launch", hosts, *words, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    first = seconds_to_all([process.stdout], len(cluster.nodes) * NPROC, began)
    _, status, usage = os.wait4(process.pid, 0)
    ended = time.time()
    assert status == 0, f"ddpctl launch ended with status {status}"
    last = max(finished(cluster, node) for node in cluster.nodes)
    return Launched(first, ended - last, usage.ru_maxrss)


def at_rest(cluster: Cluster) -> None:
    """Wait until the engines are idle. They keep working for a while after a container is removed."""
    for node in cluster.nodes:
        cluster.exec(node, "sh", "-c", "docker ps -aq | xargs -r docker rm -f")
    time.sleep(REST)


def finished(cluster: Cluster, node: str) -> float:
    """Return unix seconds. All hosts share this machine's clock."""
    [container] = cluster.containers(node)
    return datetime.fromisoformat(container["State"]["FinishedAt"]).timestamp()


def by_hand(cluster: Cluster, script: str) -> float:
    """Run the same torchrun in the same image with `ssh HOST docker run` on all hosts at once."""
    options = ["--user=1000:1000", "--env=HOME=/tmp"]
    options += [f"--volume=/home/{USER}/code:/workspace", "--workdir=/workspace"]
    at_rest(cluster)
    began = time.monotonic()
    logins = []
    for rank, node in enumerate(cluster.nodes):
        torchrun = hand.torchrun(cluster, rank, NPROC, 29500, options, [script])
        login = hand.ssh(cluster, node, torchrun)
        logins.append(subprocess.Popen(login, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    streams = [login.stdout for login in logins if login.stdout is not None]
    seconds = seconds_to_all(streams, len(cluster.nodes) * NPROC, began)
    assert [login.wait() for login in logins] == [0] * len(logins)
    return seconds


def seconds_to_all(streams: list[IO[bytes]], ranks: int, began: float) -> float:
    """Read the streams to the end. Return the seconds until each of `ranks` ranks had printed a line."""
    seen: dict[bytes, float] = {}

    def read(stream: IO[bytes]) -> None:
        for line in stream:
            for rank in FIRST.findall(line):
                seen.setdefault(rank, time.monotonic() - began)

    readers = [threading.Thread(target=read, args=[stream]) for stream in streams]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert len(seen) == ranks, f"{len(seen)} of {ranks} ranks said something"
    return max(seen.values())


def help_time() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "launcher", "--help"], capture_output=True, check=True)
    return time.monotonic() - began


def report(
    hosts: int,
    ours: dict[str, list[Launched]],
    theirs: dict[str, list[float]],
    helps: list[float],
) -> str:
    engine = docker("version", "--format={{.Server.Version}}")
    every = [launched for launches in ours.values() for launched in launches]
    text = [
        f"{hosts} simulated hosts x {NPROC} ranks on one machine of {os.cpu_count()} cores, "
        f"{len(every) // len(ours)} rounds of",
        "both, each first in every other one; medians, of the seconds and of the rounds' ratios; Docker "
        f"{engine}.",
        "",
        "| what | ddpctl | by hand | bar |",
        "|---|---|---|---|",
    ]
    for case in CASES:
        firsts = [launched.first for launched in ours[case]]
        pairs = zip(firsts, theirs[case], strict=True)
        ratio = statistics.median(first / hand for first, hand in pairs)
        bar = "" if CASES[case][0] == "bare.py" else f" (<= 1.15{', missed' * (ratio > 1.15)})"
        text.append(
            f"| command to the first line of every rank, {case} | {statistics.median(firsts):.2f} s "
            f"| {statistics.median(theirs[case]):.2f} s | ratio {ratio:.2f}{bar} |"
        )
    end = statistics.median(launched.end for launched in every)
    text += [
        f"| last container's end to the exit | {end:.2f} s | | <= 1 s |",
        f"| peak memory of the launcher | {max(each.peak for each in every) / 1024:.0f} MB | | < 100 MB |",
        f"| `ddpctl --help` | {statistics.median(helps) * 1000:.0f} ms | | < 300 ms |",
        "",
    ]
    for case in CASES:
        rounds = seconds([launched.first for launched in ours[case]])
        text.append(f"All rounds, {case}: ddpctl {rounds}; by hand {seconds(theirs[case])}.  ")
    return "\n".join(text)


def seconds(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) + " s"


if __name__ == "__main__":
    main()
