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
from torch import nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from trainer_ranks import Job, batches, make, metrics, newest_state, on_ranks, same

from trainer import checkpoint, evaluate, setup, train
from trainer.config import Config
from trainer.data.order import epoch_order, mixed_seed
from trainer.distributed import Ranks
from trainer.errors import Diverged
from trainer.net import flops, unused
from trainer.parse_flags import parse
from trainer.plan import lr_at
from trainer.state import Training


def recording(t: Training) -> list[tuple[list[int], int, int]]:
    """(indices, seed, epoch) of each training batch from here on."""
    calls: list[tuple[list[int], int, int]] = []
    real = t.data.train_batches

    def train_batches(order: torch.Tensor, parts: Any, *, seed: int, epoch: int) -> Any:
        for batch in real(order, parts, seed=seed, epoch=epoch):
            calls.append((batch.indices.tolist(), seed, epoch))
            yield batch

    t.data.train_batches = train_batches  # type: ignore[method-assign]
    return calls


def test_each_epoch_has_its_own_order_and_its_own_crops() -> None:
    t = make(None, "--seed", "3", "--epochs", "3")
    calls = recording(t)
    for epoch in range(3):
        train.train_epoch(t)
        visited = [index for indices, _, _ in calls for index in indices]
        assert visited == epoch_order(3, epoch, 100).tolist()
        assert {(seed, given) for _, seed, given in calls} == {(3, epoch)}
        assert [len(indices) for indices, _, _ in calls] == [16] * 6 + [4]
        calls.clear()


def test_polls_and_checks_come_every_so_many_steps_and_at_the_end_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    t = make(None, "--check-every", "3", "--max-steps", "12")  # seven steps an epoch
    assert (t.step, t.epoch, t.eval_pending, t.best) == (0, 1, False, {})
    polls: list[tuple[int, bool]] = []
    checks: list[int] = []
    monkeypatch.setattr(train, "poll", lambda t, last: polls.append((t.step, last)))
    monkeypatch.setattr(train, "check_replicas", lambda ranks, values, step: checks.append(step))
    t.poll.every = 5
    train.train_epoch(t)
    assert (polls, checks) == ([(5, False), (7, True)], [3, 6]) and t.eval_pending
    polls.clear()
    train.train_epoch(t)  # to the last step of the run
    assert (t.step, polls, checks) == (12, [(10, False), (12, True)], [3, 6, 9, 12])
    never = make(None, "--check-every", "0", "--eval-every", "2")
    train.train_epoch(never)
    assert checks == [3, 6, 9, 12] and not never.eval_pending


@pytest.mark.parametrize(
    ("part", "last", "splits"), [("0.2", "val", ["test"]), ("0.2", "test", []), ("0", "test", [])]
)
def test_a_run_with_a_validation_split_is_tested_once_at_its_end(
    monkeypatch: pytest.MonkeyPatch, part: str, last: str, splits: list[str]
) -> None:
    t = make(None, "--val-split", part)
    t.step, t.log.last = t.plan.total_steps, {"split": last}
    tested: list[str] = []
    saved: list[int] = []
    monkeypatch.setattr(train, "record_evaluation", lambda t, split: tested.append(split))
    monkeypatch.setattr(train, "save", lambda t: saved.append(t.step))
    monkeypatch.setattr(train, "save_last", lambda t: None)
    train.train(t)
    assert tested == splits and len(saved) == len(splits)


def test_a_checkpoints_line_says_what_was_written_and_how_long_it_took(tmp_path: Path) -> None:
    t = make(None, "--out", str(tmp_path))
    t.log.start(None)
    t.saver.newest = "ckpt/step-00000007"
    (tmp_path / "state.pt").write_bytes(b"12345")
    saved = checkpoint.Saved(tmp_path, 7, "f" * 64)
    train.record_saved(t, {"step": 7, "epoch": 2}, 0.123456, (saved, 1.987654))
    (line,) = metrics(tmp_path)
    del line["ts"]
    assert line == {
        "v": 1, "kind": "checkpoint", "step": 7, "epoch": 2, "path": "ckpt/step-00000007",
        "bytes": 5, "sha256": "f" * 64, "seconds": 1.9877, "paused": 0.1235,
    }  # fmt: skip


