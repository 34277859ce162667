"""Real faults: whatever dies, every node stops within seconds, and the first cause is named."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, Home, until
from faults import (
    FAULTS,
    PORT,
    VICTIM,
    Fault,
    cut_ssh,
    launch,
    let_go_of_port,
    lines_are_whole,
    small_disk,
    steps,
    suffer,
    take_port,
    verdict,
    write_job,
)

# 2 and 4 differ from 3 by a rank's exit code only: tests/launcher/diagnosis/test_first_failure.py
TESTED = [fault for fault in FAULTS if fault.number not in (2, 4)]
BUSY = 4  # allows for a busy machine; benchmarks/faults.py checks the bar itself

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", TESTED, ids=lambda fault: f"{fault.number}-{fault.name}")
def test_a_fault_ends_all_and_is_named(
    fault: Fault, cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    # a rank's own fault needs no third host, and a host's needs no second rank
    hosts, nproc = (cluster.nodes, 1) if fault.act else (cluster.nodes[:2], 2)
    with small_disk(cluster, fault):
        run = launch(cluster, home, tmp_path, fault, hosts=hosts, nproc_per_node=nproc)
        seconds = suffer(run, fault)
        assert verdict(run, fault) == "", run.err.read_text()
        assert run.notes["code"] == 1, run.err.read_text()
        assert seconds < BUSY * fault.within, run.err.read_text()
        reachable = [n for n in cluster.nodes if fault.act is None or n != VICTIM]
        assert not any(cluster.ranks(node) for node in reachable)


def test_12_a_master_port_that_is_taken_after_the_check_is_named(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """A stranger binds the port as soon as the run's container exists."""
    file = write_job(cluster, tmp_path, "wait", None)
    with let_go_of_port(cluster):
        launcher = home.start("launch", file, "--no-check")
        take_port(cluster)
        _, err = launcher.communicate(timeout=120)
    assert launcher.returncode in (1, 3), err.decode()
    assert str(PORT) in err.decode() and "node0" in err.decode()
    assert not any(cluster.ranks(node) for node in cluster.nodes[1:])


def test_16_a_stalled_ssh_connection_loses_no_line_and_stops_nothing(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    fault = Fault(16, "SSH stalled for 20 s", (), 0, deed="talk", rank=None)
    run = launch(cluster, home, tmp_path, fault, hosts=cluster.nodes[:2])
    cluster.exec(VICTIM, "pkill", "-STOP", "sshd")
    time.sleep(20)  # what the bar says
    cluster.exec(VICTIM, "pkill", "-CONT", "sshd")
    mark = max(steps(run, 3)) + 100
    until(lambda: max(steps(run, 3)) > mark, 60, "lines come again")
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert len(steps(run, 3)) > 100
    assert lines_are_whole(run), "each line once, in order"


def test_16_ssh_that_is_cut_for_20_s_loses_no_line_either(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """Connections end, as they may not after a mere stall, and new ones are dropped."""
    fault = Fault(16, "SSH cut for 20 s", (), 0, deed="talk", rank=None)
    run = launch(cluster, home, tmp_path, fault, hosts=cluster.nodes[:2])
    cut_ssh(run, 20)
    mark = max(steps(run, 0)) + 60
    until(lambda: max(steps(run, 3)) > mark, 90, "lines come again")
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert f"lost contact with {VICTIM}" in run.err.read_text()
    assert lines_are_whole(run), "each line once, in order"


def test_a_host_that_only_its_peers_cannot_reach_is_named(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """All three report that another one is gone; SSH works, so the launcher gets all reports."""
    peers = [cluster.addresses[node] for node in cluster.nodes if node != VICTIM]
    rules = [f"INPUT -s {peer} -j DROP" for peer in peers]
    rules += [f"OUTPUT -d {peer} -j DROP" for peer in peers]

    def all_rules(how: str) -> None:
        command = "; ".join(f"iptables {how} {rule}" for rule in rules)
        cluster.exec(VICTIM, "sh", "-c", command)

    run = launch(
        cluster, home, tmp_path, Fault(17, "peers only", (), 20, rank=None), nproc_per_node=1
    )
    all_rules("-I")
    try:
        assert run.wait() == 1, run.err.read_text()
    finally:
        all_rules("-D")
    assert (run.failure["host"], run.failure["kind"]) == (VICTIM, "network-cut"), run.failure
