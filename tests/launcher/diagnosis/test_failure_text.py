"""The text with everything that is known about a failed attempt."""

from __future__ import annotations

from launcher.diagnosis.evidence import Evidence, NodeEvidence, before_restart
from launcher.diagnosis.failure_text import MOST_RANKS, failure_text
from launcher.diagnosis.first_failure import first_failure
from launcher.logs.log_entry import OutputLines
from launcher.supervisor.events import (
    Collective,
    Collectives,
    End,
    EndState,
    Frame,
    GpuLoad,
    RankExit,
    RankStacks,
    Reason,
    RestartInPlace,
    Stack,
)

TIMED_OUT = "RuntimeError: Timed out waiting 1800000ms for recv operation to complete"
PLACE = (Frame("/workspace/train.py", 29, "main", "lock.acquire()"),)


def evidence() -> Evidence:
    calls = {rank: Collective(rank, "gloo 0", 6 - rank, ("all_reduce",)) for rank in range(2)}
    exits = (RankExit(0, 0, 1, time=2.0, last_lines=(TIMED_OUT,)), RankExit(1, 0, None, time=2.1))
    nodes = [
        NodeEvidence(
            rank,
            f"gpu{rank}",
            events=[
                (1.0, RankStacks((Stack(rank, 0, 7, "S", frames=PLACE),))),
                (2.0, exits[rank]),
                (2.5, Collectives((calls[rank],))),
                (3.0, End(EndState.FAILED if rank == 0 else EndState.STOPPED, 1)),
            ],
            newest_lines=[
                OutputLines(f"gpu{rank}", rank, 1.5, rank, [b"line %d of rank %d" % (n, rank)])
                for n in range(50)
            ],
        )
        for rank in range(2)
    ]
    nodes[1].gpus_before = [GpuLoad(98, 60000, 81920, 1980, 61, 0)]
    nodes[1].gpus_after = [GpuLoad(0, 5, 81920, 345, 40, 3)]
    nodes[1].kernel = ["[ 7.0] NVRM: Xid (PCI:0000:07:00): 48, DBE"]
    return Evidence(2, nodes)


def test_it_has_collectives_stacks_gpus_kernel_messages_and_last_lines() -> None:
    given = evidence()
    failure = first_failure(given)
    assert failure
    head, collectives, stacks, first, second = failure_text(failure, given).split("\n\n")
    assert failure.headline in head and failure.remedy in head and failure.kind in head
    assert "rank 1 (gpu1) did not call all_reduce" in collectives
    assert "train.py:29 in main: lock.acquire()" in stacks
    assert (
        "node 0 (gpu0)" in first
        and "ddpctl is not allowed to read them" in first
        and "GPUs at" not in first
    )
    assert f"last lines of rank 0, exit code 1:\n  {TIMED_OUT}" in first
    assert "0: 98% use, 60000 of 81920 MiB, 1980 MHz, 61 C, 0 uncorrectable ECC" in second
    assert "0: 0% use, 5 of 81920 MiB, 345 MHz, 40 C, 3 uncorrectable ECC errors" in second
    assert "Xid (PCI:0000:07:00): 48" in second
    assert second.strip().endswith("  line 49 of rank 1") and second.count("of rank 1") == 21


def test_a_gpu_that_no_longer_answers_is_reported_and_long_lines_are_cut() -> None:
    given = evidence()
    given.nodes[1].gpus_after = []
    given.nodes[1].kernel = ["x" * 10_000]
    failure = first_failure(given)
    assert failure
    text = failure_text(failure, given)
    assert "GPUs after the failure: nvidia-smi did not respond" in text
    assert max(map(len, text.splitlines())) < 1000


def test_the_failure_before_a_restart_in_place_has_a_text_of_its_own() -> None:
    given = evidence()
    restart = RestartInPlace(1, 2, True, Reason("exception", "raised ValueError", 0))
    given.nodes[0].events = [
        *given.nodes[0].events[:-1],
        (4.0, restart),
        (5.0, RankExit(0, 0, 1, time=5.0, last_lines=("ValueError: second",))),
        (6.0, End(EndState.FAILED, 1)),
    ]
    given.nodes[1].events = [
        *given.nodes[1].events[:-1],
        (4.0, restart),
        (6.0, End(EndState.STOPPED, 1)),
    ]
    texts = []
    for part in (before_restart(given, 1), given):
        failure = first_failure(part)
        assert failure
        texts.append(failure_text(failure, part))
    before, after = texts
    assert TIMED_OUT in before and "did not call all_reduce" in before and "second" not in before
    assert "ValueError: second" in after and TIMED_OUT not in after


def test_a_host_that_reports_very_many_ranks_fills_no_text() -> None:
    exits = [(1.0, RankExit(rank, 0, 1)) for rank in range(5000)]
    evil = NodeEvidence(
        0, "evil", events=exits, newest_lines=[OutputLines("evil", 0, 1.0, 0, [b"a line"])]
    )
    evidence = Evidence(1, [evil])
    failure = first_failure(evidence)
    assert failure
    text = failure_text(failure, evidence)
    assert text.count("last lines of rank") == MOST_RANKS and "a line" in text