def test_an_epoch_resumed_in_the_middle_goes_on_with_its_own_batches() -> None:
    t = make(None, "--epochs", "3", "--max-steps", "12")
    t.step = 9  # two steps into the second epoch
    calls = recording(t)
    train.train_epoch(t)
    visited = [index for indices, _, _ in calls for index in indices]
    assert t.step == 12 and visited == epoch_order(0, 1, 100).tolist()[32:80]
    assert t.eval_pending  # the last step is evaluated


def all_reduces(ranks: Ranks, accumulated: str) -> list[int]:
    """Gradient all-reduces in each of three steps."""
    flags = ("--grad-exchange", "fp32", "--global-batch", "12")
    t = make(ranks, "--grad-accum-steps", accumulated, *flags)
    count = 0

    def hook(group: Any, bucket: Any) -> Any:
        nonlocal count
        count += 1
        return allreduce_hook(group, bucket)

    # DDP compares the annotations themselves, not their names.
    hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[torch.Tensor]}
    t.net.trained.register_comm_hook(None, hook)  # type: ignore[operator]
    steps, images = [], batches(t)
    for _ in range(3):
        count = 0
        train.train_step(t, images)
        steps.append(count)
    return steps


def test_only_the_last_micro_batch_is_all_reduced(tmp_path: Path) -> None:
    plain = on_ranks(tmp_path / "r", 2, all_reduces, "1")
    accumulated = on_ranks(tmp_path / "r", 2, all_reduces, "3")
    assert plain == accumulated and min(plain[0]) >= 1


