"""What the training loop really does, watched from outside: order, crops, all-reduces, rates."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_gradients import ALONE, make
from torch import nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from trainer_ranks import Job, newest_state, on_ranks, same

from trainer import evaluate, setup, train
from trainer.data.order import epoch_order
from trainer.distributed import Ranks
from trainer.flags import parse
from trainer.model import statistics
from trainer.optim import lr_at
from trainer.state import Training, to_checkpoint
from trainer.tools import cuda_graph


def recording(t: Training) -> list[tuple[list[int], int, int]]:
    """(indices, seed, epoch) of each training batch from here on."""
    calls: list[tuple[list[int], int, int]] = []
    real = t.data.train_batch

    def train_batch(indices: torch.Tensor, *, seed: int, epoch: int) -> Any:
        calls.append((indices.tolist(), seed, epoch))
        return real(indices, seed=seed, epoch=epoch)

    t.data.train_batch = train_batch  # type: ignore[method-assign]
    return calls


def test_each_epoch_has_its_own_order_and_its_own_crops() -> None:
    t = make(ALONE, "--seed", "3", "--epochs", "3")
    calls = recording(t)
    for epoch in range(3):
        train.train_epoch(t)
        visited = [index for indices, _, _ in calls for index in indices]
        assert visited == epoch_order(3, epoch, 100).tolist()
        assert {(seed, given) for _, seed, given in calls} == {(3, epoch)}
        calls.clear()


def test_a_resident_set_crops_anew_each_epoch() -> None:
    data = make(ALONE).data
    indices = torch.arange(20)
    first, second = (data.train_batch(indices, seed=0, epoch=epoch)[0] for epoch in (0, 1))
    assert not torch.equal(first, second)


def all_reduces(ranks: Ranks, accumulated: str) -> list[int]:
    """Gradient all-reduces in each of three steps."""
    t = make(ranks, "--grad-accum-steps", accumulated, "--global-batch", "12")
    count = 0

    def hook(group: Any, bucket: Any) -> Any:
        nonlocal count
        count += 1
        return allreduce_hook(group, bucket)

    # DDP compares the annotations themselves, not their names.
    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    t.net.register_comm_hook(None, hook)  # type: ignore[operator]
    steps = []
    for _ in range(3):
        count = 0
        train.train_step(t, torch.arange(t.plan.samples))
        steps.append(count)
    return steps


def test_only_the_last_micro_batch_is_all_reduced(tmp_path: Path) -> None:
    plain = on_ranks(tmp_path / "r", 2, all_reduces, "1")
    accumulated = on_ranks(tmp_path / "r", 2, all_reduces, "3")
    assert plain == accumulated and min(plain[0]) >= 1


@pytest.mark.parametrize("size", [16, 13, 3])
def test_the_gradient_is_that_of_the_batchs_mean_loss(size: int) -> None:
    t = make(ALONE, "--bn", "frozen", "--grad-accum-steps", "4", "--no-augment")
    batch = torch.arange(size)
    train.backward(t, batch)
    found = [parameter.grad for parameter in t.parameters]
    x, y = t.data.train_batch(batch, seed=0, epoch=0)
    loss = nn.functional.cross_entropy(t.model(x), y)
    wanted = torch.autograd.grad(loss, t.parameters)
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


def test_label_smoothing_is_in_the_training_loss() -> None:
    t = make(ALONE, "--label-smoothing", "0.2", "--bn", "frozen", "--no-augment")
    batch = torch.arange(16)
    train.backward(t, batch)
    x, y = t.data.train_batch(batch, seed=0, epoch=0)
    with torch.no_grad():
        smooth = nn.functional.cross_entropy(t.model(x), y, label_smoothing=0.2)
        plain = nn.functional.cross_entropy(t.model(x), y)
    assert float(t.totals[0] / t.totals[1]) == pytest.approx(float(smooth), rel=1e-5)
    assert float(smooth) != pytest.approx(float(plain), rel=1e-4)


def test_the_loss_scale_is_adjusted_after_each_step() -> None:
    t = make(ALONE, "--amp", "fp16")
    assert t.scaler
    t.scaler.set_growth_interval(1)  # doubled after a good step, halved after an overflow
    before = t.scaler.get_scale()
    train.train_step(t, torch.arange(t.plan.samples))
    assert t.scaler.get_scale() in (2 * before, before / 2)


def test_an_overflow_in_the_first_step_leaves_the_momentum_as_it_was() -> None:
    t = make(ALONE, "--amp", "fp16")
    t.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    torch.use_deterministic_algorithms(True)  # fills uninitialised memory with NaN
    try:
        train.train_step(t, torch.arange(t.plan.samples))
    finally:
        torch.use_deterministic_algorithms(False)
    assert t.scaler.get_scale() == 2.0**59
    buffers = [state["momentum_buffer"] for state in t.optimizer.state.values()]
    assert len(buffers) == len(t.parameters) and not any(buffer.any() for buffer in buffers)


def test_compile_compiles_what_is_trained_and_what_is_evaluated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(torch.is_grad_enabled())
        return graph.forward

    real = functools.partial(torch.compile, backend=backend)
    monkeypatch.setattr(torch, "compile", real)
    plain, t = make(ALONE), make(ALONE, "--compile")
    graphs.clear()  # of the trial compilation
    for training in (plain, t):
        train.train_step(training, torch.arange(t.plan.samples))
    assert graphs == [True]
    for mine, other in zip(t.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(mine, other)
    evaluate.evaluate(t, "test")
    assert False in graphs


def test_the_compiler_gets_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str] = []

    def backend(graph: Any, inputs: Any, mode: str = "default") -> Any:
        modes.append(mode)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    t = make(ALONE, "--compile", "--compile-mode", "reduce-overhead")
    modes.clear()  # of the trial compilation
    train.train_step(t, torch.arange(t.plan.samples))
    assert modes == ["reduce-overhead"]


def test_gradients_keep_their_memory_where_the_compiler_replays_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backend(graph: Any, inputs: Any, mode: str = "default") -> Any:
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    flags = ("--grad-accum-steps", "2")
    plain = make(ALONE, *flags)
    t = make(ALONE, *flags, "--compile", "--compile-mode", "reduce-overhead")

    def places() -> list[int]:
        return [p.grad.data_ptr() for p in t.parameters if p.grad is not None]

    before = places()
    for training in (plain, t):
        for _ in range(2):
            train.train_step(training, torch.arange(t.plan.samples))
    assert places() == before and len(before) == len(t.parameters)
    for mine, other in zip(t.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(mine, other)


def compressed(ranks: Ranks, compression: str) -> list[torch.Tensor]:
    t = make(ranks, "--bn", "frozen", "--grad-compression", compression)
    train.backward(t, torch.arange(16))
    return [parameter.grad for parameter in t.parameters if parameter.grad is not None]


def test_compressed_gradients_travel_as_bf16(tmp_path: Path) -> None:
    (plain, _), (found, other) = (
        on_ranks(tmp_path / "r", 2, compressed, kind) for kind in ("off", "bf16")
    )
    assert all(torch.equal(grad, grad.bfloat16().float()) for grad in found)
    assert not all(torch.equal(grad, grad.bfloat16().float()) for grad in plain)
    assert same(found, other)
    for mine, exact in zip(found, plain, strict=True):
        torch.testing.assert_close(mine, exact, rtol=0.05, atol=2e-3)


def test_each_rank_writes_a_trace_of_the_profiled_steps(tmp_path: Path) -> None:
    Job(tmp_path / "run", "--profile", "3:5", "--max-steps", "9", count=2).done()
    for rank in (0, 1):
        trace = json.loads((tmp_path / "run" / f"trace-rank-{rank}.json").read_text())
        names = {event["name"] for event in trace["traceEvents"] if "name" in event}
        assert {f"ProfilerStep#{n}" for n in (2, 3, 4)} == {n for n in names if "ProfilerS" in n}
        assert "aten::convolution" in names and any("all_reduce" in name for name in names)


@pytest.mark.parametrize(
    ("last", "steps"),
    [
        ("--no-drop-last", [1, 8, 15]),  # the seventh step of an epoch has a smaller batch
        ("--drop-last", [1, 7, 13]),
    ],
)
def test_a_graphed_step_repeats_with_another_batch_and_rate_only(
    last: str, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a CUDA graph, a replay runs the step as it was when captured."""
    captured: list[int] = []

    def capture(t: Training, batch: torch.Tensor, body: Any) -> Any:
        step = t.step
        captured.append(step)

        def replay() -> None:
            now, t.step = t.step, step
            body(t, batch)
            t.step = now

        return replay

    monkeypatch.setattr(cuda_graph, "capture", capture)
    monkeypatch.setattr(cuda_graph, "aside", lambda t, batch, body: body(t, batch))
    chosen = {"stem": "cifar", "amp": "off"}
    resolve = lambda c, ranks, data: dataclasses.replace(c, **chosen)  # noqa: E731
    monkeypatch.setattr(setup, "resolve", resolve)
    flags = (last, "--ema", "0.99", "--cutout", "4", "--epochs", "3", "--clip-grad-norm", "1")
    plain, t = make(ALONE, *flags), make(ALONE, *flags, "--cuda-graph")
    t.graphed = cuda_graph.GraphedStep(train.backward_and_update)
    for training in (plain, t):
        for _ in range(3):
            train.train_epoch(training)
    assert captured == steps  # the second of each epoch
    assert same(to_checkpoint(t)[0]["model"], to_checkpoint(plain)[0]["model"])
    assert t.ema and plain.ema and same(t.ema.values, plain.ema.values)


