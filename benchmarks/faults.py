"""What breaks, how soon all nodes have stopped, and whether the right one was named.

`python -m benchmarks.faults [NUMBER ...] [--write]` on the simulated cluster: three hosts with two ranks
each that all-reduce in a loop. Beside ddpctl stands plain torchrun, started by hand with `docker run`
on every host, with the same script and the same faults; it is waited for CAP seconds. It names no
cause across hosts, so only its time to a stop of all ranks is shown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import write_section

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import TRAINER_IMAGE, Cluster, Home, until
from faults import FAULTS, LOOP, PORT, VICTIM, Fault, Run, launch, small_disk, suffer, verdict

CAP = 60.0  # seconds
HEAD = "| fault | ddpctl: all ended | bar | named first | plain torchrun |\n|---|---|---|---|---|\n"


def with_ddpctl(cluster: Cluster, fault: Fault, folder: Path) -> tuple[float, str]:
    """(seconds from the fault to the launcher's exit, what was wrong with its verdict)."""
    home = cluster.home_at(folder / "state")
    with small_disk(cluster, fault):
        run = launch(cluster, home, folder, fault)
        seconds = suffer(run, fault)
        return seconds, verdict(run, fault)


def by_hand(cluster: Cluster, fault: Fault, folder: Path) -> float | None:
    """Seconds from the fault until no rank runs on a host that can be seen; None beyond CAP."""
    out = folder / "out"
    master = cluster.addresses[cluster.nodes[0]]
    followers = []
    with out.open("wb") as stdout:
        for rank, node in enumerate(cluster.nodes):
            where = ["--nnodes", "3", "--node-rank", str(rank), "--nproc-per-node", "2"]
            where += ["--master-addr", master, "--master-port", str(PORT), "/tmp/loop.py"]
            cluster.exec(node, "sh", "-c", "cat > /tmp/loop.py", stdin=LOOP.encode())
            argv = ["docker", "run", "--network=host", "--init", "-v/tmp/loop.py:/tmp/loop.py"]
            argv += ["-v/tmp:/checkpoints", "--entrypoint", "torchrun", TRAINER_IMAGE, *where]
            command = [*argv, fault.deed, str(3 if fault.rank is None else fault.rank)]
            start = ["docker", "exec", cluster.container(node), *command]
            followers.append(subprocess.Popen(start, stdout=stdout, stderr=subprocess.STDOUT))
        run = Run(cluster, Home(folder, folder), followers[0], out, out)
        run.working()
        if fault.before:
            fault.before(run)
        (fault.act or Run.done_by_script)(run)
        ended = [node for node in cluster.nodes if fault.act is None or node != VICTIM]
        try:
            until(lambda: not any(cluster.ranks(node) for node in ended), CAP, "all have ended")
        except AssertionError:
            return None
        return time.time() - run.fault_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="faults by number; all by default")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    chosen = parser.parse_args()
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="faults-")))
    rows = []
    try:
        cluster.up()
        for fault in FAULTS:
            if chosen.numbers and fault.number not in chosen.numbers:
                continue
            cluster.reset()
            seconds, wrong = with_ddpctl(cluster, fault, Path(tempfile.mkdtemp()))
            cluster.reset()
            plain = None
            if fault.deed != "disk":  # by hand there is no small disk to fill
                plain = by_hand(cluster, fault, Path(tempfile.mkdtemp()))
            named = f"no: {wrong}" if wrong else f"yes, {fault.kinds[0]}"
            other = f"{plain:.1f} s" if plain is not None else f"> {CAP:.0f} s"
            other = "not tried" if fault.deed == "disk" else other
            row = f"| {fault.number}. {fault.name} | {seconds:.1f} s | {fault.within:g} s |"
            rows.append(f"{row} {named} | {other} |")
            print(rows[-1], flush=True)
    finally:
        cluster.down()
    if chosen.write:
        write_section("Faults", "python -m benchmarks.faults", HEAD + "\n".join(rows))


if __name__ == "__main__":
    main()