@pytest.mark.parametrize("size", [16, 13, 4])
def test_the_gradient_is_that_of_the_batchs_mean_loss(size: int) -> None:
    flags = ("--bn", "frozen", "--grad-accum-steps", "4", "--no-augment")
    t = make(None, "--synthetic-train", str(size), *flags)
    train.backward(t, batches(t))
    x, y = (torch.cat(tensors) for tensors in list(zip(*batches(t), strict=True))[1:])
    loss = nn.functional.cross_entropy(t.net.model(x), y)
    gradients = torch.autograd.grad(loss, t.net.parameters)
    for parameter, gradient in zip(t.net.parameters, gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert t.poll.totals[:2].tolist() == pytest.approx(
        [float(loss.detach()) * size, size], rel=1e-5
    )


def test_micro_batches_change_the_running_statistics_by_their_mean_change() -> None:
    """So that statistics do not depend on how the micro-batches are spread over ranks."""
    t = make(None, "--grad-accum-steps", "4", "--no-augment")
    before = [value.clone() for value in t.net.model.buffers()]
    changes: list[list[torch.Tensor]] = []
    for _, x, _ in batches(t):
        if len(changes) == 4:
            break
        plain = make(None).net.model.train()
        plain(x)
        pairs = zip(plain.buffers(), before, strict=True)
        changes.append([now - then for now, then in pairs])
    t.net.model.train()
    train.backward(t, batches(t))
    for buffer, then, *each in zip(t.net.model.buffers(), before, *changes, strict=True):
        if buffer.is_floating_point():
            torch.testing.assert_close(buffer, then + sum(each) / 4)
        else:
            assert buffer == then + 1  # batches seen


def test_the_loss_scale_is_adjusted_after_each_step() -> None:
    t = make(None, "--amp", "fp16")
    assert t.scaler
    t.scaler.set_growth_interval(1)  # doubled after a good step, halved after an overflow
    before = t.scaler.get_scale()
    train.train_step(t, batches(t))
    assert t.scaler.get_scale() in (2 * before, before / 2)


def test_an_overflow_in_the_first_step_leaves_the_momentum_as_it_was() -> None:
    t = make(None, "--amp", "fp16")
    t.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
    try:
        train.train_step(t, batches(t))
    finally:
        torch.use_deterministic_algorithms(False)
    assert t.scaler.get_scale() == 2.0**59
    buffers = [state["momentum_buffer"] for state in t.optimizer.state.values()]
    assert len(buffers) == len(t.net.parameters) and not any(buffer.any() for buffer in buffers)


class Compiler:
    """Stands in for torch's: counts the graphs and runs them as they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graphs: list[bool] = []  # for training or not
        self.modes: list[str] = []
        real = functools.partial(torch.compile, backend=self.backend)
        monkeypatch.setattr(torch, "compile", real)

    def backend(self, graph: Any, inputs: Any, mode: str = "default") -> Any:
        self.graphs.append(torch.is_grad_enabled())
        self.modes.append(mode)
        return graph.forward


def test_one_graph_is_compiled_for_training_none_for_evaluation_or_the_last_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = Compiler(monkeypatch)
    plain, t = make(None), make(None, "--compile")
    compiler.graphs.clear()  # of the trial compilation
    for training in (plain, t):
        train.train_epoch(training)  # its seventh batch has 4 images in place of 16
        evaluate.evaluate(training, "test")
        train.train_epoch(training)
    assert compiler.graphs == [True]
    for mine, other in zip(t.net.parameters, plain.net.parameters, strict=True):
        torch.testing.assert_close(mine, other)


def test_the_sizes_of_full_parts_are_compiled_for() -> None:
    assert make(None).net._sizes == {16}
    assert make(None, "--grad-accum-steps", "3").net._sizes == {5, 6}


def test_the_compiler_gets_its_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    t = make(None, "--compile", "--compile-mode", "reduce-overhead")
    compiler.modes.clear()  # of the trial compilation
    train.train_step(t, batches(t))
    assert compiler.modes == ["reduce-overhead"]


def test_gradients_keep_their_memory_where_the_compiler_replays_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Compiler(monkeypatch)
    flags = ("--grad-accum-steps", "2")
    plain = make(None, *flags)
    t = make(None, *flags, "--compile", "--compile-mode", "reduce-overhead")

    def places() -> list[int]:
        return [p.grad.data_ptr() for p in t.net.parameters if p.grad is not None]

    before = places()
    for training in (plain, t):
        images = batches(training)
        for _ in range(2):
            train.train_step(training, images)
    assert places() == before and len(before) == len(t.net.parameters)
    assert all(p.grad is None for p in plain.net.parameters)
    for mine, other in zip(t.net.parameters, plain.net.parameters, strict=True):
        torch.testing.assert_close(mine, other)


def exchanged(ranks: Ranks, how: str) -> list[torch.Tensor]:
    t = make(ranks, "--bn", "frozen", "--grad-exchange", how)
    train.backward(t, batches(t))
    return [parameter.grad for parameter in t.net.parameters if parameter.grad is not None]


def test_gradients_are_added_up_in_float32_float64_or_bf16(tmp_path: Path) -> None:
    (plain, _), (exact, _), (sent, other) = (
        on_ranks(tmp_path / "r", 2, exchanged, how) for how in ("fp32", "fp64", "bf16")
    )
    assert all(torch.equal(grad, grad.bfloat16().float()) for grad in sent)
    assert not all(torch.equal(grad, grad.bfloat16().float()) for grad in plain)
    assert same(sent, other)
    for rounded, mine, exactly in zip(sent, plain, exact, strict=True):
        torch.testing.assert_close(rounded, exactly, rtol=0.05, atol=2e-3)
        torch.testing.assert_close(mine, exactly, rtol=1e-5, atol=1e-7)


def summed(ranks: Ranks | None, *flags: str) -> list[torch.Tensor]:
    """Gradients and running statistics after one step of eight micro-batches."""
    t = make(ranks, *flags)
    t.plan = dataclasses.replace(t.plan, parts=8)
    t.net.model.train()
    train.backward(t, batches(t))
    gradients = [p.grad for p in t.net.parameters if p.grad is not None]
    return [*gradients, *(buffer.clone() for buffer in t.net.model.buffers())]


def test_eight_micro_batches_give_the_same_bits_on_any_number_of_ranks(tmp_path: Path) -> None:
    alone = summed(None)
    for count in (2, 3, 5):
        for result in on_ranks(tmp_path / "r", count, summed):
            assert same(result, alone), count
    assert not same(summed(None, "--grad-exchange", "fp32"), alone)


def test_each_rank_writes_a_trace_of_the_profiled_steps(tmp_path: Path) -> None:
    Job(tmp_path / "run", "--profile", "3:5", "--max-steps", "9", count=2).done()
    for rank in (0, 1):
        trace = json.loads((tmp_path / "run" / f"trace-rank-{rank}.json").read_text())
        names = {event["name"] for event in trace["traceEvents"] if "name" in event}
        assert {f"ProfilerStep#{n}" for n in (2, 3, 4)} == {n for n in names if "ProfilerS" in n}
        assert "aten::convolution" in names and any("all_reduce" in name for name in names)


@pytest.mark.parametrize(("steps", "recorded"), [("1:2", {0, 1}), ("2:2", {1})])
def test_the_first_steps_may_be_profiled(tmp_path: Path, steps: str, recorded: set[int]) -> None:
    t = make(None, "--out", str(tmp_path), "--profile", steps)
    images = batches(t)
    with train.make_profiler(t.config, t.ranks) as profiler:
        for _ in range(4):
            train.train_step(t, images)
            profiler.step()
    trace = json.loads((tmp_path / "trace-rank-0.json").read_text())
    names = {event["name"] for event in trace["traceEvents"] if "ProfilerStep" in event["name"]}
    assert names == {f"ProfilerStep#{n}" for n in recorded}


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
    setup.resolve = lambda config, ranks, data: config
    from trainer import net

    net.Net._in_ddp = lambda self, model, find_unused: model
    t = make(
        ranks,
        "--bn",
        "sync",
        "--device",
        "auto",
        "--stem",
        "cifar",
        "--amp",
        "off",
        "--grad-exchange",
        "fp32",
    )
    return sorted({type(m).__name__ for m in t.net.model.modules() if "Norm" in type(m).__name__})


def test_bn_sync_converts_every_batch_norm(tmp_path: Path) -> None:
    assert on_ranks(tmp_path / "r", 2, synced) == [["SyncBatchNorm"]] * 2


@pytest.mark.parametrize(
    ("bn", "fixed"),
    [("local", {16: False, 8: False, 7: True}), ("sync", {16: False, 4: False, 3: True})],
)
def test_batches_too_small_for_statistics_use_the_running_ones(
    bn: str, fixed: dict[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = make(None, "--grad-accum-steps", "4")
    t.config = Config(bn=bn)
    seen = {size: train.lacks_statistics(t, size) for size in fixed}
    assert seen == fixed


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
    t = make(None, *flags)
    rates = [(m["step"], m["lr"]) for m in job.metrics("train") if m["step"] > 5]
    assert rates == [(n, lr_at(n - 1, t.config, t.plan)) for n in range(6, 22)]


def test_gradients_have_the_layout_that_ddp_wants(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--max-steps", "1", count=2).done()
    assert "Grad strides do not match" not in job.log()


def test_dropout_is_seeded_by_run_step_and_micro_batch() -> None:
    """Nothing is saved for it, and a micro-batch drops the same on any rank."""
    flags = ("--model", "own_parts:dropping", "--seed", "5", "--grad-accum-steps", "2")
    t = make(None, *flags)
    masks: list[torch.Tensor] = []
    t.net.model.register_forward_hook(lambda net, args, out: masks.append(net.mask))
    t.step = 3
    train.backward(t, batches(t))
    for part, mask in enumerate(masks):
        torch.manual_seed(mixed_seed(f"network/5/3/{part}"))
        assert torch.equal(mask, torch.rand(4))
    assert len(masks) == 2 and not torch.equal(*masks)


def test_a_poll_may_be_read_one_later_but_none_is_lost() -> None:
    t = make(None, "--epochs", "1", "--print-every", "1")
    t.poll.lag = 1  # as on a GPU
    seen: list[tuple[int, float]] = []
    real = t.poll.progress.add

    def add(loss: float, images: float, by_rank: Any, norm: float) -> None:
        seen.append((t.step, images))
        real(loss, images, by_rank, norm)

    t.poll.progress.add = add  # type: ignore[method-assign]
    train.train_epoch(t)
    assert seen == [(step + 1, 16.0) for step in range(1, 7)] + [(7, 4.0)]


def test_a_save_first_reads_every_loss_so_that_no_diverged_weights_are_kept(
    tmp_path: Path,
) -> None:
    t = make(None, "--out", str(tmp_path), "--checkpoint-dir", str(tmp_path))
    t.poll.lag = 1
    t.poll.totals[0] = float("nan")
    t.poll.exchange(1, save_due=False)
    assert t.poll.read(everything=False) is False
    with pytest.raises(Diverged, match="step 1"):
        train.save(t)
    assert not list(tmp_path.iterdir())


EMA = (
    *("--synthetic-train", "640", "--synthetic-test", "500", "--width", "8", "--lr", "0.5"),
    *("--global-batch", "16", "--epochs", "6", "--schedule", "constant", "--ema", "0.99"),
    *("--seed", "3"),
)


def test_averaged_weights_are_evaluated_with_averaged_statistics() -> None:
    t = make(None, *EMA)
    while t.step < 240:
        train.train_epoch(t)
    averaged = evaluate.evaluate(t, "test")
    ema, t.net.ema = t.net.ema, None
    raw = evaluate.evaluate(t, "test")
    t.net.ema = ema
    assert averaged["top1"] >= raw["top1"] - 0.002
    assert averaged["loss"] < raw["loss"] / 5
    statistics = dict(t.net.model.named_buffers())
    live = {name: value.clone() for name, value in statistics.items() if "running" in name}
    with ema.in_place():
        assert live and not any(torch.equal(statistics[name], live[name]) for name in live)


def test_the_average_of_the_weights_resumes_bitwise(tmp_path: Path) -> None:
    flags = ("--ema", "0.9", "--schedule", "constant", "--warmup-epochs", "0")
    whole = Job(tmp_path / "whole", *flags, "--max-steps", "9", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "5", count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "9", "--resume", "auto", count=2).done()
    assert same(newest_state(whole.out), newest_state(tmp_path / "part"))


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--save-every", "3st", "--max-steps", "12", first=slow_disk).done()
    first = job.metrics("checkpoint")[0]
    assert first["seconds"] > 0.5 > first["paused"]
    lines = [(line["kind"], line["step"]) for line in metrics(job.out)]
    assert lines.index(("train", 5)) < lines.index(("checkpoint", 3))


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


def test_operations_are_counted_as_published_and_networks_that_look_at_values_are_not() -> None:
    from trainer.model import build_model

    network = build_model("resnet18", num_classes=10)
    assert flops(network, torch.Size((3, 32, 32))) == pytest.approx(3 * 1.113e9, rel=0.003)
    assert all(parameter.device.type == "cpu" for parameter in network.parameters())

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    assert flops(Looking(), torch.Size((3, 8, 8))) is None


def test_parameters_that_a_network_never_uses_are_found_without_running_it() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x.mean((2, 3)))

    shape = torch.Size((3, 8, 8))
    assert unused(Partly(), shape) == ["spare.weight", "spare.bias"]
    assert unused(Partly().requires_grad_(False), shape) == ["unknown"]
    assert unused(make().net.model, shape) == []


def test_two_ranks_train_a_network_with_unused_and_with_frozen_parameters(tmp_path: Path) -> None:
    for model in ("own_parts:partly_used", "own_parts:frozen_backbone"):
        for flags in ((), ("--canonical-shards", "4")):
            out = tmp_path / f"{model[10:]}{len(flags)}"
            Job(out, "--model", model, "--max-steps", "3", *flags, count=2).done()
    unused_before = make(None, "--model", "own_parts:partly_used").net.model.state_dict()
    for run in ("partly_used0", "partly_used2"):
        after = newest_state(tmp_path / run)["model"]
        assert same(after["spare.weight"], unused_before["spare.weight"])
        assert not same(after["head.weight"], unused_before["head.weight"])
