"""How a run ends, in one process: what is written, and what the watching thread sees and does."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore
from trainer_ranks import make, metrics

from trainer import cli, ending
from trainer.distributed import identify
from trainer.ending import Watch, finish, preempted, write_failure
from trainer.errors import (
    KILLED,
    PREEMPTED,
    CheckpointError,
    DataError,
    Diverged,
    OutOfMemory,
    PeerLost,
    ReplicaMismatch,
    TrainerError,
    UsageError,
)
from trainer.parse_flags import parse
from trainer.state import Training

CPU = torch.device("cpu")


def status(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "status.json").read_text()))


def end_line(out: Path) -> dict[str, Any]:
    (line,) = [line for line in metrics(out) if line["kind"] == "end"]
    return line


def test_exit_codes_are_those_of_the_page() -> None:
    kinds = {
        TrainerError: 1, PeerLost: 1, OutOfMemory: 1, UsageError: 2, DataError: 3,
        CheckpointError: 4, Diverged: 5, ReplicaMismatch: 6,
    }  # fmt: skip
    for kind, code in kinds.items():
        assert kind.exit_code == code
        assert kind.state == ("diverged" if kind is Diverged else "failed")
        # Messages that name the rank, or hold for all ranks.
        assert kind.located == (kind in (PeerLost, OutOfMemory, Diverged, ReplicaMismatch))
    assert (PREEMPTED, KILLED) == (75, 143)


@pytest.fixture
def t(tmp_path: Path) -> Training:
    t = make(None, "--out", str(tmp_path / "out"))
    t.log.start(None)
    t.step = 9  # in the second epoch
    t.log.began = time.monotonic() - 3661.2
    t.saver.newest = "ckpt/step-00000009"
    t.log.last = {"step": 7, "top1": 0.25}
    t.best = {"step": 7, "epoch": 1, "top1": 0.5, "selected_on": "test"}
    return t


def test_the_end_of_a_run_is_written_and_printed(
    t: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(t, "completed", "")
    results = {"epoch": 2, "top1": 0.25, "best_top1": 0.5, "best_step": 7, "selected_on": "test"}
    written = status(Path(t.config.out))
    line = end_line(Path(t.config.out))
    for entry in (written, line):
        assert results.items() <= entry.items()
        assert 3661.2 <= entry["seconds"] < 3720 and round(entry["seconds"], 3) == entry["seconds"]
        assert abs(entry["ts"] - time.time()) < 60
        assert (entry["state"], entry["step"], entry["reason"], entry["v"]) == (
            "completed", 9, "", 1,
        )  # fmt: skip
    assert written["checkpoint"] == "ckpt/step-00000009"
    printed = capsys.readouterr().out
    assert printed.startswith("completed at step 9 of 14 in 1:01:")
    assert "best top-1 50.00% (selected on test)" in printed


def test_a_run_without_an_evaluation_has_no_best(
    t: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    t.best, t.log.last = {}, {}
    finish(t, "preempted", "SIGTERM on rank 0")
    assert status(Path(t.config.out))["best_top1"] is None
    printed = capsys.readouterr().out
    assert "best" not in printed and printed.endswith("SIGTERM on rank 0\n")


def test_a_stop_is_75_and_under_torchrun_0(t: Training) -> None:
    t.poll.stop.name = "SIGUSR1"
    assert preempted(t, {}) == 75
    assert preempted(t, {"TORCHELASTIC_RUN_ID": "x"}) == 0
    assert status(Path(t.config.out))["reason"] == "SIGUSR1 on rank 0"
    assert status(Path(t.config.out))["state"] == "preempted"


def test_a_failure_is_written_by_the_first_rank_only(t: Training, tmp_path: Path) -> None:
    error = Diverged("step 9: the loss is nan\nmore")
    second = dataclasses.replace(t.ranks, rank=1, world_size=2)
    write_failure(t, t.config, second, error)
    write_failure(t, dataclasses.replace(t.config, test_only=True), t.ranks, error)
    assert not (tmp_path / "out" / "status.json").exists()
    write_failure(t, t.config, t.ranks, error)
    written = status(tmp_path / "out")
    assert (written["state"], written["step"], written["checkpoint"], written["reason"]) == (
        "diverged", 9, "ckpt/step-00000009", "step 9: the loss is nan",
    )  # fmt: skip
    line = end_line(tmp_path / "out")
    assert (line["state"], line["step"], line["reason"]) == (
        "diverged", 9, "step 9: the loss is nan",
    )  # fmt: skip
    assert line["seconds"] >= 3661.2
    write_failure(None, t.config, t.ranks, KeyError())  # before there is a training
    written = status(tmp_path / "out")
    assert (written["state"], written["step"], written["checkpoint"], written["reason"]) == (
        "failed", 0, None, "KeyError",
    )  # fmt: skip


class Clock:
    """Stands still, or goes on by what is slept."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.during: Callable[[], None] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.during()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ending, "time", clock)
    return clock


def watch(store: HashStore, rank: int, count: int = 3, out: str = "/dev/null/out") -> Watch:
    ranks = identify({"RANK": str(rank), "WORLD_SIZE": str(count)}, CPU)
    config = parse(["--timeout", "20", "--out", out], {})[0]
    return Watch(config, dataclasses.replace(ranks, host="h", store=store))


