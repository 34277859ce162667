"""What ddpctl adds to a launch: python -m benchmarks.launch [--rounds 3] [--write]

On the simulated cluster, with image, dataset and code on every host already: from the command to the
first line of every rank, against the same containers started by hand with `ssh HOST docker run`, all
hosts at once, the two in turns. Then what the end, the memory and `--help` cost.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO

from benchmarks.results import write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import TRAINER_IMAGE, USER, Cluster, Home, docker

# One write: by hand both ranks of a node share a pipe, and print's pieces would mix in it.
SCRIPT = "import os\nos.write(1, f\"first line of {os.environ['RANK']}\\n\".encode())\n"
FIRST = re.compile(rb"first line of (\d+)")
NPROC = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--hosts", type=int, default=3, metavar="N")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    args = parser.parse_args()
    with running(args.hosts) as (cluster, home, hosts):
        ours, ends, peaks, hand = [], [], [], []
        for _ in range(args.rounds):
            first, end, peak = by_ddpctl(cluster, home, hosts)
            ours.append(first)
            ends.append(end)
            peaks.append(peak)
            hand.append(by_hand(cluster))
    text = report(args.hosts, ours, hand, ends, peaks, [help_time() for _ in range(5)])
    print(text)
    if args.write:
        write_section("Launch", "python -m benchmarks.launch", text)


@contextmanager
def running(count: int) -> Iterator[tuple[Cluster, Home, Path]]:
    """Hosts with everything on them, code as both ways of starting find it."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "cluster", count)
        try:
            cluster.up()
            code = Path(folder, "code")
            code.mkdir()
            (code / "first.py").write_text(SCRIPT)
            job = {"workdir": str(code), "nproc_per_node": NPROC, "command": ["first.py"]}
            hosts = cluster.hosts_yaml(Path(folder, "hosts.yaml"), **job)
            home = cluster.home_at(Path(folder, "state"))
            done = home.ddpctl("push", hosts, timeout=300)
            assert done.returncode == 0, done.stderr
            for node in cluster.nodes:
                put = ["sh", "-c", "mkdir -p ~/code && cat > ~/code/first.py"]
                cluster.exec(node, *put, user=USER, stdin=SCRIPT.encode())
            yield cluster, home, hosts
        finally:
            cluster.down()


def by_ddpctl(cluster: Cluster, home: Home, hosts: Path) -> tuple[float, float, int]:
    """Seconds to the last rank's first line, from the last container's end to our exit; peak in KiB."""
    began = time.monotonic()
    process = home.start("launch", hosts, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    first = seconds_to_all([process.stdout], len(cluster.nodes) * NPROC, began)
    _, status, usage = os.wait4(process.pid, 0)
    ended = time.time()
    assert status == 0, f"ddpctl launch ended with status {status}"
    last = max(finished(cluster, node) for node in cluster.nodes)
    for node in cluster.nodes:
        cluster.exec(node, "sh", "-c", "docker rm -f $(docker ps -aq)")
    return first, ended - last, usage.ru_maxrss


def finished(cluster: Cluster, node: str) -> float:
    """Unix seconds; the hosts have this machine's clock."""
    [container] = cluster.containers(node)
    return datetime.fromisoformat(container["State"]["FinishedAt"]).timestamp()


def by_hand(cluster: Cluster) -> float:
    """The same torchrun in the same image, `ssh HOST docker run` on all hosts at once."""
    master = cluster.addresses[cluster.nodes[0]]
    options = ["-F", str(cluster.home / ".ssh" / "config"), "-o", "BatchMode=yes"]
    options += ["-o", f"UserKnownHostsFile={cluster.home}/.ssh/known_hosts"]
    options += ["-i", str(cluster.home / ".ssh" / "id_ed25519"), "-l", USER]
    began = time.monotonic()
    logins = []
    for rank, node in enumerate(cluster.nodes):
        run = ["docker", "run", "--rm", "--network=host", "--init", "--shm-size=16g"]
        run += ["--user=1000:1000", "--env=HOME=/tmp", "--env=PYTHONUNBUFFERED=1"]
        run += ["--env=OMP_NUM_THREADS=1", "--env=GLOO_SOCKET_IFNAME=eth0"]
        run += [f"--volume=/home/{USER}/code:/workspace", "--workdir=/workspace", TRAINER_IMAGE]
        run += ["torchrun", f"--nnodes={len(cluster.nodes)}", f"--node-rank={rank}"]
        run += [f"--nproc-per-node={NPROC}", f"--master-addr={master}", "--master-port=29500"]
        login = ["ssh", *options, cluster.addresses[node], shlex.join([*run, "first.py"])]
        logins.append(subprocess.Popen(login, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    streams = [login.stdout for login in logins if login.stdout is not None]
    seconds = seconds_to_all(streams, len(cluster.nodes) * NPROC, began)
    assert [login.wait() for login in logins] == [0] * len(logins)
    return seconds


def seconds_to_all(streams: list[IO[bytes]], ranks: int, began: float) -> float:
    """Reads the streams to their ends; the seconds until each of `ranks` ranks had said something."""
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
    ours: list[float],
    hand: list[float],
    ends: list[float],
    peaks: list[int],
    helps: list[float],
) -> str:
    ratio = statistics.median(ours) / statistics.median(hand)
    engine = docker("version", "--format={{.Server.Version}}")
    load = os.getloadavg()[0]
    rows = [
        f"{hosts} simulated hosts x {NPROC} ranks, {len(ours)} rounds in turns, medians; Docker {engine},",
        f"load {load:.1f} at the end. All rounds: ddpctl {seconds(ours)}; by hand {seconds(hand)}.",
        "",
        "| what | ddpctl | by hand | bar |",
        "|---|---|---|---|",
        f"| command to the first line of every rank | {statistics.median(ours):.2f} s "
        f"| {statistics.median(hand):.2f} s | ratio {ratio:.2f} (<= 1.10) |",
        f"| last container's end to the exit | {statistics.median(ends):.2f} s | | <= 1 s |",
        f"| peak memory of the launcher | {max(peaks) / 1024:.0f} MB | | < 100 MB |",
        f"| `ddpctl --help` | {statistics.median(helps) * 1000:.0f} ms | | < 300 ms |",
    ]
    return "\n".join(rows)


def seconds(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) + " s"


if __name__ == "__main__":
    main()
