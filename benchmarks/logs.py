"""Follow ranks that print as fast as they can: python -m benchmarks.logs [--lines 200000] [--write]

On the simulated cluster, from the first line shown to the last: `ddpctl launch` compared with the
same containers started by hand, with `ssh HOST docker logs -f` on all hosts into one file. A second
run cuts five SSH connections along the way; no line may be lost, doubled or torn.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.needs import need_cluster
from benchmarks.results import write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import TRAINER_IMAGE, USER, Cluster, Home, docker, until
from talking import SCRIPT, Heard, Progress, heard, peak

RANKS, NPROC = 6, 2
TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds
TIMEOUT = 240.0  # seconds for one way of following


@dataclass(frozen=True)
class Measured:
    """Values measured between the first and the last line shown."""

    seconds: float
    cpu: float  # CPU seconds of the following processes
    machine: float  # CPU seconds of all cores, including the simulated hosts
    peak: int  # KiB
    heard: Heard


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=200_000, metavar="N", help="lines per rank")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("logs")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), args.lines)
        try:
            bench.up()
            ours, hand = [], []
            for _ in range(args.rounds):
                ours.append(bench.by_ddpctl())
                hand.append(bench.by_hand())
                print(ours[-1], hand[-1], sep="\n", file=sys.stderr, flush=True)
            broken = bench.by_ddpctl(cuts=5)
        finally:
            bench.cluster.down()
    text = report(args.lines, ours, hand, broken)
    print(text)
    if args.write:
        write_section("Logs", "python -m benchmarks.logs", text)
    assert {m.heard for m in (*ours, broken)} == {Heard(0, 0, 0, 0)}


class Bench:
    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.cluster = Cluster(folder / "cluster")
        self.out = folder / "out"

    def up(self) -> None:
        cluster = self.cluster
        cluster.up()
        code = self.folder / "code"
        code.mkdir()
        (code / "talk.py").write_text(SCRIPT)
        self.home: Home = cluster.home_at(self.folder / "state")
        self.hosts = cluster.hosts_yaml(
            self.folder / "hosts.yaml", workdir=str(code), nproc_per_node=NPROC
        )
        done = self.home.ddpctl("push", self.hosts, timeout=200)
        assert done.returncode == 0, done.stderr
        for node in cluster.nodes:
            put = ["sh", "-c", "mkdir -p ~/code && cat > ~/code/talk.py"]
            cluster.exec(node, *put, user=USER, stdin=SCRIPT.encode())

    def by_ddpctl(self, cuts: int = 0) -> Measured:
        bursts = ["80", "0.1"] if cuts else ["1", "0"]
        words = ["launch", self.hosts, "--no-check", "--no-push", "--", "talk.py"]
        with self.out.open("wb") as out, (self.folder / "err").open("wb") as err:
            process = self.home.start(*words, str(self.count), *bursts, stdout=out, stderr=err)
        progress = Progress(self.out)

        def cut(at: int) -> None:
            mark = RANKS * self.count * (at + 1) // (cuts + 3)
            until(lambda: progress.look() > mark, TIMEOUT, "more lines")
            assert self.cluster.hang_up(self.cluster.nodes[at % 3]) > 0

        acts = [lambda at=at: cut(at) for at in range(cuts)]
        measured = self._follow([process.pid], progress, acts)
        assert process.wait(TIMEOUT) == 0, (self.folder / "err").read_text()
        self._sweep()
        return Measured(*measured, self._heard())

    def by_hand(self) -> Measured:
        """Follow the engines' own logs, which are not rotated here."""
        options = ["-F", str(self.cluster.home / ".ssh" / "config"), "-o", "BatchMode=yes"]
        options += ["-o", f"UserKnownHostsFile={self.cluster.home}/.ssh/known_hosts"]
        options += ["-i", str(self.cluster.home / ".ssh" / "id_ed25519"), "-l", USER]
        logins = [["ssh", *options, self.cluster.addresses[node]] for node in self.cluster.nodes]
        starts = []
        for rank, login in enumerate(logins):
            run = ["docker", "run", "-d", "--name=talk", "--network=host", "--init"]
            run += ["--user=1000:1000", "--env=HOME=/tmp", "--env=OMP_NUM_THREADS=1"]
            run += [f"--volume=/home/{USER}/code:/workspace", "--workdir=/workspace"]
            run += [TRAINER_IMAGE, "torchrun", f"--nnodes={len(logins)}", f"--node-rank={rank}"]
            master = self.cluster.addresses[self.cluster.nodes[0]]
            run += [f"--nproc-per-node={NPROC}", f"--master-addr={master}", "--master-port=29500"]
            run += ["talk.py", str(self.count), "1", "0"]
            starts.append(subprocess.Popen([*login, shlex.join(run)], stdout=subprocess.DEVNULL))
        assert [start.wait() for start in starts] == [0] * len(starts)
        self.out.write_bytes(b"")
        with self.out.open("ab") as out:
            follow = ["docker", "logs", "-f", "talk"]
            followers = [
                subprocess.Popen([*login, *follow], stdout=out, stderr=subprocess.DEVNULL)
                for login in logins
            ]
        progress = Progress(self.out)
        measured = self._follow([follower.pid for follower in followers], progress, [])
        for follower in followers:
            follower.wait(TIMEOUT)
        self._sweep()
        return Measured(*measured, self._heard())

    def _follow(
        self, pids: list[int], progress: Progress, acts: list[Callable[[], None]]
    ) -> tuple[float, float, float, int]:
        """Return seconds, CPU of the processes, CPU of the machine, and peak memory of a process in KiB.

        Times are from the first line to the last.
        """
        until(progress.look, TIMEOUT, "the first line", pause=0.01)
        before = sum(map(cpu_of, pids)), cpu_of_machine()
        for act in acts:
            act()
        enough = RANKS * self.count
        until(
            lambda: progress.look() >= enough or not any(map(runs, pids)),
            TIMEOUT,
            "the last line",
            pause=0.02,
        )
        after, most = (sum(map(cpu_of, pids)), cpu_of_machine()), max(map(peak, pids))
        progress.close()
        return progress.moved - progress.began, after[0] - before[0], after[1] - before[1], most

    def _heard(self) -> Heard:
        return heard(self.out.read_bytes(), RANKS, self.count)

    def _sweep(self) -> None:
        for node in self.cluster.nodes:
            self.cluster.exec(node, "sh", "-c", "docker rm -f $(docker ps -aq)")


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK


