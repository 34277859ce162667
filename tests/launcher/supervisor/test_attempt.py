"""Two nodes: whatever happens to one, all end, and all know the same reason."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import supervisors
from quick_torchrun import python_with_quick_torchrun
from supervisors import WITH_TORCH, Attempt, Node, attempt, until

from launcher.supervisor.coordinator import SETTLE
from launcher.supervisor.events import End, RankExit, Stopping


def test_a_failed_rank_ends_all_nodes(tmp_path: Path) -> None:
    with attempt(tmp_path, 2, ["record", "3"], python=WITH_TORCH) as made:
        assert made.wait() == [143, 1]
        assert made.survivors() == []
    first, second = made.nodes
    assert (first.end.state, second.end.state) == ("stopped", "failed")
    assert first.reason == second.reason
    assert (first.reason.rank, first.reason.host) == (3, "gpu2")
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("exception", 3)
    assert cause.headline == "rank 3 (gpu2, local_rank 1) raised KeyError: 'lost'"


@contextlib.contextmanager
def held(node: Node, until_reaped: list[int]) -> Iterator[None]:
    """Its supervisor sees nothing of what is done inside, until torchrun has reaped these ranks."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
        until(lambda: not any(Path("/proc", str(pid)).exists() for pid in until_reaped), 20)
    finally:
        os.kill(node.pid, signal.SIGCONT)


def test_the_first_rank_is_named_even_if_all_were_gone_at_the_next_look(tmp_path: Path) -> None:
    """The supervisor is held while a rank dies and torchrun terminates the other one."""
    with attempt(tmp_path, 1, ["work"], python=WITH_TORCH) as made:
        pids = made.ranks_running()
        with held(made.nodes[0], until_reaped=[pids[0], pids[1]]):
            os.kill(pids[1], signal.SIGKILL)
        made.wait()
    assert (made.nodes[0].reason.rank, made.nodes[0].reason.host) == (1, "gpu1")
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("killed", 1)


def test_a_rank_that_succeeded_unnoticed_is_not_blamed_for_a_later_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "NPROC", 3)
    with attempt(tmp_path, 1, ["gentle"]) as made:
        pids = made.ranks_running()
        with held(made.nodes[0], until_reaped=list(pids.values())):
            os.kill(pids[0], signal.SIGTERM)
            until(lambda: not Path("/proc", str(pids[0])).exists(), 20)
            os.kill(pids[1], signal.SIGKILL)
        made.wait()
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("killed", 1)


def test_successes_that_the_supervisor_did_not_see_are_successes(tmp_path: Path) -> None:
    """The supervisor is held until torchrun has reaped its ranks and exited."""
    with attempt(tmp_path, 1, ["gentle"]) as made:
        pids = made.ranks_running()
        with held(made.nodes[0], until_reaped=[pids[0], pids[1]]):
            for pid in pids.values():
                os.kill(pid, signal.SIGTERM)
        assert made.wait() == [0]
    assert [event.exit_code for _, event in made.nodes[0].events(RankExit)] == [0, 0]
    assert made.cause() is None


def test_a_stopped_rank_is_found(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["stop", "1"], peer_timeout=1.0, failure_grace=0.5) as made:
        made.wait()
        assert made.survivors() == []
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("stopped", 1)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_supervisor_is_missed(tmp_path: Path, victim: int) -> None:
    with attempt(tmp_path, 2, ["wait"]) as made:
        made.ranks_running()
        os.kill(made.nodes[victim].pid, signal.SIGKILL)
        made.wait()
        until(lambda: made.survivors() == [], 10)
    survivor = made.nodes[1 - victim]
    assert (survivor.reason.kind, survivor.reason.node_rank) == ("host-lost", victim)
    assert made.nodes[victim].events(End) == []
    cause = made.cause(**{f"node_{victim}": {"exit_code": 137}})
    assert cause is not None
    assert (cause.kind, cause.node_rank) == ("container-killed", victim)