def no_compiler() -> None:
    def broken(*args: object, **kwargs: object) -> object:
        raise RuntimeError("No working C++ compiler found\nmore")

    torch.compile = broken  # type: ignore[assignment]


def test_without_a_compiler_training_goes_on_after_a_warning(tmp_path: Path) -> None:
    flags = ("--preset", "fast", "--max-steps", "2", "--model", "resnet8", "--amp", "off")
    job = Job(tmp_path / "run", *flags, count=2, first=no_compiler).done()
    warning = "WARNING: continuing without --compile: No working C++ compiler found\n"
    assert job.log().count(warning) == 1
    assert job.metrics("start")[0]["config"]["compile"] is False


def synced(ranks: Ranks) -> list[str]:
    # In place of the check that there is a GPU; DDP wants one, too.
    setup.resolve = lambda config, ranks, data: dataclasses.replace(config, stem="cifar")
    setup.ddp = lambda model, ranks, compression: model
    t = make(ranks, "--bn", "sync", "--device", "auto")
    return sorted({type(m).__name__ for m in t.model.modules() if "Norm" in type(m).__name__})


def test_bn_sync_converts_every_batch_norm(tmp_path: Path) -> None:
    assert on_ranks(tmp_path / "r", 2, synced) == [["SyncBatchNorm"]] * 2