def test_each_rank_watches_the_next_and_a_silent_one_is_lost_after_the_timeout(
    clock: Clock,
) -> None:
    store = HashStore()
    one, last = watch(store, 1), watch(store, 2)
    assert (one.next, last.next) == (2, 0)
    for _ in range(3):
        assert one._look(store) is None
    assert store.add("alive/1", 0) == 3
    clock.now += 19.9
    store.add("alive/2", 1)
    assert one._look(store) is None
    clock.now += 19.9
    assert one._look(store) is None
    clock.now += 0.2
    error = one._look(store)
    assert type(error) is PeerLost
    assert str(error).startswith("rank 1 on h lost contact with rank 2: no sign of life for 20 s")


def test_an_error_that_another_rank_reported_is_seen(clock: Clock) -> None:
    store = HashStore()
    reporter, other = watch(store, 1), watch(store, 2)
    mine = DataError("a.jpg: damaged")
    assert reporter._report(store, mine) is mine
    assert str(mine) == "rank 1 on h: a.jpg: damaged"
    seen = other._look(store)
    assert type(seen) is DataError and str(seen) == "rank 1 on h: a.jpg: damaged"
    later = other._report(store, UsageError("as a result"))
    assert type(later) is DataError and str(later) == str(seen)
    assert clock.now == 1000.0


def test_an_error_that_says_where_it_was_gets_no_other_place(clock: Clock) -> None:
    store = HashStore()
    mine = Diverged("step 3: the loss is nan")
    assert watch(store, 1)._report(store, mine) is mine
    assert str(watch(store, 2)._look(store)) == "step 3: the loss is nan"
    bug = HashStore()
    error = KeyError("x")
    assert watch(bug, 1)._report(bug, error) is error
    assert str(watch(bug, 2)._look(bug)) == "rank 1 on h: KeyError: 'x'"


def test_a_rank_that_lost_a_peer_waits_for_that_peers_report(clock: Clock) -> None:
    store = HashStore()
    reporter, other = watch(store, 1), watch(store, 2)

    def report() -> None:
        if clock.now >= 1001.0 and not store.check([ending.FAILURE]):
            reporter._report(store, DataError("the cause"))

    clock.during = report
    shared = other._report(store, PeerLost("lost contact"))
    assert type(shared) is DataError and 1001.0 <= clock.now < 1001.2
    alone = HashStore()
    clock.during = lambda: None
    lost = PeerLost("lost contact")
    assert other._report(alone, lost) is lost and 1003.0 <= clock.now < 1003.3


def test_the_rank_that_failed_leaves_once_the_others_know(clock: Clock) -> None:
    store = HashStore()
    reporter, other = watch(store, 1), watch(store, 2)
    informed = iter([0, 1, 1])

    def inform() -> None:
        store.add("informed", next(informed, 0))

    clock.during = inform
    reporter._part(store, reporter=True)
    assert store.add("informed", 0) == 2 and 1000.1 < clock.now < 1000.3
    clock.during = lambda: None
    other._part(store, reporter=False)
    assert store.add("informed", 0) == 3 and 1001.1 < clock.now < 1001.3  # it lingers
    before = clock.now
    reporter._part(HashStore(), reporter=True)
    assert 3.0 <= clock.now - before < 3.1  # nobody answers


def test_a_failure_is_told_to_the_others_and_written(clock: Clock, tmp_path: Path) -> None:
    store = HashStore()
    store.add("informed", 2)
    first = watch(store, 0, out=str(tmp_path))
    error = DataError("no images")
    assert first.fail(error) is error
    assert status(tmp_path)["reason"] == "rank 0 on h: no images"
    second = watch(store, 1)
    assert str(second.fail(UsageError("later"))) == "rank 0 on h: no images"
    assert store.add("informed", 0) == 3  # the second one has told that it knows
    alone = watch(None, 0, 1, str(tmp_path))  # type: ignore[arg-type]
    bug = KeyError("x")
    assert alone.fail(bug) is bug and status(tmp_path)["reason"] == "'x'"


def test_a_run_that_is_over_is_not_watched(clock: Clock) -> None:
    watching = watch(HashStore(), 0)
    watching.done()
    watching._run()  # returns at once
    alone = watch(None, 0, 1)  # type: ignore[arg-type]
    before = threading.active_count()
    alone.start()
    assert threading.active_count() == before


def test_the_watching_thread_ends_the_process_with_the_error_of_the_first(
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = HashStore()
    watch(store, 1)._report(store, DataError("a.jpg: damaged"))
    codes: list[int] = []

    def ends(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(ending.os, "_exit", ends)
    with pytest.raises(SystemExit):
        watch(store, 0, out=str(tmp_path))._run()
    assert codes == [3] and store.add("informed", 0) == 1
    assert capsys.readouterr().err == "error: rank 1 on h: a.jpg: damaged\n"
    assert status(tmp_path)["state"] == "failed"


def test_a_mistake_is_printed_by_rank_0_before_the_others_exit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(cli.time, "sleep", pauses.append)
    for rank, line, paused in (("0", "error: trainer: unr", []), ("3", "", [1]), ("", "error", [])):
        pauses.clear()
        monkeypatch.setenv("RANK", rank)
        if not rank:
            monkeypatch.delenv("RANK")
        assert cli.main(["--bogus"]) == 2
        assert capsys.readouterr().err.startswith(line) and pauses == paused
    monkeypatch.setattr(cli, "parse", lambda argv, env: 1 / 0 if argv else interrupted())
    with pytest.raises(ZeroDivisionError):
        cli.main(["--data", "x"])
    assert cli.main([]) == 130


def interrupted() -> None:
    raise KeyboardInterrupt