@pytest.mark.slow
def test_a_node_0_that_starts_after_its_peer_has_failed_stops_at_once(tmp_path: Path) -> None:
    made = Attempt(tmp_path)
    late, early = made.add(2, ["record", "2"])
    try:
        early.start()
        until(lambda: bool(early.events(Stopping)), 20)
        failed = time.monotonic()
        until(lambda: time.monotonic() > failed + SETTLE + 1.5, 20)
        late.start()
        assert late.wait(20) == 143
        assert early.wait(20) == 1
        assert made.survivors() == []
    finally:
        made.close()
    assert (late.end.state, late.reason.rank) == ("stopped", 2)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_node_whose_file_system_is_slow_is_not_lost(tmp_path: Path, rank: int) -> None:
    with attempt(tmp_path, 2, ["slow-disk", str(rank)], peer_timeout=2.0) as made:
        made.wait()
    assert [(node.reason.kind, node.reason.rank) for node in made.nodes] == [
        ("rank-failed", rank)
    ] * 2


def test_sigterm_to_one_node_stops_all(tmp_path: Path) -> None:
    with attempt(tmp_path, 2, ["gentle"]) as made:
        made.ranks_running()
        os.kill(made.nodes[1].pid, signal.SIGTERM)
        assert made.wait() == [143, 143]
        assert made.survivors() == []
    for rank in range(4):
        assert made.nodes[rank // 2].lines(rank)[-1] == b"saved"


def test_a_container_that_somebody_restarts_does_not_run_its_attempt_again(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["wait"]) as made:
        made.ranks_running()
        [node] = made.nodes
        os.kill(node.pid, signal.SIGTERM)
        made.wait()
        before = (node.folder / "journal").read_bytes()
        node.start()
        assert made.wait() == [1]
    assert (node.folder / "journal").read_bytes() == before


def test_a_kill_that_reaches_one_node_first_is_a_cancellation_everywhere(tmp_path: Path) -> None:
    with attempt(tmp_path, 2, ["wait"]) as made:
        made.ranks_running()
        for node in made.nodes:
            (node.folder / "cancelled").touch()
        os.kill(made.nodes[1].pid, signal.SIGTERM)
        made.wait()
    assert [node.end.state for node in made.nodes] == ["cancelled"] * 2


def test_at_the_time_limit_the_run_is_cancelled(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["wait"], time_limit=1.0) as made:
        assert made.wait() == [143]
        assert made.survivors() == []
    [node] = made.nodes
    assert (node.end.state, node.reason.kind) == ("cancelled", "time-limit")
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("time-limit", None)


def test_a_rank_that_exits_early_ends_the_ranks_that_wait_for_it(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["zero", "1"], early_exit_timeout=1.0, failure_grace=0.5) as made:
        made.wait()
        assert made.survivors() == []
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank, cause.exit_code) == ("early-exit", 1, 0)


LEAVES_A_PROCESS = """
import os, subprocess
if os.environ["RANK"] == "2":
    subprocess.Popen(["sleep", "60"], start_new_session=True)
"""
CANNOT_KILL = """
import os, runpy, sys
kill = os.kill
def refused(pid, number):
    if number == 9:
        raise PermissionError
    kill(pid, number)
os.kill = refused
sys.argv = sys.argv[-2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_run_succeeds_although_a_process_that_it_has_left_cannot_be_killed(
    tmp_path: Path,
) -> None:
    """Like a process of root, or one that waits for a disk. The other node must not call this one lost."""
    (tmp_path / "train.py").write_text(LEAVES_A_PROCESS)
    (tmp_path / "cannot_kill.py").write_text(CANNOT_KILL)
    quick, python = python_with_quick_torchrun(tmp_path), tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {quick} {tmp_path}/cannot_kill.py "$@"\n')
    python.chmod(0o755)
    made = Attempt(tmp_path, python=str(python), script=tmp_path / "train.py")
    nodes = made.add(2, [], peer_timeout=4.0)
    try:
        made.start()
        assert made.wait() == [0, 0]
        [left] = made.survivors()
    finally:
        made.close()
    assert nodes[1].lines(None)[-1] == b"ddpctl: could not kill these processes: %d" % left