def test_bn_sync_on_a_cpu_is_a_usage_error(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    job = Job(tmp_path / "run", "--bn", "sync", "--device", "auto", count=2)
    assert job.codes() == [2, 2]
    assert "error: --bn sync needs GPUs" in job.log() and "Traceback" not in job.log()


def test_cudnn_chooses_the_fastest_algorithm_unless_deterministic() -> None:
    before = torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = False
        train.set_determinism(parse([], {})[0])
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before


def test_the_rate_of_each_step_is_the_schedules_also_after_a_resume(tmp_path: Path) -> None:
    flags = ("--epochs", "3", "--schedule", "cosine")
    Job(tmp_path / "run", *flags, "--max-steps", "5").done()
    job = Job(tmp_path / "run", *flags, "--resume", "auto").done()
    t = make(ALONE, *flags)
    rates = [(m["step"], m["lr"]) for m in job.metrics("train") if m["step"] > 5]
    assert rates == [(n, lr_at(n - 1, t.config, t.plan)) for n in range(6, 22)]


def test_gradients_have_the_layout_that_ddp_wants(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--max-steps", "1", count=2).done()
    assert "Grad strides do not match" not in job.log()


def test_a_poll_may_be_read_one_later_but_none_is_lost() -> None:
    t = make(ALONE, "--epochs", "1", "--print-every", "1")
    t.poll_lag = 1  # as on a GPU
    seen: list[tuple[int, float]] = []
    real = train.read_poll

    def read_poll(t: Training, step: int, values: list[float]) -> bool:
        seen.append((step, values[1]))
        assert t.step > step or t.step == t.plan.total_steps
        return real(t, step, values)

    train.read_poll = read_poll
    try:
        train.train_epoch(t)
    finally:
        train.read_poll = real
    assert seen == [(step, 16.0) for step in range(1, 7)] + [(7, 4.0)]


EMA = (
    *("--synthetic-train", "640", "--synthetic-test", "500", "--width", "8", "--lr", "0.5"),
    *("--global-batch", "16", "--epochs", "6", "--schedule", "constant", "--ema", "0.99"),
    *("--seed", "1"),
)


def test_averaged_weights_are_evaluated_with_averaged_statistics() -> None:
    t = make(ALONE, *EMA)
    while t.step < 240:
        train.train_epoch(t)
    averaged = evaluate.evaluate(t, "test")
    assert t.ema
    ema, t.ema = t.ema, None
    raw = evaluate.evaluate(t, "test")
    t.ema = ema
    assert averaged["top1"] >= raw["top1"] - 0.002
    assert averaged["loss"] < raw["loss"] / 5


def test_the_decay_of_the_average_warms_up() -> None:
    t = make(ALONE, "--ema", "0.999")
    assert t.ema
    first = [value.clone() for value in t.ema.values]
    for _ in range(7):
        train.train_step(t, torch.arange(t.plan.samples))
    moved = sum(float((a - b).norm()) for a, b in zip(t.ema.values, first, strict=True))
    far = sum(
        float((a - b).norm()) for a, b in zip([v.detach() for v in t.ema.live], first, strict=True)
    )
    assert moved > 0.5 * far


def test_each_ranks_averaged_statistics_resume_bitwise(tmp_path: Path) -> None:
    flags = ("--ema", "0.9", "--schedule", "constant", "--warmup-epochs", "0")
    whole = Job(tmp_path / "whole", *flags, "--max-steps", "9", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "5", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "9", "--resume", "auto", count=2).done()
    state = newest_state(whole.out)
    assert same(state, newest_state(tmp_path / "part"))
    numbers = sum(value.numel() for value in statistics(make(ALONE).model))
    assert state["statistics_of_every_rank"].shape == (2, 2 * numbers)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--save-every", "3st", "--max-steps", "12", first=slow_disk).done()
    first = job.metrics("checkpoint")[0]
    assert first["seconds"] > 0.5 > first["paused"]
    lines = [(m["kind"], m["step"]) for m in _lines(job)]
    assert lines.index(("train", 5)) < lines.index(("checkpoint", 3))


def _lines(job: Job) -> list[dict[str, Any]]:
    from trainer_ranks import metrics

    return [line for line in metrics(job.out) if line["kind"] in ("train", "checkpoint")]


def slow_disk() -> None:
    from trainer import checkpoint

    real = checkpoint.publish

    def slow(*args: Any) -> Any:
        time.sleep(0.6)
        return real(*args)

    checkpoint.publish = slow


def test_a_checkpoint_that_cannot_be_written_ends_the_run_at_the_next_poll(tmp_path: Path) -> None:
    flags = ("--save-every", "3st", "--epochs", "300")
    job = Job(tmp_path / "run", *flags, count=2, first=broken_disk)
    assert job.codes() == [4, 4]
    assert job.log().count("error: rank 0 on ") == 1 and "disk full" in job.log()
    assert job.status["step"] < 100


def broken_disk() -> None:
    from trainer import checkpoint
    from trainer.errors import CheckpointError

    def broken(*args: Any) -> Any:
        raise CheckpointError("disk full")

    checkpoint.publish = broken
