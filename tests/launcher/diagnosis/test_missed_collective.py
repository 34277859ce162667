"""Which ranks missed a collective, from what each rank called last."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.diagnosis.missed_collective import missed_collective
from launcher.supervisor.events import Collective, Collectives, End, EndState, RankExit

REDUCE = "all_reduce"


def evidence(calls: Mapping[int, tuple[int, tuple[str, ...]]], ranks: int = 4) -> Evidence:
    """Return two nodes with two ranks each. calls: number and names of the newest calls, by rank."""
    nodes = []
    for node in range(2):
        newest = tuple(
            Collective(rank, "nccl 0", *calls[rank])
            for rank in (2 * node, 2 * node + 1)
            if rank in calls
        )
        nodes.append(NodeEvidence(node, f"gpu{node}", events=[(1.0, Collectives(newest))]))
    return Evidence(ranks, nodes)


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        (
            {0: (6, (REDUCE,)), 1: (6, (REDUCE,)), 2: (5, (REDUCE,)), 3: (6, (REDUCE,))},
            "rank 2 (gpu1) did not call all_reduce, in which ranks 0-1,3 waited "
            "(call 6 of their process group)",
        ),
        (  # some have called more without waiting, as DistributedDataParallel does
            {0: (9, (REDUCE, "broadcast", REDUCE, REDUCE)), 1: (6, (REDUCE,)), 2: (6, (REDUCE,))},
            "ranks 1-2 (gpu[0-1]) did not call broadcast, in which rank 0 waited "
            "(call 7 of their process group)",
        ),
        (
            {0: (6, (REDUCE,)), 1: (6, ("barrier",)), 2: (6, (REDUCE,)), 3: (6, (REDUCE,))},
            "rank 1 (gpu0) called barrier, but ranks 0,2-3 called all_reduce "
            "(call 6 of their process group)",
        ),
        ({0: (5, (REDUCE,)), 1: (5, (REDUCE,))}, ""),
        ({0: (500, (REDUCE,)), 1: (5, (REDUCE,))}, "rank 1 (gpu0) did not call a collective"),
        ({0: (6, (REDUCE,)), 3: (5, (REDUCE,))}, "rank 3 (gpu1) did not call all_reduce"),
        ({0: (6, (REDUCE,)), 1: (5, ())}, ""),
        ({}, ""),
    ],
)
def test_the_ranks_that_others_waited_for_are_named(
    calls: Mapping[int, tuple[int, tuple[str, ...]]], words: str
) -> None:
    said = missed_collective(evidence(calls))
    assert said.startswith(words) if words else said == ""


def test_a_rank_that_cannot_be_is_ignored() -> None:
    assert missed_collective(evidence({0: (6, (REDUCE,)), 3: (5, (REDUCE,))}, ranks=3)) == ""


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("RuntimeError: Timed out waiting 1800000ms for recv operation to complete", True),
        ("ValueError: bad input", False),  # no rank waited for another
    ],
)
def test_the_first_failure_names_them_if_a_collective_timed_out(line: str, named: bool) -> None:
    given = evidence({0: (6, (REDUCE,)), 2: (5, (REDUCE,))})
    exit = RankExit(0, 0, 1, time=2.0, last_lines=(line,))
    given.nodes[0].events = [*given.nodes[0].events, (2.0, exit)]
    for node in given.nodes:
        node.events = [*node.events, (3.0, End(EndState.FAILED, 1))]
    failure = first_failure(given)
    assert failure and failure.rank == 0
    assert ("rank 2 (gpu1) did not call all_reduce" in failure.message) is named
