"""The story of a run that hung, from the stacks in its nodes' journals."""

from __future__ import annotations

from typing import Any

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure, headline

DISTRIBUTED = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def frame(file: str, line: int, function: str, text: str = "") -> dict[str, Any]:
    return {"file": file, "line": line, "function": function, "text": text}


WAITS = [
    frame("/workspace/train.py", 31, "main", "dist.all_reduce(x)"),
    frame(DISTRIBUTED, 3252, "all_reduce", "work.wait()"),
]
SLEEPS = [frame("/workspace/train.py", 29, "main", "time.sleep(3600)")]


def hung(late: set[int], *, seen: bool = True, blamed: int | None = None) -> Evidence:
    """Three nodes with two ranks each; `late` sleep, the others wait for them."""
    reason = {"kind": "hung", "message": "no progress for 30 s", "node_rank": 0, "host": "node0"}
    if blamed is not None:
        reason |= {"rank": blamed, "local_rank": blamed % 2, "node_rank": blamed // 2}
        reason["message"] += "; it stands elsewhere than all other ranks"
    nodes = []
    for node in range(3):
        ranks = [
            {"rank": r, "local_rank": r % 2, "pid": 9, "state": "S", "note": None, "threads": []}
            | {"frames": SLEEPS if r in late else WAITS}
            for r in (2 * node, 2 * node + 1)
        ]
        events: list[tuple[float, dict[str, Any]]] = [(99.0, {"kind": "stacks", "ranks": ranks})]
        stopping = (100.0 + node, {"kind": "stopping", "reason": reason})
        events = [*(events if seen else []), stopping]
        nodes.append(NodeEvidence(node, f"node{node}", events=events))
    return Evidence(2, nodes)


def test_the_rank_that_stood_elsewhere_is_the_first_failure() -> None:
    failure = first_failure(hung({3}))
    assert failure is not None
    assert (failure.kind, failure.host, failure.node_rank) == ("hung", "node1", 1)
    assert (failure.rank, failure.local_rank) == (3, 1)
    assert headline(failure) == (
        "rank 3 (node1, local_rank 1) stands elsewhere than the others, and there was no progress "
        "for 30 s: at train.py:29 in main: time.sleep(3600)"
    )
    assert failure.excerpt.splitlines() == [
        "rank 3 of node1:",
        "  train.py:29 in main: time.sleep(3600)",
        "ranks 0-2,4-5 of node0, node1, node2:",
        "  train.py:31 in main: dist.all_reduce(x)",
        "  torch/distributed/distributed_c10d.py:3252 in all_reduce: work.wait()",
    ]


def test_the_stacks_overrule_a_guess() -> None:
    failure = first_failure(hung({3}, blamed=0))
    assert failure is not None and (failure.rank, failure.host) == (3, "node1")


def test_several_ranks_elsewhere_are_all_named_and_none_is_blamed() -> None:
    failure = first_failure(hung({2, 3}))
    assert failure is not None and failure.rank is None
    assert "some stand elsewhere than the others: ranks 2-3 of node1 at train.py:29" in (
        failure.message
    )


def test_without_a_place_of_their_own_the_supervisors_word_stands() -> None:
    everywhere = first_failure(hung(set()))
    assert everywhere is not None
    assert (everywhere.rank, everywhere.message) == (None, "no progress for 30 s")
    assert "all_reduce" in everywhere.excerpt
    blind = first_failure(hung({3}, seen=False, blamed=3))
    assert blind is not None and (blind.rank, blind.host) == (3, "node1")
    assert blind.message == "no progress for 30 s; it stands elsewhere than all other ranks"
