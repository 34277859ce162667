"""What is chosen for a GPU, as far as it shows without one. test_gpu.py shows the rest."""

from __future__ import annotations

import datetime
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore
from torch.profiler import ProfilerActivity
from trainer_ranks import make

from trainer import checkpoint, distributed, net, poll, train
from trainer.config import Config
from trainer.data.loader import Queue, make_loader
from trainer.distributed import describe, identify, make_group
from trainer.logs import memory_mb
from trainer.setup import resolve, set_layout

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
ONE = replace(identify({}, CPU), device=GPU)
PAIR = replace(identify({"RANK": "1", "WORLD_SIZE": "2"}, CPU), device=GPU)


@pytest.mark.parametrize(
    ("capability", "amp"), [((7, 5), "off"), ((8, 0), "bf16"), ((8, 9), "bf16"), ((9, 0), "bf16")]
)
def test_bf16_is_for_gpus_that_have_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], amp: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    data: Any = SimpleNamespace(shape=(3, 32, 32))
    resolved = resolve(Config(bn="sync"), ONE, data)
    assert (resolved.amp, resolved.grad_exchange, resolved.bn) == (amp, "fp32", "sync")
    given = Config(amp="fp16", grad_exchange="fp64")
    resolved = resolve(given, ONE, data)
    assert (resolved.amp, resolved.grad_exchange) == ("fp16", "fp64")


def test_weights_are_nhwc_unless_told() -> None:
    def nhwc(config: Config, device: torch.device) -> list[bool]:
        model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 1), nn.Linear(4, 2))
        set_layout(model, config, device)
        kernels = [p for p in model.parameters() if p.ndim == 4]
        return [k.stride(1) == 1 and k.stride(3) == k.shape[1] for k in kernels]

    assert nhwc(Config(), GPU) == [True, True]
    assert nhwc(Config(channels_last=False), GPU) == nhwc(Config(), CPU) == [False, True]


def test_the_group_is_nccls_for_tensors_and_gloos_for_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda **given: calls.append(given))
    store = HashStore()
    for ranks in (PAIR, replace(PAIR, device=CPU)):
        make_group(ranks, store)
    half_an_hour = datetime.timedelta(seconds=1800)  # above compilation and cold file systems
    common = {"store": store, "rank": 1, "world_size": 2, "timeout": half_an_hour}
    assert calls == [
        {**common, "backend": "cpu:gloo,cuda:nccl", "device_id": GPU},
        {**common, "backend": "gloo", "device_id": None},
    ]


def test_a_rank_names_its_gpu_and_nccls_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"H200 {device.index}")
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    assert ", device cuda:1, H200 1, backend nccl 2.27.5, torch " in describe(PAIR, 0)


def test_memory_is_the_peak_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: (3 << 20) + 5)
    assert memory_mb(GPU) == 3


def test_ranks_poll_every_tenth_step_and_read_one_poll_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    zeros = torch.zeros
    monkeypatch.setattr(poll.torch, "zeros", lambda n, dtype, device: zeros(n, dtype=dtype))
    t = make()
    on_gpu = poll.Poll(ONE, t.poll.progress, t.poll.stop, t.poll.work)
    assert (on_gpu.every, on_gpu.lag, t.poll.every, t.poll.lag) == (10, 1, 1, 0)


def test_ddp_gets_the_gpu_and_the_profiler_watches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def ddp(model: nn.Module, **settings: Any) -> Any:
        given.append(settings)
        return SimpleNamespace(register_comm_hook=lambda state, hook: None)

    monkeypatch.setattr(net, "DistributedDataParallel", ddp)
    t = make()
    t.net.ranks = PAIR
    t.net._in_ddp(t.net.model, find_unused=True)
    t.net.ranks = t.ranks
    t.net._in_ddp(t.net.model, find_unused=False)
    assert [each["device_ids"] for each in given] == [[1], None]
    assert [each["find_unused_parameters"] for each in given] == [True, False]
    assert all(each["gradient_as_bucket_view"] is True for each in given)
    assert all(each.get("broadcast_buffers", False) is False for each in given)
    monkeypatch.setattr(train, "profile", lambda **settings: settings["activities"])
    both: Any = train.make_profiler(Config(profile="2:3"), PAIR)
    assert both == [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    assert train.make_profiler(Config(profile="2:3"), t.ranks) == [ProfilerActivity.CPU]


def test_snapshots_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    stream = SimpleNamespace(synchronize=lambda: waited.append(GPU))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    checkpoint.synchronize(GPU)
    checkpoint.synchronize(CPU)
    assert waited == [GPU]


def test_images_come_from_processes_three_batches_ahead_and_pinned() -> None:
    source: Any = None
    loader = make_loader(source, Queue(), 2, pinned=True)
    assert (loader.num_workers, loader.pin_memory, loader.persistent_workers) == (2, True, True)
    assert loader.prefetch_factor == 3
    alone = make_loader(source, Queue(), 0, pinned=False)
    assert (alone.num_workers, alone.pin_memory) == (0, False)
