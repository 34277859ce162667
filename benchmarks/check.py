"""Measure how long `ddpctl check` takes: python -m benchmarks.check [--hosts 16] [--write]

All simulated hosts share this machine's cores, and each starts a test container that imports torch,
so real hosts are faster. Bar: 30 s for 16 hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.needs import need_cluster
from benchmarks.results import write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import DOCKER, Cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[3, 16], metavar="N")
    parser.add_argument("--write", action="store_true", help="write into RESULTS.md")
    args = parser.parse_args()
    need_cluster("check")
    rows = [
        f"All hosts on one machine of {os.cpu_count()} cores; a healthy cluster.",
        "",
        "| hosts | seconds | bar |",
        "|---|---|---|",
    ]
    for count in args.hosts:
        bar = "30 s" if count == 16 else ""
        rows.append(f"| {count} | {seconds(count):.1f} | {bar} |")
    text = "\n".join(rows)
    print(text)
    if args.write:
        write_section("Check", "python -m benchmarks.check", text)


def seconds(count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "cluster", [DOCKER] * count)
        try:
            cluster.up()
            hosts = cluster.hosts_yaml(Path(folder, "hosts.yaml"), command=["train.py"])
            home = cluster.home_at(Path(folder, "state"))
            began = time.monotonic()
            done = home.ddpctl("check", hosts, "--json", timeout=600)
            took = time.monotonic() - began
            assert done.returncode == 0, done.stdout + done.stderr
            assert len(json.loads(done.stdout)["hosts"]) == count
            return took
        finally:
            cluster.down()


if __name__ == "__main__":
    main()
