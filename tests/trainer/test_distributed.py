"""Who a process is, and how ranks agree, in one process: threads that share a store."""

from __future__ import annotations

import dataclasses
import json
import platform
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from trainer import distributed
from trainer.distributed import (
    Ranks,
    as_fact,
    backend,
    check_replicas,
    describe,
    exchange,
    fingerprint,
    identify,
    join,
    pick_device,
)
from trainer.errors import DataError, ReplicaMismatch, TrainerError, UsageError

CPU, HOST = torch.device("cpu"), platform.node()


@pytest.mark.parametrize(
    ("env", "who"),
    [
        ("", (0, 1, 0, 0, 1)),
        ("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2",
         (5, 8, 1, 1, 2)),
        ("RANK=5 WORLD_SIZE=7 LOCAL_WORLD_SIZE=4", (5, 7, 1, 1, 2)),
        ("RANK=1 WORLD_SIZE=2", (1, 2, 0, 1, 2)),
    ],
)  # fmt: skip
def test_a_process_is_who_torchruns_variables_say(env: str, who: tuple[int, ...]) -> None:
    me = identify(dict(pair.split("=") for pair in env.split()), CPU)
    assert (me.rank, me.world_size, me.local_rank, me.node_rank, me.nnodes) == who
    assert (me.device, me.host, me.store, me.timeout) == (CPU, HOST, None, 120.0)
    assert me.first == (me.rank == 0)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RANK": "one"}, "RANK, WORLD_SIZE or a similar variable in the environment: .*'one'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 with WORLD_SIZE=2: RANK must be at least 0"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 with WORLD_SIZE=2"),
    ],
)
def test_variables_that_cannot_be_are_a_usage_error(env: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        identify(env, CPU)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[torch.device]]:
    """Pretend that there are so many GPUs. Return the list of those that are set."""

    def pretend(count: int) -> list[torch.device]:
        current: list[torch.device] = []
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        return current

    return pretend


def test_each_rank_of_a_machine_has_its_own_gpu(gpus: Callable[[int], list[torch.device]]) -> None:
    gpus(0)
    assert pick_device("auto", {}) == pick_device("cpu", {}) == CPU
    with pytest.raises(UsageError, match="--device cuda: PyTorch sees no GPU;"):
        pick_device("cuda", {})
    current = gpus(2)
    assert pick_device("cpu", {"LOCAL_RANK": "1"}) == CPU and current == []
    assert pick_device("auto", {}) == torch.device("cuda", 0)
    assert pick_device("cuda", {"LOCAL_RANK": "1"}) == torch.device("cuda", 1)
    assert current == [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(
        UsageError, match=r"local rank 2 has no GPU of its own, because PyTorch sees only 2;"
    ):
        pick_device("auto", {"LOCAL_RANK": "2"})


def rank(number: int, count: int = 2) -> Ranks:
    return identify({"RANK": str(number), "WORLD_SIZE": str(count)}, CPU)


def test_a_rank_describes_itself() -> None:
    me = dataclasses.replace(rank(1), node_rank=3, nnodes=4, local_rank=5)
    line = describe(me, 17)
    assert line.startswith(f"rank 1/2, node 3/4, local rank 5, host {HOST}, pid ")
    assert "device cpu, backend gloo, torch " in line and line.endswith(", seed 17")
    assert backend(identify({}, CPU)) == "none"
    gpu = torch.device("cuda", 0)
    assert backend(dataclasses.replace(me, device=gpu)) == "nccl"
    assert backend(dataclasses.replace(me, device=gpu, world_size=1)) == "none"


def exchanged(*failures: Exception | None) -> list[Any]:
    """What each of the ranks with these failures gets from an exchange: facts, or an error."""
    store, results = HashStore(), [None] * len(failures)

    def run(number: int) -> None:
        me = rank(number, len(failures))
        try:
            results[number] = exchange(me, store, "x", failures[number], 20.0)
        except TrainerError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(failures))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_every_rank_gets_the_facts_of_all_in_rank_order() -> None:
    fact = {"error": "", "message": "", "host": HOST, "device": "cpu"}
    assert exchanged(None, None, None) == [[fact] * 3] * 3


def test_an_error_of_one_rank_is_everyones_and_says_where_it_was() -> None:
    for error in exchanged(None, DataError("no images"), UsageError("later")):
        assert type(error) is DataError and error.located
        assert str(error) == f"rank 1 on {HOST}: no images"
    for error in exchanged(UsageError("bad flag"), UsageError("bad flag")):
        assert type(error) is UsageError and str(error) == "bad flag"
    for error in exchanged(None, KeyError("x")):
        assert str(error) == f"rank 1 on {HOST}: KeyError: 'x'"
    assert as_fact(rank(0), None)["error"] == ""


