"""Whatever dies, every node stops within seconds, and the first cause is named. For real."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import TRAINER_IMAGE, Cluster, Home, until
from faults import (
    FAULTS,
    PORT,
    VICTIM,
    Fault,
    Run,
    kill_launcher_then_container,
    launch,
    small_disk,
    suffer,
    verdict,
    write_job,
)

BUSY = 4  # a machine that does other things too; benchmarks/faults.py is what holds the bar itself

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.number}-{fault.name}")
def test_a_fault_ends_all_and_is_named(
    fault: Fault, cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    with small_disk(cluster, fault):
        run = launch(cluster, home, tmp_path, fault)
        seconds = suffer(run, fault)
        assert verdict(run, fault) == "", run.err.read_text()
        assert run.notes["code"] == 1, run.err.read_text()
        assert seconds < BUSY * fault.within, run.err.read_text()
        reachable = [n for n in cluster.nodes if fault.act is None or n != VICTIM]
        assert not any(cluster.ranks(node) for node in reachable)


def test_12_a_master_port_that_is_taken_after_the_check_is_named(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """A stranger binds it the moment that the run's container exists."""
    bind = "import os,socket,time\nwhile not os.path.exists('/flag/go'): time.sleep(0.01)\n"
    bind += f"held = socket.create_server(('', {PORT}))\ntime.sleep(600)"
    stranger = ["docker", "run", "-d", "--network=host", "-v/tmp:/flag", "--entrypoint=python3"]
    cluster.exec("node0", "sh", "-c", "rm -f /tmp/go")
    cluster.exec("node0", *stranger, TRAINER_IMAGE, "-c", bind)
    file = write_job(cluster, tmp_path, "wait", None)
    launcher = home.start("launch", file, "--no-check")
    created = "until docker ps -aq --filter label=io.ddpctl.run-id | grep -q .; do :; done"
    cluster.exec("node0", "sh", "-c", f"{created}; touch /tmp/go")
    _, err = launcher.communicate(timeout=120)
    cluster.exec("node0", "rm", "-f", "/tmp/go")
    assert launcher.returncode in (1, 3), err.decode()
    assert str(PORT) in err.decode() and "node0" in err.decode()
    assert not any(cluster.ranks(node) for node in cluster.nodes[1:])


def test_15_the_launcher_was_killed_before_and_attach_tells_the_story(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    fault = next(fault for fault in FAULTS if fault.number == 5)
    run = launch(cluster, home, tmp_path, fault)
    kill_launcher_then_container(run)
    others = [node for node in cluster.nodes if node != VICTIM]
    until(lambda: not any(cluster.ranks(node) for node in others), 5 * BUSY, "all stop")
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
        assert len(seen) > 100
        assert seen == list(range(1, len(seen) + 1)), "each line once, in order"


def steps(run: Run, rank: int) -> list[int]:
    ending = f"of rank {rank}"
    return [int(line.split()[-4]) for line in run.lines() if line.endswith(ending)]
