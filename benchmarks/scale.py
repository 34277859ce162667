"""Measure the cost of many hosts: python -m benchmarks.scale PART... [--write]

cluster    48 and 64 containers, each with sshd, python3 and a Docker Engine: check, ps, kill, push,
           and `launch` compared with the same containers by hand, one `ssh HOST docker run` per host.
           The image has Python and stand-ins for torchrun and torch, so that the result is the
           cost of starting, not of importing torch
simulated  256 and 1,000 hosts behind one sshd, with stand-in engines: what the launcher needs
star       the supervisors of up to 1,000 nodes: heartbeats, and the time until all have stopped
logs       following 64 simulated hosts x 8 ranks; every line is compared with what was written
push       links of 10 Mbit/s: 8 hosts, 64 hosts, and 64 of which one is cut off and one is slow

Hosts and launcher share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from benchmarks import hand
from benchmarks.needs import need_cluster, need_root_and
from benchmarks.push import Net, big_file, network, push
from benchmarks.results import write_section
from benchmarks.simulated import expected_log, simulated
from benchmarks.star import measure_star

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import DOCKER_AND_PYTHON, USER, Cluster, Home

IMAGE = "ddpctl-scale:latest"
RECIPE = """
FROM debian:trixie-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 \\
    && rm -rf /var/lib/apt/lists/*
COPY torchrun /usr/local/bin/torchrun
COPY torch /usr/lib/python3/dist-packages/torch
WORKDIR /workspace
"""
# Starts the ranks with torchrun's environment and log files, and waits for them.
TORCHRUN = """#!/bin/sh
while :; do
    case $1 in
    --nproc-per-node) nproc=$2; shift 2 ;;
    --nproc-per-node=*) nproc=${1#*=}; shift ;;
    --node-rank) node=$2; shift 2 ;;
    --node-rank=*) node=${1#*=}; shift ;;
    --*=*) shift ;;
    --) shift; break ;;
    --*) shift 2 ;;
    *) break ;;
    esac
done
local=0
while [ "$local" -lt "$nproc" ]; do
    export LOCAL_RANK=$local RANK=$((node * nproc + local))
    if [ -n "$PET_LOG_DIR" ]; then
        folder=$PET_LOG_DIR/scale/attempt_0/$local
        mkdir -p "$folder"
        sh "$@" >"$folder/stdout.log" 2>"$folder/stderr.log" &
    else
        sh "$@" &
    fi
    local=$((local + 1))
done
wait
"""
# The parts of torch that `check` uses.
TORCH = """
__version__ = "0"
class version: cuda = None
class cuda: device_count = staticmethod(lambda: 0)
"""
DISTRIBUTED = "def is_nccl_available(): return False\n"
REST = 3.0  # seconds between measurements
MOST_CHECKED = 256  # hosts; a check starts some 25 programs on each, here all on one machine
NAP = 3.0  # seconds that a rank lives after its first line
SCRIPT = f'echo "first line of $RANK"; exec sleep {NAP:g}\n'
FIRST = re.compile(rb"first line of (\d+)")


@dataclass
class Watched:
    """A run of ddpctl: its duration, its output, and the peak usage of its process."""

    code: int = 0
    out: str = ""
    err: str = ""
    seconds: float = 0.0
    first: float = 0.0  # seconds to the first line of the last rank
    cpu: float = 0.0  # seconds, including its child processes
    peak: int = 0  # MB
    threads: int = 0
    files: int = 0  # open descriptors

    @property
    def cost(self) -> str:
        return f"{self.cpu:.1f} s CPU, {self.peak} MB, {self.threads} threads, {self.files} files"


def watch(process: subprocess.Popen[bytes], began: float) -> Watched:
    """Follow a process to its end."""
    seen = Watched()
    outputs: dict[str, list[bytes]] = {"out": [], "err": []}

    def read(name: str, stream: IO[bytes]) -> None:
        for line in stream:
            outputs[name].append(line)
            if FIRST.search(line):
                seen.first = time.monotonic() - began

    readers = [
        threading.Thread(target=read, args=(name, stream))
        for name, stream in (("out", process.stdout), ("err", process.stderr))
        if stream
    ]
    for reader in readers:
        reader.start()
    folder = Path("/proc", str(process.pid))
    while True:
        try:
            status = (folder / "status").read_text()
            seen.files = max(seen.files, sum(1 for _ in (folder / "fd").iterdir()))
        except OSError:
            break
        found = dict(re.findall(r"(VmHWM|Threads):\s+(\d+)", status))
        if "VmHWM" not in found:  # the process has ended
            break
        seen.peak = int(found["VmHWM"]) // 1024
        seen.threads = max(seen.threads, int(found["Threads"]))
        time.sleep(0.05)
    _, status_word, usage = os.wait4(process.pid, 0)
    for reader in readers:
        reader.join()
    seen.seconds = time.monotonic() - began
    seen.code = process.returncode = os.waitstatus_to_exitcode(status_word)
    seen.cpu = usage.ru_utime + usage.ru_stime
    seen.out, seen.err = (b"".join(outputs[name]).decode() for name in ("out", "err"))
    return seen


def ddpctl(home: Home, *words: str | Path) -> Watched:
    began = time.monotonic()
    return watch(home.start(*words), began)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument(
        "--hosts", type=int, nargs="+", metavar="N", help="use these numbers of hosts"
    )
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("scale")
    need_root_and("scale", "ip", "tc", "sshd", "ssh-keygen", "perl")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for a thousand sockets
    for part in args.parts or PARTS:
        measure, usual = PARTS[part]
        counts = args.hosts or usual
        text = "\n".join(measure(counts))
        print(text, flush=True)
        if args.write:
            numbers = " ".join(map(str, counts))
            command = f"python -m benchmarks.scale {part} --hosts {numbers} --write"
            write_section(f"Scale: {part}, {numbers} hosts", command, text)


# --- containers as hosts ------------------------------------------------------------------------


def build_image() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_text(RECIPE)
        Path(folder, "torchrun").write_text(TORCHRUN)
        Path(folder, "torchrun").chmod(0o755)
        Path(folder, "torch").mkdir()
        Path(folder, "torch", "__init__.py").write_text(TORCH)
        Path(folder, "torch", "distributed.py").write_text(DISTRIBUTED)
        build = ["docker", "build", "--quiet", "--network=host", "-t", IMAGE, folder]
        environment = os.environ | {"DOCKER_BUILDKIT": "0"}
        subprocess.run(build, check=True, capture_output=True, env=environment)


def cluster_rows(counts: Sequence[int]) -> list[str]:
    build_image()
    rows = [
        "| hosts | what | seconds | by hand | bar | the launcher |",
        "|---|---|---|---|---|---|",
    ]
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(
                Path(folder) / "cluster", [DOCKER_AND_PYTHON] * count, engine_has=IMAGE
            )
            code = Path(folder, "code")
            code.mkdir()
            (code / "say.sh").write_text(SCRIPT)
            (code / "sleep.sh").write_text("exec sleep 600\n")
            job = {"image": IMAGE, "workdir": str(code), "command": ["say.sh"]}
            try:
                cluster.up()
                hosts = cluster.hosts_yaml(Path(folder, "hosts.yaml"), **job)
                home = cluster.home_at(Path(folder, "state"))
                rows += [f"| {count} {row}" for row in on_cluster(cluster, home, hosts)]
            finally:
                cluster.down()
    return [*rows, "", f"Load average at the end: {os.getloadavg()[0]:.0f}."]


def on_cluster(cluster: Cluster, home: Home, hosts: Path, rounds: int = 2) -> Iterator[str]:
    """Yield the ratio of each round, and the seconds of the last round."""

    def row(what: str, done: Watched, bar: str = "") -> str:
        say(f"{what}: {done.seconds:.1f} s, {done.cost}")
        assert done.code == 0, done.out + done.err
        return f"| {what} | {done.seconds:.1f} | | {bar} | {done.cost} |"

    start = partial(ddpctl, home)
    yield row("push of a script", start("push", hosts))
    yield row("push again", start("push", hosts))
    for node in cluster.nodes:
        put = ["sh", "-c", "mkdir -p ~/code && cat > ~/code/say.sh"]
        cluster.exec(node, *put, user=USER, stdin=SCRIPT.encode())
    by_hand(cluster)  # an engine's first containers are slower
    firsts, totals = [], []
    for _ in range(rounds):
        hand_first, hand_total = by_hand(cluster)
        time.sleep(REST)
        launched = start("launch", hosts, "--no-check", "--no-push")
        assert launched.code == 0, launched.err
        firsts.append(launched.first / hand_first)
        totals.append((launched.seconds - NAP) / (hand_total - NAP))
        say(
            f"launch {launched.first:.1f} {launched.seconds:.1f}, hand {hand_first:.1f} {hand_total:.1f}"
        )
        time.sleep(REST)
    for what, seconds, theirs, ratios, bar in (
        ("launch, to the last first line", launched.first, hand_first, firsts, "<= 1.5"),
        (
            "launch, without the ranks' own 3 s",
            launched.seconds - NAP,
            hand_total - NAP,
            totals,
            "",
        ),
    ):
        times = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        yield f"| {what} | {seconds:.1f} | {theirs:.1f}: {times} times | {bar} | {launched.cost} |"
    yield row("check", start("check", hosts), "<= 20 s")
    code = home.start(
        "launch", hosts, "--no-check", "--no-push", "--detach", "--", "sleep.sh"
    ).wait()
    assert code == 0
    yield row("ps", start("ps", hosts))
    yield row("kill", start("kill", hosts))


def by_hand(cluster: Cluster) -> tuple[float, float]:
    """Return the seconds until the last rank's first line, and until the end."""
    options = ["--user=1000:1000", "--env=HOME=/tmp", "--stop-timeout=60"]
    options += [f"--volume=/home/{USER}/code:/workspace", "--workdir=/workspace"]
    began = time.monotonic()
    read, write = os.pipe()
    with os.fdopen(write, "wb") as out:
        logins = hand.start_all(cluster, 1, 29500, options, ["say.sh"], out)
    ranks, first = set(), 0.0
    with os.fdopen(read, "rb") as lines:
        for line in lines:
            if match := FIRST.search(line):
                ranks.add(match[1])
                first = time.monotonic() - began
    assert [login.wait() for login in logins] == [0] * len(logins)
    assert len(ranks) == len(logins)
    return first, time.monotonic() - began


# --- simulated hosts ----------------------------------------------------------------------------


def simulated_rows(counts: Sequence[int]) -> list[str]:
    rows = ["| hosts | what | seconds | the launcher |", "|---|---|---|---|"]
    for count in counts:
        speaking = {"SCALE_LOG_SECONDS": "1", "SCALE_LOG_RANKS": "1", "SCALE_LOG_RATE": "10"}
        with (
            tempfile.TemporaryDirectory() as name,
            simulated(Path(name), count, **speaking) as hosts,
        ):
            file = hosts.hosts_file()
            launch = ("launch", file, "--no-check", "--no-push")
            for words in (
                ("launch", file, "--dry-run"),
                *([("check", file)] if count <= MOST_CHECKED else []),
                launch,  # ranks write for one second, two seconds after the start
                (*launch, "--detach"),  # ranks run until they are killed
                ("ps", file),
                ("kill", file),
            ):
                began = time.monotonic()
                done = watch(hosts.ddpctl(*words), began)
                what = " ".join(str(word) for word in words if word != file)
                verdict = "" if done.code == 0 else f" (exit {done.code})"
                rows.append(f"| {count} | {what}{verdict} | {done.seconds:.1f} | {done.cost} |")
                say(f"{rows[-1]}\n{done.err[-1000:]}")
    return rows


def star_rows(counts: Sequence[int]) -> list[str]:
    rows = [
        "| nodes | all joined | heartbeats/s | node 0 | a failure is known everywhere | its end, too |",
        "|---|---|---|---|---|---|",
    ]
    for count in counts:
        star = measure_star(count)
        rows.append(
            f"| {count} | {star.joined:.1f} s | {star.heartbeats:.0f} | {star.cpu:.0%} of a core, "
            f"{star.memory} MB | {star.told:.2f} s | {star.over:.2f} s |"
        )
        say(rows[-1])
    return rows


def logs_rows(
    counts: Sequence[int], ranks: int = 8, rate: int = 1000, seconds: int = 20
) -> list[str]:
    rows = [
        "| hosts x ranks x lines/s | lines | written in | followed in | logs that differ | the launcher |",
        "|---|---|---|---|---|---|",
    ]
    for count in counts:
        how = {"SCALE_LOG_SECONDS": seconds, "SCALE_LOG_RANKS": ranks, "SCALE_LOG_RATE": rate}
        generate = {key: str(value) for key, value in how.items()}
        with (
            tempfile.TemporaryDirectory() as name,
            simulated(Path(name), count, **generate) as hosts,
        ):
            words = ("launch", hosts.hosts_file(ranks), "--no-check", "--no-push")
            with Path(name, "out").open("wb") as out:
                process, began = hosts.ddpctl(*words, stdout=out), time.monotonic()
                done = watch(process, began)
            ended = time.time()
            assert done.code == 0, done.err
            spoken = json.loads(Path(name, "spoken").read_text())
            (logs,) = Path(name).glob("state/ddpctl/runs/*/logs")
            differ = sum(not is_whole(logs, node, ranks, rate, seconds) for node in range(count))
            lines = count * ranks * rate * seconds
            rows.append(
                f"| {count} x {ranks} x {rate} | {lines:,} | {spoken['seconds']:.1f} s "
                f"| {ended - spoken['began']:.1f} s | {differ} | {done.cost} |"
            )
            say(f"{rows[-1]}\n{done.err[-500:]}")
    return rows


