"""What many hosts cost: python -m benchmarks.scale [--hosts 16 48 64] [--write]

Every host is a container with an sshd and a Docker Engine of its own, and all of them and the launcher
share this machine's cores. The image has Python and a stand-in for torchrun that starts shell scripts,
so that what is measured is the work of starting, not of importing torch. `launch` is compared with the
same containers started by hand, one `ssh HOST docker run` per host, all at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks import hand
from benchmarks.needs import need_cluster
from benchmarks.push import Net, big_file, network, push
from benchmarks.results import write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import USER, Cluster, Home, docker

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
# What `check` asks of torch.
TORCH = """
__version__ = "0"
class version: cuda = None
class cuda: device_count = staticmethod(lambda: 0)
"""
DISTRIBUTED = "def is_nccl_available(): return False\n"
NAP = 3.0  # seconds that a rank lives after its first line
SCRIPT = f'echo "first line of $RANK"; exec sleep {NAP:g}\n'
FIRST = re.compile(rb"first line of (\d+)")


@dataclass
class Watched:
    """A run of ddpctl: how long it took, what it printed, and the most that its process used."""

    code: int = 0
    out: str = ""
    err: str = ""
    seconds: float = 0.0
    first: float = 0.0  # seconds to the first line of the last rank
    cpu: float = 0.0  # seconds, with the programs that it started
    peak: int = 0  # MB
    threads: int = 0
    files: int = 0  # open descriptors

    @property
    def cost(self) -> str:
        return f"{self.cpu:.1f} s CPU, {self.peak} MB, {self.threads} threads, {self.files} files"


def watch(process: subprocess.Popen[bytes], began: float) -> Watched:
    """Follow a process with pipes on stdout and stderr to its end."""
    seen = Watched()
    outputs: dict[str, list[bytes]] = {"out": [], "err": []}

    def read(name: str, stream: IO[bytes]) -> None:
        for line in stream:
            outputs[name].append(line)
            if FIRST.search(line):
                seen.first = time.monotonic() - began

    assert process.stdout and process.stderr
    readers = [
        threading.Thread(target=read, args=("out", process.stdout)),
        threading.Thread(target=read, args=("err", process.stderr)),
    ]
    for reader in readers:
        reader.start()
    folder = Path("/proc", str(process.pid))
    while True:
        try:
            status = (folder / "status").read_text()
            seen.files = max(seen.files, len(os.listdir(folder / "fd")))
        except OSError:
            break
        found = dict(re.findall(r"(VmHWM|Threads):\s+(\d+)", status))
        if "VmHWM" not in found:  # it has ended
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


@dataclass
class Round:
    """One number of hosts."""

    hosts: int
    check: Watched = field(default_factory=Watched)
    launch: Watched = field(default_factory=Watched)
    hand_first: float = 0.0  # seconds
    hand: float = 0.0  # seconds
    ps: Watched = field(default_factory=Watched)
    kill: Watched = field(default_factory=Watched)
    push: Watched = field(default_factory=Watched)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 48, 64], metavar="N")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("scale")
    build_image()
    rounds = [measure(count) for count in args.hosts]
    text = report(rounds)
    print(text)
    if args.write:
        write_section("Scale", f"python -m benchmarks.scale --hosts {args.hosts}", text)


def build_image() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_text(RECIPE)
        Path(folder, "torchrun").write_text(TORCHRUN)
        Path(folder, "torchrun").chmod(0o755)
        Path(folder, "torch").mkdir()
        Path(folder, "torch", "__init__.py").write_text(TORCH)
        Path(folder, "torch", "distributed.py").write_text(DISTRIBUTED)
        build = ["docker", "build", "--quiet", "--network=host", "-t", IMAGE, folder]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"DOCKER_BUILDKIT": "0"})


def measure(count: int) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "cluster", count, engine_has=IMAGE)
        code = Path(folder, "code")
        code.mkdir()
        (code / "say.sh").write_text(SCRIPT)
        try:
            say(f"{count} hosts: starting")
            cluster.up()
            say("up")
            job = {"image": IMAGE, "workdir": str(code), "command": ["say.sh"]}
            hosts = cluster.hosts_yaml(Path(folder, "hosts.yaml"), **job)
            return measure_on(cluster, cluster.home_at(Path(folder, "state")), hosts)
        finally:
            cluster.down()


def measure_on(cluster: Cluster, home: Home, hosts: Path) -> Round:
    found = Round(len(cluster.nodes))
    assert_ok(ddpctl(home, "push", hosts))
    found.push = assert_ok(ddpctl(home, "push", hosts))
    say(f"push again {found.push.seconds:.1f} s, {found.push.cost}")
    found.check = ddpctl(home, "check", hosts)
    say(f"check {found.check.code} {found.check.seconds:.1f} s, {found.check.cost}")
    if found.check.code:
        say(found.check.out + found.check.err)
    for node in cluster.nodes:
        put = ["sh", "-c", "mkdir -p ~/code && cat > ~/code/say.sh"]
        cluster.exec(node, *put, user=USER, stdin=SCRIPT.encode())
    found.hand_first, found.hand = by_hand(cluster)
    say(f"by hand {found.hand_first:.1f} s, {found.hand:.1f} s")
    found.launch = assert_ok(ddpctl(home, "launch", hosts, "--no-check", "--no-push"))
    say(f"launch {found.launch.first:.1f} s, {found.launch.seconds:.1f} s, {found.launch.cost}")
    say(found.launch.err)
    return found


def by_hand(cluster: Cluster) -> tuple[float, float]:
    """Seconds to the first line of the last rank, and to the end."""
    options = ["--user=1000:1000", "--env=HOME=/tmp", "--stop-timeout=60"]
    options += [f"--volume=/home/{USER}/code:/workspace", "--workdir=/workspace"]
    began = time.monotonic()
    out_read, out_write = os.pipe()
    with os.fdopen(out_write, "wb") as out:
        logins = hand.start_all(cluster, 1, 29500, options, ["say.sh"], out)
    ranks, first = set(), 0.0
    with os.fdopen(out_read, "rb") as lines:
        for line in lines:
            if match := FIRST.search(line):
                ranks.add(match[1])
                first = time.monotonic() - began
    assert [login.wait() for login in logins] == [0] * len(logins)
    assert len(ranks) == len(logins)
    return first, time.monotonic() - began


def assert_ok(watched: Watched) -> Watched:
    assert watched.code == 0, watched.out + watched.err
    return watched


def push_rows(count: int = 64, rate: int = 10, megabytes: int = 30) -> list[str]:
    """A push over links of `rate` Mbit/s: to 8 hosts, to all, and to all with one dead and one slow."""
    limit = megabytes * 8 / rate
    rows = ["| push | seconds | x the link's time |", "|---|---|---|"]

    def row(what: str, seconds: float) -> None:
        rows.append(f"| {what} | {seconds:.1f} | {seconds / limit:.2f} |")
        say(rows[-1])

    with network(count, rate) as net:
        data = big_file(net, megabytes)
        for hosts in (8, count):
            done = push(Net(net.folder, hosts, rate, []), data)
            assert done.code == 0, done.document
            row(f"{hosts} hosts", done.seconds)
            net.clean()
        dead, slow = count // 2, count // 4
        net.limit(slow, rate // 10)
        cut_at = done.seconds / 2
        done = push(net, data, during=lambda: (time.sleep(cut_at), net.cut(dead)))
        what = f"{count} hosts, {dead} cut off after {cut_at:.0f} s and {slow} at a tenth of the speed"
        row(f"{what}: the others", done.slowest(without=[dead, slow]))
    return rows


def report(rounds: Sequence[Round]) -> str:
    return "\n".join(map(str, rounds))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
