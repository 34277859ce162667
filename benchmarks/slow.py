"""Measure how soon a throttled node is named as slow, and whether a healthy one is.

    python -m benchmarks.slow [--write]

On the simulated cluster, three hosts train with one rank each. In three runs nothing happens to them. In
the fourth, a CPU quota throttles one host. `ps --per-node` and the panel are read continuously. Bar: named
within 60 s, and never in a healthy run. The hosts share this machine's cores, so run it on an idle machine:
on a busy one, the other ranks wait for a core about as long as the throttled one waits for its quota.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.needs import need_cluster
from benchmarks.results import commit, write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import DOCKER, Cluster, until

TITLE = "Slow nodes"
HEAD = """\
Three simulated hosts x 1 rank train ResNet-8 on two cores that also serve everything else; the second
column is the machine's load average at the end of the run, to which the ranks add three. In the last run,
a CPU quota of {quota:.0%} of a core throttles the second host. Seconds from then until it is named.

| run | load | watched | named by `ps --per-node` | named by the panel | bar |
|---|---|---|---|---|---|
"""
VICTIM = "node1"
QUOTA = 0.1  # of a core
WATCHED = 75.0  # seconds of a healthy run
LONGEST = 120.0  # seconds to wait for the name of the throttled host
TRAINER = ["-m", "trainer", "--data", "synthetic", "--synthetic-train", "1024", "--threads", "1"]
TRAINER += ["--model", "resnet8", "--epochs", "100000", "--batch-size", "16", "--print-every", "20"]
SET_QUOTA = """
cd /sys/fs/cgroup
if [ -e cgroup.controllers ]; then echo "$1 100000" > "$CGROUP_PARENT/cpu.max"
else echo "$1" > "cpu/$CGROUP_PARENT/cpu.cfs_quota_us"; fi
"""
SLOW = re.compile(r"slow: rank (\d+)")


@dataclass
class Watched:
    """What was named as slow, and after how many seconds. named: the rank, by "ps" or "panel"."""

    named: dict[str, str]
    after: dict[str, float]
    seconds: float
    load: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("slow")
    folder = Path(tempfile.mkdtemp(prefix="slow-"))
    cluster = Cluster(folder / "cluster", [DOCKER] * 3, "slow-")
    rows = []
    try:
        cluster.up()
        for number in (1, 2, 3, 4):
            run = watch(cluster, folder / str(number), throttled=number == 4)
            rows.append(row(run, number))
            print(rows[-1], flush=True)
            cluster.reset()
    finally:
        cluster.down()
    if args.write:
        command = f"python -m benchmarks.slow --write` at `{commit()}"
        write_section(TITLE, command, HEAD.format(quota=QUOTA) + "\n".join(rows))


def row(run: Watched, number: int) -> str:
    cells = [
        f"rank {run.named[by]}, {run.after[by]:.0f} s" if by in run.named else "nobody"
        for by in ("ps", "panel")
    ]
    name, bar = ("throttled", "rank 1, 60 s") if number == 4 else (f"healthy {number}", "nobody")
    return f"| {name} | {run.load:.0f} | {run.seconds:.0f} s | {' | '.join(cells)} | {bar} |"


def watch(cluster: Cluster, folder: Path, *, throttled: bool) -> Watched:
    """Train, throttle a host if told to, and watch `ps --per-node` and the panel until both name one."""
    folder.mkdir()
    home = cluster.home_at(folder / "state")
    file = cluster.hosts_yaml(folder / "hosts.yaml", nproc_per_node=1, command=TRAINER)
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (40, 160))
    how = {"stdin": follower, "stdout": follower, "stderr": follower}
    launcher = home.start("launch", file, "--no-check", env={"TERM": "xterm-256color"}, **how)
    os.close(follower)
    screen = Screen(leader)
    screen.start()
    ps = lambda: home.ddpctl("ps", file, "--per-node").stdout  # noqa: E731
    until(lambda: "step " in home.ddpctl("ps", file).stdout, 120, "it trains", 1)
    quota = ["sh", "-c", SET_QUOTA, "sh"]
    try:
        if throttled:
            cluster.exec(VICTIM, *quota, str(round(QUOTA * 100000)))
        began, screen.named = time.monotonic(), None
        run = Watched({}, {}, 0.0, 0.0)
        longest = LONGEST if throttled else WATCHED
        while run.seconds < longest and not (throttled and len(run.named) == 2):
            now = {"ps": SLOW.search(ps()), "panel": screen.named}
            run.seconds = time.monotonic() - began
            for by, found in now.items():
                if found and by not in run.named:
                    run.named[by], run.after[by] = found[1], run.seconds
        run.load = os.getloadavg()[0]
        return run
    finally:
        if throttled:
            cluster.exec(VICTIM, *quota, "-1")
        home.ddpctl("kill", "-y")
        launcher.wait(60)
        os.close(leader)


class Screen(threading.Thread):
    """A command on a terminal whose screen is read. named: the first slow rank on the screen."""

    def __init__(self, leader: int) -> None:
        super().__init__(daemon=True)
        self.leader, self.named = leader, None

    def run(self) -> None:
        tail = ""
        while True:
            try:
                data = os.read(self.leader, 1 << 16).decode(errors="replace")
            except OSError:  # the command has ended
                return
            self.named = self.named or SLOW.search(tail + data)
            tail = data[-40:]


if __name__ == "__main__":
    main()