def test_a_rank_is_waited_for_while_it_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = HashStore(), [0.0]

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += 1.0
            if now[0] <= 50:
                store.add("alive/1", 1)

    monkeypatch.setattr(distributed, "time", Clock)
    with pytest.raises(
        TrainerError, match=r"^no sign of life from ranks 1, 2 for 20 s; see their hosts' logs$"
    ):
        exchange(rank(0, 3), store, "x", None, 20.0)
    assert now[0] == 71.0  # the last sign was at 50


def test_the_first_rank_may_hold_the_store_and_waits_until_all_have_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, now = HashStore(), [0.0]
    store.set("x/1", json.dumps(as_fact(rank(1), None)))

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return now[0]

        @staticmethod
        def sleep(seconds: float) -> None:
            now[0] += 1.0
            if now[0] == 3:
                store.add("x/read", 1)

    monkeypatch.setattr(distributed, "time", Clock)
    assert len(exchange(rank(0), store, "x", None, 20.0)) == 2
    assert now[0] == 3.0
    assert len(exchange(rank(1), store, "x", None, 20.0)) == 2
    assert now[0] == 3.0  # the others do not wait
    store.set("y/1", json.dumps(as_fact(rank(1), None)))
    assert len(exchange(rank(0), store, "y", None, 20.0)) == 2
    assert now[0] == 23.0  # nor does the first one for ever


def test_ranks_with_and_without_a_gpu_do_not_train_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = HashStore()
    store.set("join/1", json.dumps(as_fact(rank(1), None) | {"device": "cuda"}))
    store.add("join/read", 1)
    monkeypatch.setattr(distributed, "_store", lambda ranks, env: store)
    with pytest.raises(UsageError, match="some ranks have a GPU and others have none"):
        join(rank(0), {}, 5.0, None)


def test_a_lone_rank_joins_nothing_and_raises_its_own_error() -> None:
    alone = identify({}, CPU)
    assert join(alone, {}, 5.0, None) is alone
    with pytest.raises(DataError, match="mine"):
        join(alone, {}, 5.0, DataError("mine"))
    with pytest.raises(DataError, match="mine"), alone.agreeing():
        raise DataError("mine")
    assert alone.gather({"a": 1}) == [{"a": 1}] and alone.broadcast("b") == "b"
    assert alone.sum_(torch.tensor([2.0])).tolist() == [2.0]


@pytest.mark.parametrize("missing", ["MASTER_ADDR", "MASTER_PORT"])
def test_several_ranks_need_the_address_of_their_store(missing: str) -> None:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    del env[missing]
    with pytest.raises(UsageError, match="WORLD_SIZE=2 needs MASTER_ADDR and MASTER_PORT"):
        join(rank(0), env, 5.0, None)


def parameters(*values: list[float]) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.tensor(each)) for each in values]


def test_a_fingerprint_changes_with_every_value_and_its_place() -> None:
    same = int(fingerprint(parameters([1.0, 2.0], [3.0])))
    assert same == int(fingerprint(parameters([1.0, 2.0], [3.0])))
    others = [
        parameters([2.0, 1.0], [3.0]),
        parameters([1.0, 3.0], [2.0]),
        parameters([1.0], [2.0, 3.0]),
        parameters([3.0], [1.0, 2.0]),
        parameters([1.0, 2.0000002], [3.0]),
        parameters([-1.0, 2.0], [3.0]),
        parameters([1.0, 2.0], [3.0000002]),
    ]
    assert len({same, *(int(fingerprint(each)) for each in others)}) == len(others) + 1


def test_ranks_that_differ_from_the_majority_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*hashes: int) -> None:
        monkeypatch.setattr(Ranks, "gather", lambda self, value: list(hashes))
        check_replicas(rank(0, len(hashes)), parameters([1.0]), 30)

    check(7, 7, 7)
    with pytest.raises(ReplicaMismatch, match=r"^step 30: the weights of rank 1 differ"):
        check(7, 8, 7)
    with pytest.raises(ReplicaMismatch, match="the weights of ranks 0, 3 differ"):
        check(1, 8, 8, 9)
    check_replicas(identify({}, CPU), [], 30)  # a lone rank has nothing to compare
