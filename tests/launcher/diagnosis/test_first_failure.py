"""The first failure of many, from output of real programs (the folder `outputs`)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.first_failure import first_failure
from launcher.failure import FirstFailure
from launcher.supervisor.classify import WEIGHTS
from launcher.supervisor.events import (
    Clock,
    End,
    EndState,
    Event,
    RankExit,
    RankPids,
    Reason,
    ResourceUsage,
    Stopping,
    signal_name,
)

OUTPUTS = Path(__file__).with_name("outputs")


def output(name: str) -> list[str]:
    return (OUTPUTS / f"{name}.txt").read_text().rstrip("\n").split("\n")


def rank_exit(
    time: float, rank: int, code: int | None, lines: list[str] | None = None, **more: Any
) -> tuple[float, RankExit]:
    event = RankExit(rank, rank % 2, code, signal=signal_name(code), time=time)
    return time, dataclasses.replace(event, last_lines=tuple(lines or ()), **more)


def stopping(time: float, kind: str, node_rank: int, **more: Any) -> tuple[float, Stopping]:
    return time, Stopping(Reason(kind, kind, node_rank, time=time, **more))


START = (0.5, RankPids({"2": 76}))
END = (99.0, End(EndState.STOPPED, 1))


def node(node_rank: int, *events: tuple[float, Event], **facts: Any) -> NodeEvidence:
    return NodeEvidence(node_rank, f"gpu{node_rank + 1}", events=[*events, END], **facts)


def first(*nodes: NodeEvidence) -> FirstFailure:
    failure = first_failure(Evidence(8, nodes))
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
def test_a_recognized_cause_is_named(text: str, code: int, kind: str, message: str) -> None:
    failure = first(node(0, rank_exit(1.0, 1, code, output(text))))
    assert (failure.kind, failure.rank) == (kind, 1)
    assert message in failure.message
    assert failure.remedy or kind == "exception"


@pytest.mark.parametrize(
    ("code", "kind", "sentence"),
    [
        (7, "exit-code", "rank 3 (gpu2, local_rank 1) exited with code 7"),
        (-9, "killed", "rank 3 (gpu2, local_rank 1) was killed by SIGKILL"),
        (-11, "segv", "rank 3 (gpu2, local_rank 1) was killed by SIGSEGV"),
        (-7, "shm-full", "rank 3 (gpu2, local_rank 1) was killed by SIGBUS"),
        (-6, "segv", "rank 3 (gpu2, local_rank 1) was killed by SIGABRT"),
        (-4, "segv", "rank 3 (gpu2, local_rank 1) was killed by SIGILL"),
        (-8, "segv", "rank 3 (gpu2, local_rank 1) was killed by SIGFPE"),
        (-2, "killed", "rank 3 (gpu2, local_rank 1) was killed by SIGINT"),
        (139, "segv", "rank 3 (gpu2, local_rank 1) exited with code 139"),
        (137, "killed", "rank 3 (gpu2, local_rank 1) exited with code 137"),
    ],
)
def test_an_ending_without_output_has_a_kind(code: int, kind: str, sentence: str) -> None:
    failure = first(node(0), node(1, rank_exit(1.0, 3, code)))
    assert (failure.kind, failure.headline) == (kind, sentence)


@pytest.mark.parametrize("effect", ["gloo-peer-kill", "gloo-peer-raise", "gloo-peer-zero"])
def test_a_lost_connection_is_an_effect_even_if_it_is_recorded_first(effect: str) -> None:
    failure = first(
        node(0, rank_exit(1.0, 0, 1, output(effect)), rank_exit(1.1, 1, -15)),
        node(1, rank_exit(1.2, 3, -6, output("gloo-raise"))),
    )
    assert (failure.rank, failure.host, failure.kind) == (3, "gpu2", "exception")
    assert failure.excerpt.endswith("ValueError: boom")
    assert "terminate called" not in failure.excerpt and "[rank1]" not in failure.excerpt
    assert failure.headline == "rank 3 (gpu2, local_rank 1) raised ValueError: boom"


def test_effects_alone_still_name_the_first_of_them() -> None:
    failure = first(
        node(0, rank_exit(2.0, 0, 1, output("gloo-peer-kill"))),
        node(1, rank_exit(1.0, 2, 1, output("gloo-peer-kill"))),
    )
    assert (failure.rank, failure.kind) == (2, "peer-gone")


def test_a_rank_that_was_stopped_gives_way_to_one_that_lost_its_connection() -> None:
    """torchrun stops the other ranks of its node within milliseconds."""
    lost = rank_exit(1.001, 1, 1, output("gloo-peer-kill"))
    failure = first(node(0, rank_exit(1.0, 0, -15), lost))
    assert (failure.rank, failure.kind) == (1, "peer-gone")


def test_a_rank_that_left_with_code_0_is_the_cause_of_the_effects_after_it() -> None:
    failure = first(
        node(0, rank_exit(2.0, 0, 1, output("gloo-peer-zero"))), node(1, rank_exit(1.9, 3, 0))
    )
    assert (failure.rank, failure.kind, failure.exit_code) == (3, "early-exit", 0)


def test_a_rank_whose_end_only_torchrun_saw_gives_way_to_one_that_failed() -> None:
    """torchrun also reaps a rank that succeeded. Alone, or with an exception, it is the failure."""
    reaped = rank_exit(1.0, 0, None)
    assert first(node(0, reaped, rank_exit(2.0, 1, 1))).rank == 1
    assert first(node(0, reaped)).message == "exited with an unknown code"
    raised = rank_exit(1.0, 0, None, ["Traceback (most recent call last):", "ValueError: lr"])
    failure = first(node(0, raised, rank_exit(2.0, 1, 1)))
    assert (failure.rank, failure.message) == (0, "raised ValueError: lr")


def test_a_run_that_ended_well_has_no_failure() -> None:
    ended = [node(0, rank_exit(1.0, 0, 0), rank_exit(1.0, 1, 0)), node(1, rank_exit(1.0, 2, 0))]
    assert first_failure(Evidence(8, ended)) is None


def test_clocks_that_differ_do_not_change_the_order() -> None:
    late_clock = node(0, rank_exit(100.0, 0, 7), clock_skew=0.0)
    failure = first(late_clock, node(1, rank_exit(160.0, 2, 8), clock_skew=61.0))
    assert (failure.rank, failure.time) == (2, "1970-01-01T00:01:39.000Z")


def test_the_supervisors_own_clocks_are_better_than_the_launchers_guess() -> None:
    clock = (0.0, Clock(offset=-61.0, error=0.001))
    nodes = [
        node(0, rank_exit(100.0, 0, 7)),
        node(1, clock, rank_exit(160.0, 2, 8), clock_skew=9.0),
    ]
    assert first(*nodes).rank == 2


@pytest.mark.parametrize("where", ["cgroup", "engine"])
def test_sigkill_by_the_oom_killer_differs_from_any_other(where: str) -> None:
    evidence = (1.0, ResourceUsage(oom_kills=1, memory_limit=2 << 30))
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


@pytest.mark.parametrize(("code", "kind"), [(139, "segv"), (137, "killed"), (143, "exit-code")])
def test_a_shells_exit_code_names_the_signal_that_ended_the_script(code: int, kind: str) -> None:
    assert first(node(0, rank_exit(1.0, 0, code))).kind == kind


def test_a_full_disk_explains_an_exit_without_a_message() -> None:
    free = (1.0, ResourceUsage(free={"shm": 1 << 30, "checkpoints": 0, "output": None, "logs": 0}))
    failure = first(node(0, rank_exit(1.0, 0, 1), free))
    assert failure.kind == "disk-full"
    assert failure.message.endswith("no space left in checkpoints, logs")


def test_a_container_that_died_without_an_end_event_is_the_cause_of_its_peers_effects() -> None:
    dead = NodeEvidence(1, "gpu2", events=[START], exit_code=137)
    lost = stopping(3.0, "rank-failed", 0)
    failure = first(node(0, rank_exit(2.0, 0, 1, output("gloo-peer-kill")), lost), dead)
    assert (failure.kind, failure.host, failure.exit_code) == ("container-killed", "gpu2", 137)
    assert failure.headline == "gpu2 (node 1): its container was killed (exit code 137)"


@pytest.mark.parametrize(
    ("code", "kind"), [(127, "start"), (1, "start"), (137, "container-killed")]
)
def test_an_image_in_which_the_supervisor_cannot_run_is_no_killed_container(
    code: int, kind: str
) -> None:
    failure = first(*(NodeEvidence(rank, "gpu", exit_code=code) for rank in range(2)))
    assert failure.kind == kind
    if kind == "start":
        assert (
            failure.message == f"its container ended before it could do anything (exit code {code})"
        )
        assert "Python" in failure.remedy


def test_a_removed_container_does_not_make_a_host_that_answers_lost() -> None:
    removed = NodeEvidence(1, "gpu2", events=[START], exited=True, unit="supervisor")
    failure = first(node(0, stopping(9.0, "host-lost", 1)), removed)
    assert (failure.kind, failure.host) == ("container-killed", "gpu2")
    assert failure.message == "its supervisor was killed and left no exit code"


def test_a_host_out_of_sight_is_lost_only_when_its_peers_lost_it_too() -> None:
    unseen = NodeEvidence(1, "gpu2", events=[START], unseen="no route to host")
    assert first_failure(Evidence(8, [unseen])) is None
    failure = first(node(0, stopping(9.0, "host-lost", 1)), unseen)
    assert (failure.kind, failure.host) == ("host-lost", "gpu2")


def test_a_host_out_of_sight_explains_broken_connections_and_nothing_else() -> None:
    unseen = NodeEvidence(1, "gpu2", events=[START], unseen="no route to host")
    broken = rank_exit(1.0, 0, 1, output("gloo-peer-kill"))
    failure = first(node(0, broken), unseen)
    assert (failure.kind, failure.host, failure.rank) == ("host-lost", "gpu2", None)
    assert "no route to host" in failure.message
    raised = rank_exit(1.2, 4, 1, output("gloo-raise"))
    assert first(node(0, broken), unseen, node(2, raised)).rank == 4


def test_a_long_c_stack_does_not_hide_that_the_connection_broke() -> None:
    unseen = NodeEvidence(1, "gpu2", events=[START], unseen="no route to host")
    frames = [f"frame #{n}: <unknown function> + 0x{n:x} (0x7f in libtorch.so)" for n in range(30)]
    lines = ["[W1122 socket.cpp:464] recvValue failed: failed to recv, got 0 bytes", *frames]
    failure = first(node(0, rank_exit(1.0, 0, 1, lines)), unseen)
    assert (failure.kind, failure.host) == ("host-lost", "gpu2")


def test_two_nodes_that_lost_each_other_were_cut_off() -> None:
    failure = first(node(0, stopping(9.0, "host-lost", 1)), node(1, stopping(9.1, "host-lost", 0)))
    assert failure.kind == "network-cut"


@pytest.mark.parametrize("out", [0, 1, 2])
def test_the_node_that_most_others_lost_was_the_one_cut_off(out: int) -> None:
    """No matter which node reports it first: the isolated one thinks that the others are gone."""
    others = [rank for rank in range(3) if rank != out]
    reports = [node(rank, stopping(9.1, "host-lost", out)) for rank in others]
    reports.insert(out, node(out, stopping(9.0, "host-lost", others[0])))
    failure = first(*reports)
    assert (failure.kind, failure.node_rank) == ("network-cut", out)
    assert failure.message == "lost contact with the other nodes while still running"
    assert "network" in failure.remedy


def test_a_node_that_all_lost_and_that_does_not_answer_is_lost() -> None:
    dead = NodeEvidence(1, "gpu2", events=[START], unseen="no route to host")
    failure = first(
        node(0, stopping(9.0, "host-lost", 1)), dead, node(2, stopping(9.0, "host-lost", 1))
    )
    assert (failure.kind, failure.host) == ("host-lost", "gpu2")


def test_torchruns_own_failure_has_no_rank() -> None:
    reason = Reason("torchrun", "", 0, time=1.0, last_lines=tuple(output("port")))
    reported = [node(rank, (2.0 + rank, Stopping(reason))) for rank in range(2)]
    failure = first(*reported)
    assert (failure.kind, failure.rank, failure.host) == ("port-in-use", None, "gpu1")
    assert "EADDRINUSE" in failure.message


def test_a_collective_timeout_gives_way_to_the_stopped_rank() -> None:
    late = rank_exit(1.0, 0, 1, output("gloo-peer-sleep"))
    stop = stopping(5.0, "stopped", 1, rank=3, local_rank=1)
    assert first(node(0, late), node(1, stop)).kind == "stopped"


def test_a_rank_that_the_run_does_not_have_is_ignored() -> None:
    failure = first(node(0, rank_exit(1.0, 8, 1), rank_exit(1.0, -1, 1), rank_exit(2.0, 7, 1)))
    assert failure.rank == 7


def test_times_beyond_the_calendar_are_clamped() -> None:
    for time, year in ((1e11 - 1, "5138"), (-1e11, "1970"), (4e11, "9999")):
        assert first(node(0, rank_exit(time, 0, 1))).time.startswith(year)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_every_reason_of_a_supervisor_has_its_kind_and_a_remedy(kind: str) -> None:
    failure = first(node(0, stopping(1.0, kind, 0)))
    assert failure.kind == kind and failure.remedy


CUDA_ERROR = [
    "Traceback (most recent call last):",
    "RuntimeError: CUDA error: unspecified launch failure",
]


def test_a_cuda_error_is_the_gpus_fault_if_the_driver_logged_one() -> None:
    gpus = ("0000:3b:00", "0000:af:00")
    crashed = rank_exit(1.0, 3, 1, CUDA_ERROR)
    faulty = node(1, crashed, gpus=gpus, xids=[("0000:af:00", 31), ("0000:af:00", 79)])
    failure = first(node(0), faulty)
    assert (failure.kind, failure.rank) == ("gpu-failed", 3)
    assert failure.message.endswith("its GPU (0000:af:00) has reported Xid 79: it fell off the bus")
    assert "reboot" in failure.remedy
    for xids in (
        [],
        [("0000:3b:00", 79)],
        [("0000:af:00", 31)],
    ):  # none, another GPU's, a program's
        assert first(node(0), node(1, crashed, gpus=gpus, xids=xids)).kind == "cuda-error"
    assert first(node(0), node(1, crashed, xids=[("0000:af:00", 79)])).kind == "cuda-error"


def test_the_rank_with_a_faulty_gpu_is_blamed_for_the_collective_it_missed() -> None:
    late = output("gloo-peer-sleep")
    faulty = node(1, rank_exit(2.0, 2, 1, late), gpus=("0000:3b:00",), xids=[("0000:3b:00", 74)])
    failure = first(node(0, rank_exit(1.0, 0, 1, late)), faulty)
    assert (failure.kind, failure.rank) == ("gpu-failed", 2)


def test_an_exception_of_the_script_is_not_the_gpus_fault() -> None:
    raised = rank_exit(1.0, 2, 1, ["Traceback (most recent call last):", "ValueError: lr"])
    faulty = node(1, raised, gpus=("0000:3b:00",), xids=[("0000:3b:00", 79)])
    assert first(node(0), faulty).kind == "exception"