def is_whole(logs: Path, node: int, ranks: int, rate: int, seconds: int) -> bool:
    """Return whether a node's log equals its ranks' output, byte for byte."""
    parts = expected_log(node, ranks, rate, seconds)
    with (logs / f"node-{node}.log").open("rb") as file:
        return all(file.read(len(part)) == part for part in parts) and not file.read()


def push_rows(counts: Sequence[int], rate: int = 10, megabytes: int = 15) -> list[str]:
    """Push to each number of hosts, and to the largest number with one dead and one slow host."""
    count = max(counts)
    limit = megabytes * 8 / rate
    rows = ["| push | seconds | x the link's time |", "|---|---|---|"]

    def row(what: str, seconds: float) -> None:
        rows.append(f"| {what} | {seconds:.1f} | {seconds / limit:.2f} |")
        say(rows[-1])

    with network(count, rate) as net:
        data = big_file(net, megabytes)
        for hosts in counts:
            done = push(Net(net.folder, hosts, rate, []), data)
            assert done.code == 0, done.document
            row(f"{hosts} hosts", done.seconds)
            net.clean()
        dead, slow = count // 2, count // 4
        net.limit(slow, rate // 10)
        cut_at = done.seconds / 2
        done = push(net, data, during=lambda: (time.sleep(cut_at), net.cut(dead)))
        what = (
            f"{count} hosts, {dead} cut off after {cut_at:.0f} s and {slow} at a tenth of the speed"
        )
        row(f"{what}: the others", done.slowest(without=[dead, slow]))
    return rows


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


PARTS: dict[str, tuple[Callable[[Sequence[int]], list[str]], Sequence[int]]] = {
    "cluster": (cluster_rows, (48, 64)),
    "simulated": (simulated_rows, (256, 1000)),
    "star": (star_rows, (64, 256, 1000)),
    "logs": (logs_rows, (64,)),
    "push": (push_rows, (8, 64)),
}

if __name__ == "__main__":
    main()
