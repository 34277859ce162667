"""The first failure of a run that hung, from the stacks in its nodes' journals."""

from __future__ import annotations

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.supervisor.events import Event, Frame, RankStacks, Reason, Stack, Stopping

DISTRIBUTED = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


WAITS = (
    Frame("/workspace/train.py", 31, "main", "dist.all_reduce(x)"),
    Frame(DISTRIBUTED, 3252, "all_reduce", "work.wait()"),
)
SLEEPS = (Frame("/workspace/train.py", 29, "main", "time.sleep(3600)"),)


def hung(late: set[int], *, seen: bool = True) -> Evidence:
    """Three nodes with two ranks each; `late` ones sleep, the others wait for them."""
    reason = Reason("hung", "no progress for 30 s", 0, "node0")
    nodes = []
    for node in range(3):
        stacks = RankStacks(
            tuple(
                Stack(rank, rank % 2, 9, "S", frames=SLEEPS if rank in late else WAITS)
                for rank in (2 * node, 2 * node + 1)
            )
        )
        events: list[tuple[float, Event]] = [(99.0, stacks)] if seen else []
        events.append((100.0 + node, Stopping(reason)))
        nodes.append(NodeEvidence(node, f"node{node}", events=events))
    return Evidence(6, nodes)


def test_the_straggler_is_the_first_failure() -> None:
    failure = first_failure(hung({3}))
    assert failure is not None
    assert (failure.kind, failure.host, failure.node_rank) == ("hung", "node1", 1)
    assert (failure.rank, failure.local_rank) == (3, 1)
    assert failure.headline == (
        "rank 3 (node1, local_rank 1) is not where the other ranks are: at train.py:29 in "
        "main: time.sleep(3600); no progress for 30 s"
    )
    assert failure.excerpt.splitlines() == [
        "rank 3 on node1:",
        "  train.py:29 in main: time.sleep(3600)",
        "ranks 0-2,4-5 on node[0-2]:",
        "  train.py:31 in main: dist.all_reduce(x)",
        "  torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()",
    ]


def test_several_stragglers_are_all_named_and_none_is_blamed() -> None:
    failure = first_failure(hung({2, 3}))
    assert failure is not None and failure.rank is None
    assert "some ranks are not where the rest are: ranks 2-3 on node1 at train.py:29" in (
        failure.message
    )


def test_without_a_straggler_the_supervisors_message_stands() -> None:
    everywhere = first_failure(hung(set()))
    assert everywhere is not None
    assert (everywhere.rank, everywhere.message) == (None, "no progress for 30 s")
    assert "all_reduce" in everywhere.excerpt
    blind = first_failure(hung({3}, seen=False))
    assert blind is not None and (blind.rank, blind.message) == (None, "no progress for 30 s")
