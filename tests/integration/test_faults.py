"""Whatever dies, every node stops within seconds, and the first cause is named. For real."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, Home, until
from faults import FAULTS, VICTIM, Fault, kill_launcher_then_container, launch, suffer, verdict

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}-{fault.name}")
def test_a_fault_ends_all_and_is_named(
    fault: Fault, cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    if fault.deed == "disk":
        small = "mkdir -p /home/ddp/.ddpctl/runs && mount -t tmpfs -o size=400m,mode=777 t $_"
        cluster.exec(VICTIM, "sh", "-c", small)
    try:
        run = launch(cluster, home, tmp_path, fault)
        seconds = suffer(run, fault)
        assert verdict(run, fault) == "", run.err.read_text()
        assert run.notes["code"] == 1, run.err.read_text()
        assert seconds < fault.within, run.err.read_text()
        reachable = [n for n in cluster.nodes if fault.act is None or n != VICTIM]
        assert not any(cluster.ranks(node) for node in reachable)
    finally:
        if fault.deed == "disk":
            cluster.exec(VICTIM, "umount", "-l", "/home/ddp/.ddpctl/runs")


def test_15_the_launcher_was_killed_before_and_attach_tells_the_story(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    fault = next(fault for fault in FAULTS if fault.number == 5)
    run = launch(cluster, home, tmp_path, fault)
    kill_launcher_then_container(run)
    others = [node for node in cluster.nodes if node != VICTIM]
    until(lambda: not any(cluster.ranks(node) for node in others), 5, "the other nodes stop")
    told = home.ddpctl("attach", timeout=30)
    assert told.returncode == 1, told.stderr
    assert verdict(run, fault) == ""
    assert VICTIM in told.stderr


def test_16_a_stalled_ssh_connection_loses_no_line_and_stops_nothing(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    fault = Fault(16, "SSH stalled for 20 s", (), 0, deed="talk", rank=None)
    run = launch(cluster, home, tmp_path, fault)
    cluster.exec(VICTIM, "pkill", "-STOP", "sshd")
    time.sleep(20)  # what the bar says
    cluster.exec(VICTIM, "pkill", "-CONT", "sshd")
    mark = max(steps(run, 3)) + 100
    until(lambda: max(steps(run, 3)) > mark, 60, "lines come again")
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    for rank in range(6):
        seen = steps(run, rank)
        assert seen == list(range(1, len(seen) + 1)), "each line once, in order"


def steps(run, rank: int) -> list[int]:  # type: ignore[no-untyped-def]
    ending = f"of rank {rank}"
    return [int(line.split()[-4]) for line in run.lines() if line.endswith(ending)]
