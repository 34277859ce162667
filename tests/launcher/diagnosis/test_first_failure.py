"""The first failure out of many, on texts that real programs said (tests/supervisor/said)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import FirstFailure, first_failure, headline

SAID = Path(__file__).with_name("said")


def said(name: str) -> list[str]:
    return (SAID / f"{name}.txt").read_text().rstrip("\n").split("\n")


def rank_exit(
    time: float, rank: int, code: int, lines: list[str] | None = None, **more: Any
) -> tuple[float, dict[str, Any]]:
    names = {-6: "SIGABRT", -7: "SIGBUS", -9: "SIGKILL", -11: "SIGSEGV", -15: "SIGTERM"}
    event = {"kind": "rank_exit", "rank": rank, "local_rank": rank % 2, "exit_code": code}
    event |= {"signal": names.get(code), "time": time, "stopping": False}
    return time, {**event, "last_lines": lines or [], **more}


def stopping(time: float, kind: str, node_rank: int, **more: Any) -> tuple[float, dict[str, Any]]:
    reason = {"kind": kind, "node_rank": node_rank, "message": kind, "time": time}
    return time, {"kind": "stopping", "reason": {**reason, **more}}


END = (99.0, {"kind": "end", "state": "stopped", "exit_code": 1, "reason": None})


def node(node_rank: int, *events: tuple[float, dict[str, Any]], **facts: Any) -> NodeEvidence:
    return NodeEvidence(node_rank, f"gpu{node_rank + 1}", events=[*events, END], **facts)


def first(*nodes: NodeEvidence) -> FirstFailure:
    failure = first_failure(Evidence(2, nodes))
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("text", "code", "kind", "message"),
    [
        ("usage", 2, "usage", "unrecognized arguments: --epoch=3"),
        ("module", 1, "module-missing", "No module named 'torchvisionx'"),
        ("file", 1, "file-missing", "/data/cifar-10-batches-py/batches.meta"),
        ("disk-save", 1, "disk-full", "raised RuntimeError"),
        ("disk-write", 1, "disk-full", "No space left on device"),
        ("perm", 1, "permission", "Permission denied"),
        ("mem", 1, "memory", "raised MemoryError"),
        ("torchmem", 1, "memory", "can't allocate memory"),
        ("shm", 1, "shm-full", "unable to allocate shared memory"),
        ("chain", 1, "exception", "raised RuntimeError: epoch 3 went wrong"),
        ("worker", 1, "exception", "IndexError: sample 0 is broken (DataLoader worker process 0)"),
        ("gloo-raise", -6, "exception", "raised ValueError: boom"),
        ("gloo-peer-sleep", 1, "collective-timeout", "Timed out waiting 4000ms for recv"),
    ],
)
def test_a_known_cause_is_named(text: str, code: int, kind: str, message: str) -> None:
    failure = first(node(0, rank_exit(1.0, 1, code, said(text))))
    assert (failure.kind, failure.rank) == (kind, 1)
    assert message in failure.message
    assert failure.remedy or kind == "exception"


@pytest.mark.parametrize("effect", ["gloo-peer-kill", "gloo-peer-raise", "gloo-peer-zero"])
def test_a_lost_connection_is_an_effect_even_when_it_is_seen_first(effect: str) -> None:
    failure = first(
        node(0, rank_exit(1.0, 0, 1, said(effect)), rank_exit(1.1, 1, -15)),
        node(1, rank_exit(1.2, 3, -6, said("gloo-raise"))),
    )
    assert (failure.rank, failure.host, failure.kind) == (3, "gpu2", "exception")
    assert failure.excerpt.endswith("ValueError: boom")
    assert "terminate called" not in failure.excerpt and "[rank1]" not in failure.excerpt
    assert headline(failure) == "rank 3 (gpu2, local_rank 1) raised ValueError: boom"


def test_effects_alone_still_name_the_first_of_them() -> None:
    failure = first(
        node(0, rank_exit(2.0, 0, 1, said("gloo-peer-kill"))),
        node(1, rank_exit(1.0, 2, 1, said("gloo-peer-kill"))),
    )
    assert (failure.rank, failure.kind) == (2, "peer-gone")


def test_a_rank_that_left_with_code_0_is_the_cause_of_the_effects_after_it() -> None:
    failure = first(
        node(0, rank_exit(2.0, 0, 1, said("gloo-peer-zero"))), node(1, rank_exit(1.9, 3, 0))
    )
    assert (failure.rank, failure.kind, failure.exit_code) == (3, "early-exit", 0)


def test_a_run_that_ended_well_has_no_failure() -> None:
    ended = [node(0, rank_exit(1.0, 0, 0), rank_exit(1.0, 1, 0)), node(1, rank_exit(1.0, 2, 0))]
    assert first_failure(Evidence(2, ended)) is None


def test_clocks_that_differ_do_not_turn_the_order_round() -> None:
    late_clock = node(0, rank_exit(100.0, 0, 7), clock_skew=0.0)
    failure = first(late_clock, node(1, rank_exit(160.0, 2, 8), clock_skew=61.0))
    assert (failure.rank, failure.time) == (2, "1970-01-01T00:01:39.000Z")


def test_the_supervisors_own_clocks_are_better_than_the_launchers_guess() -> None:
    clock = (0.0, {"kind": "clock", "offset": -61.0, "error": 0.001})
    nodes = [
        node(0, rank_exit(100.0, 0, 7)),
        node(1, clock, rank_exit(160.0, 2, 8), clock_skew=9.0),
    ]
    assert first(*nodes).rank == 2


@pytest.mark.parametrize("where", ["cgroup", "engine"])
def test_sigkill_by_the_oom_killer_is_told_from_any_other(where: str) -> None:
    evidence = (1.0, {"kind": "evidence", "oom_kills": 1, "memory_limit": 2 << 30})
    events = [rank_exit(1.0, 2, -9), *([evidence] if where == "cgroup" else [])]
    failure = first(node(0), node(1, *events, oom_killed=where == "engine"))
    assert failure.kind == "oom-killed" and "OOM killer" in failure.message
    assert ("2.0 GiB" in failure.message) == (where == "cgroup")
    assert first(node(0, rank_exit(1.0, 1, -9))).kind == "killed"


def test_our_own_kills_are_no_cause() -> None:
    failure = first(
        node(0, rank_exit(3.0, 1, -9, stopping=True), rank_exit(2.0, 0, -15, stopping=True)),
        node(1, rank_exit(4.0, 2, 7)),
    )
    assert (failure.rank, failure.message) == (2, "exited with code 7")


def test_a_full_disk_explains_an_exit_that_says_nothing() -> None:
    free = (1.0, {"kind": "evidence", "free": {"shm": 1 << 30, "checkpoints": 0, "output": None}})
    failure = first(node(0, rank_exit(1.0, 0, 1), free))
    assert failure.kind == "disk-full" and "checkpoints" in failure.message


def test_a_container_that_died_without_a_word_is_the_cause_of_its_peers_effects() -> None:
    start = (0.5, {"kind": "start"})
    dead = NodeEvidence(1, "gpu2", events=[start], exit_code=137)
    lost = stopping(3.0, "rank-failed", 0)
    failure = first(node(0, rank_exit(2.0, 0, 1, said("gloo-peer-kill")), lost), dead)
    assert (failure.kind, failure.host, failure.exit_code) == ("container-killed", "gpu2", 137)
    assert headline(failure) == "gpu2 (node 1): its container was killed (exit code 137)"


def test_a_host_out_of_sight_is_lost_only_when_its_peers_lost_it_too() -> None:
    unseen = NodeEvidence(1, "gpu2", events=[(0.5, {"kind": "start"})], unseen="no route to host")
    assert first_failure(Evidence(2, [unseen])) is None
    failure = first(node(0, stopping(9.0, "peer-lost", 1)), unseen)
    assert (failure.kind, failure.host) == ("host-lost", "gpu2")


def test_a_host_out_of_sight_explains_broken_connections_and_nothing_else() -> None:
    unseen = NodeEvidence(1, "gpu2", events=[(0.5, {"kind": "start"})], unseen="no route to host")
    broken = rank_exit(1.0, 0, 1, said("gloo-peer-kill"))
    failure = first(node(0, broken), unseen)
    assert (failure.kind, failure.host, failure.rank) == ("host-lost", "gpu2", None)
    assert "no route to host" in failure.message
    raised = rank_exit(1.2, 4, 1, said("gloo-raise"))
    assert first(node(0, broken), unseen, node(2, raised)).rank == 4


def test_two_nodes_that_lost_each_other_were_cut_off() -> None:
    failure = first(node(0, stopping(9.0, "peer-lost", 1)), node(1, stopping(9.1, "peer-lost", 0)))
    assert failure.kind == "network-cut"


@pytest.mark.parametrize("out", [0, 1, 2])
def test_the_node_that_most_others_lost_was_the_one_cut_off(out: int) -> None:
    """Whoever says so first: the one that hears nobody thinks that the others are gone."""
    others = [rank for rank in range(3) if rank != out]
    told = [node(rank, stopping(9.1, "peer-lost", out)) for rank in others]
    told.insert(out, node(out, stopping(9.0, "peer-lost", others[0])))
    failure = first(*told)
    assert (failure.kind, failure.node_rank) == ("network-cut", out)
    assert "did not hear it" in failure.message and "network" in failure.remedy


def test_a_node_that_all_lost_and_that_says_nothing_is_lost_itself() -> None:
    dead = NodeEvidence(1, "gpu2", events=[(0.5, {"kind": "start"})], unseen="no route to host")
    failure = first(
        node(0, stopping(9.0, "peer-lost", 1)), dead, node(2, stopping(9.0, "peer-lost", 1))
    )
    assert (failure.kind, failure.host) == ("host-lost", "gpu2")


def test_torchruns_own_failure_has_no_rank() -> None:
    reason = {"kind": "torchrun", "last_lines": said("port"), "time": 1.0}
    end = (2.0, {"kind": "end", "state": "failed", "exit_code": 1, "reason": reason})
    failure = first(NodeEvidence(0, "gpu1", events=[end]), node(1, stopping(2.0, "torchrun", 0)))
    assert (failure.kind, failure.rank, failure.host) == ("port-in-use", None, "gpu1")
    assert "EADDRINUSE" in failure.message


def test_a_rank_that_was_gone_before_anybody_saw_it_is_in_torchruns_summary() -> None:
    reason = {"kind": "torchrun", "last_lines": said("torchrun-killed"), "time": 1.0}
    end = (2.0, {"kind": "end", "state": "failed", "exit_code": 1, "reason": reason})
    failure = first(node(0), NodeEvidence(1, "gpu2", events=[end]))
    assert (failure.kind, failure.signal, failure.exit_code) == ("killed", "SIGKILL", -9)
    assert headline(failure) == "rank 3 (gpu2, local_rank 1) was killed by SIGKILL"


def test_a_collective_timeout_gives_way_to_the_stopped_rank() -> None:
    late = rank_exit(1.0, 0, 1, said("gloo-peer-sleep"))
    stop = stopping(5.0, "stopped", 1, rank=3, local_rank=1)
    assert first(node(0, late), node(1, stop)).kind == "stopped"
