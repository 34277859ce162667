"""Launch and kill at random moments: is anything left over, and was anything foreign touched?

    python -m benchmarks.rounds [--rounds 100] [--seed 0] [--seconds 300] [--write]

On the simulated cluster, every host also runs a foreign container and a foreign process. A round
starts `ddpctl launch`. At a random moment in its first ten seconds, the launcher gets SIGKILL,
SIGTERM or SIGINT, or `ddpctl kill` runs while it is alive. Then come `ddpctl kill --all` and `kill
--strays`. After each round, the hosts' own engines and /proc show what is left. `--write` adds the
rounds to those in RESULTS.md, so you can run a hundred in pieces, each with its own seed.
"""

from __future__ import annotations

import argparse
import collections
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.needs import need_cluster
from benchmarks.results import PATH, write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import Cluster
from rounds import LONGEST, Round, play, strangers, write_job

TITLE = "Rounds of launch and kill"
ROW = re.compile(
    r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (.*) \|$", re.MULTILINE
)
HEAD = """\
Three simulated hosts, a run of one rank each, hit at a random moment of its first {longest:.0f} s; a
container and a process of somebody else run on every host. Leftovers were searched for with the hosts'
own engines and in /proc, not with ddpctl.

**{rounds} rounds: {strays} strays, {touched} foreign containers or processes touched.**

| seed | rounds | with a container by then | strays | foreign touched | unconfirmed kills | interruptions |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no round after this many seconds"
    )
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("rounds")
    folder = Path(tempfile.mkdtemp(prefix="rounds-"))
    cluster = Cluster(folder / "cluster")
    try:
        cluster.up()
        played = play_all(cluster, folder, args.rounds, args.seed, args.seconds)
    finally:
        cluster.down()
    print(row_of(args.seed, played))
    if args.write:
        write_row(args.seed, row_of(args.seed, played))


def play_all(cluster: Cluster, folder: Path, rounds: int, seed: int, seconds: float) -> list[Round]:
    chance, began = random.Random(seed), time.monotonic()
    home, file = cluster.home_at(folder / "state"), write_job(cluster, folder)
    played: list[Round] = []
    with strangers(cluster) as others:
        while len(played) < rounds and time.monotonic() - began < seconds:
            played.append(play(cluster, home, file, chance, others))
            print(len(played), played[-1], flush=True)
    return played


def row_of(seed: int, played: Sequence[Round]) -> str:
    interruptions = collections.Counter(each.interruption for each in played)
    said = ", ".join(
        f"{count} {interruption}" for interruption, count in sorted(interruptions.items())
    )
    strays = sum(len(each.strays) for each in played)
    touched = sum(len(each.touched) for each in played)
    unconfirmed = sum(any(each.kills) for each in played)
    started = sum(each.started for each in played)
    return f"| {seed} | {len(played)} | {started} | {strays} | {touched} | {unconfirmed} | {said} |"


def write_row(seed: int, row: str) -> None:
    text = PATH.read_text() if PATH.exists() else ""
    section = text.partition(f"## {TITLE}\n")[2].partition("\n## ")[0]
    rows = {int(found[1]): found[0] for found in ROW.finditer(section)} | {seed: row}
    numbers = [[int(n) for n in ROW.findall(each)[0][:6]] for each in rows.values()]
    totals = [sum(column) for column in zip(*numbers, strict=True)]
    head = HEAD.format(longest=LONGEST, rounds=totals[1], strays=totals[3], touched=totals[4])
    table = "\n".join(rows[key] for key in sorted(rows))
    write_section(TITLE, "python -m benchmarks.rounds --write", head + table)


if __name__ == "__main__":
    main()
