"""Node 0's decisions, from statuses and times: no process, no socket."""

from __future__ import annotations

from typing import Any

import pytest
from supervisors import spec, status, why

from launcher.supervisor.coordinator import (
    RECONNECT,
    SETTLE,
    SILENT_START,
    STACKS_TIMEOUT,
    Coordinator,
)
from launcher.supervisor.events import Phase, Reason

START = 1000.0  # time.monotonic() when node 0 starts


def coordinator(**given: Any) -> Coordinator:
    return Coordinator(spec(**given), START)


def decided(made: Coordinator, now: float) -> Reason | None:
    made.decide(now)
    return made.decision.verdict


def joined(now: float = START, **given: Any) -> Coordinator:
    """Two nodes, both running."""
    made = coordinator(**given)
    for rank in (0, 1):
        made.report(status(rank), now)
    assert decided(made, now) is None
    return made


def test_the_earliest_reason_is_the_verdict_for_all() -> None:
    made = joined()
    made.report(status(0, reason=why("rank-failed", 0, 7.0), phase=Phase.STOPPED), START)
    made.report(status(1, reason=why("rank-failed", 1, 6.0)), START)
    verdict = decided(made, START)
    assert verdict and verdict.node_rank == 1 and not made.decision.over
    made.report(status(1, phase=Phase.STOPPED), START)
    assert decided(made, START) is verdict and made.decision.over, (
        "the verdict stays, and all have stopped"
    )


def test_all_nodes_done_is_over_without_a_verdict() -> None:
    made = joined()
    for rank in (0, 1):
        assert not made.decision.over
        made.report(status(rank, phase=Phase.DONE, alive=0), START)
        made.decide(START)
    assert made.decision.over and made.decision.verdict is None


def test_a_silent_node_is_lost_after_the_peer_timeout() -> None:
    made = joined()
    made.report(status(0), START + 8)
    assert decided(made, START + 8) is None, "a short silence is nothing"
    verdict = decided(made, START + 8.1)
    assert verdict and (verdict.kind, verdict.node_rank) == ("host-lost", 1)
    assert "no heartbeat from its supervisor for 8 s" in verdict.message
    made.report(status(0, phase=Phase.STOPPED), START + 9)
    made.decide(START + 9)
    assert made.decision.over, "node 0 does not wait for a node that it has lost"


def test_a_closed_connection_may_come_back_for_a_moment() -> None:
    made = joined()
    made.contacts[1].closed = START
    assert decided(made, START + RECONNECT) is None
    made.report(status(1), START + RECONNECT)
    assert decided(made, START + 6) is None
    made.contacts[1].closed = START + 6
    assert decided(made, START + 6 + RECONNECT) is None
    verdict = decided(made, START + 6.1 + RECONNECT)
    assert verdict and (verdict.kind, verdict.node_rank) == ("host-lost", 1)


def test_a_node_that_has_stopped_may_go() -> None:
    made = joined()
    made.report(status(1, phase=Phase.STOPPED), START)
    made.contacts[1].closed = START
    assert decided(made, START + 60) is None


def test_silence_while_this_process_slept_is_forgiven() -> None:
    made = joined()
    made.contacts[1].closed = START
    made.contacts[1].forgive(START + 60)
    assert decided(made, START + 60) is None


def test_a_node_that_never_joins_is_named() -> None:
    made = coordinator(nnodes=3, start_timeout=60.0)
    made.report(status(0), START)
    made.report(status(2), START + 60)
    assert decided(made, START + 59) is None
    verdict = decided(made, START + 60)
    assert verdict and (verdict.kind, verdict.node_rank) == ("never-joined", 1)
    assert verdict.message == "node 1 (gpu2) did not join within 60 s"


def test_after_a_failure_node_0_waits_for_late_nodes_until_they_must_have_joined() -> None:
    made = coordinator(start_timeout=60.0)
    made.report(status(0, reason=why("start", 0, 1.0), phase=Phase.STOPPED, alive=0), START)
    made.decide(START + 59.9)
    assert made.decision.verdict and not made.decision.over
    made.decide(START + 60.0)
    assert made.decision.over


def test_a_taken_control_port_is_reported() -> None:
    made = coordinator(control_port=29400)
    made.report(status(0), START)
    made.port_error = OSError(98, "Address already in use")
    assert decided(made, START + SETTLE) is None
    verdict = decided(made, START + SETTLE + 0.1)
    assert verdict and verdict.kind == "port-in-use" and "port 29400" in verdict.message


@pytest.mark.parametrize(("stuck", "ends"), [(9.9, False), (10.0, True)])
def test_an_early_exit_ends_the_run_only_while_the_others_stand_still(
    stuck: float, ends: bool
) -> None:
    """A rank that still writes its last checkpoint is not stuck, and gets its time."""
    made = joined()
    early = why("early-exit", 1, 1.0)
    made.report(status(1, alive=1, early=early, stuck=12.0), START)
    made.report(status(0, stuck=stuck), START)
    assert decided(made, START) is None
    made.contacts[1].heard = START + 10
    assert decided(made, START + 10) == (early if ends else None)


def hanging(made: Coordinator, *, stacks: bool) -> None:
    for rank in (0, 1):
        made.report(status(rank, log_age=30.0, begun=True, stacks=stacks), START)


def test_a_hung_run_ends_once_the_stacks_are_written() -> None:
    made = joined(hang_timeout=30.0)
    hanging(made, stacks=False)
    assert decided(made, START) is None and made.decision.stacks
    hanging(made, stacks=True)
    verdict = decided(made, START)
    assert verdict and (verdict.kind, verdict.message) == ("hung", "no progress for 30 s")


def test_stacks_that_do_not_come_are_waited_for_only_so_long() -> None:
    made = joined(hang_timeout=30.0)
    hanging(made, stacks=False)
    assert decided(made, START) is None
    assert decided(made, START + STACKS_TIMEOUT - 0.1) is None
    verdict = decided(made, START + STACKS_TIMEOUT)
    assert verdict and (verdict.kind, verdict.rank) == ("hung", None)


def test_progress_takes_back_the_suspicion() -> None:
    made = joined(hang_timeout=30.0)
    hanging(made, stacks=False)
    assert decided(made, START) is None and made.decision.stacks
    made.report(status(1, log_age=0.1), START)
    assert decided(made, START) is None and not made.decision.stacks


def test_the_trainers_progress_counts_more_than_its_output() -> None:
    made = joined(hang_timeout=30.0)
    for rank, age in ((0, 40.0), (1, None)):
        hanging_node = status(rank, log_age=0.1, progress_age=age, begun=True, stacks=True)
        made.report(hanging_node, START)
    verdict = decided(made, START)
    assert verdict and verdict.kind == "hung" and "no progress for 40 s" in verdict.message


def test_a_long_silent_start_is_not_a_hang() -> None:
    made = joined(hang_timeout=30.0)
    for age, kind in ((SILENT_START - 1, None), (SILENT_START, "hung")):
        for rank in (0, 1):
            made.report(status(rank, log_age=age, stacks=True), START)
        verdict = decided(made, START)
        assert (verdict and verdict.kind) == kind