def cpu_of_machine() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return sum(map(int, (*fields[1:4], *fields[6:8]))) * TICK  # neither idle nor waiting


def report(count: int, ours: list[Measured], hand: list[Measured], broken: Measured) -> str:
    total = RANKS * count
    best, other = min(ours, key=lambda m: m.seconds), min(hand, key=lambda m: m.seconds)
    ratio = other.seconds / best.seconds
    rates = [", ".join(f"{total / m.seconds:,.0f}" for m in each) for each in (ours, hand)]
    engine = docker("version", "--format={{.Server.Version}}")
    load = os.getloadavg()[0]
    rows = [
        f"3 simulated hosts x {NPROC} ranks x {count:,} lines, {len(ours)} rounds in turns, the best",
        f"of each; Docker {engine}, hosts and launcher on the same cores, load {load:.1f} at the end.",
        f"All rounds, lines/s: ddpctl {rates[0]}; by hand {rates[1]}.",
        "",
        "| what | ddpctl | `ssh HOST docker logs -f` | bar |",
        "|---|---|---|---|",
        f"| lines/s, first line to last | {total / best.seconds:,.0f} | {total / other.seconds:,.0f} "
        f"| ratio {ratio:.2f} (>= 1) |",
        f"| CPU of the follower | {best.cpu:.1f} s | {other.cpu:.1f} s | |",
        f"| CPU of everything, hosts and ranks included | {best.machine:.1f} s | {other.machine:.1f} s | |",
        f"| lost, doubled, torn | {words(best)} | {words(other)} | 0, 0, 0 |",
        f"| the same with five SSH cuts | {words(broken)} | | 0, 0, 0 |",
        f"| peak memory of the launcher | {max(m.peak for m in (*ours, broken)) / 1024:.0f} MB | "
        "| < 150 MB |",
    ]
    return "\n".join(rows)


def words(measured: Measured) -> str:
    heard = measured.heard
    return f"{heard.lost}, {heard.doubled}, {heard.torn}"


if __name__ == "__main__":
    main()
