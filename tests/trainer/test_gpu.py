"""What only a GPU can show: `make gpu`. One GPU is enough; NCCL runs with a single rank."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm
from trainer_ranks import CONTEXT, Job, batches, make, newest_state, same

from trainer import checkpoint, evaluate, train
from trainer.data.loader import Request
from trainer.distributed import identify, make_group
from trainer.optim import set_rate
from trainer.state import Training, from_checkpoint, to_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]
GPU = ("--device", "cuda", "--synthetic-train", "2000", "--width", "16", "--global-batch", "100")
DEVICE = torch.device("cuda", 0)


def nccl(folder: str) -> None:
    """A group of one rank, made as the trainer makes it; DDP and SyncBatchNorm on it."""
    torch.cuda.set_device(DEVICE)
    ranks = identify({}, DEVICE)
    make_group(ranks, torch.distributed.FileStore(f"{folder}/store", 1))
    values = torch.ones(3, device=DEVICE)
    torch.distributed.all_reduce(values)
    assert values.tolist() == [1.0, 1.0, 1.0]
    torch.distributed.all_gather_object([None], "by Gloo")
    x = torch.randn(16, 3, 32, 32, device=DEVICE).to(memory_format=torch.channels_last)
    for exchange in ("fp32", "bf16", "fp64"):
        net = make(ranks, *GPU, "--grad-exchange", exchange).net
        net.trained = net._in_ddp(net.model, find_unused=False)
        loss = net(x, fixed=False).square().sum()
        net.backward(loss, last=True)
        assert all(torch.isfinite(p.grad).all() for p in net.trainable)
    # With a single rank the module falls back to plain batch norm: call what it calls with several.
    mine, wanted = ((torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)) for _ in "ab")
    group = torch.distributed.group.WORLD
    synced = SyncBatchNorm.apply(x, None, None, *mine, 1e-5, 0.1, group, 1)
    torch.testing.assert_close(synced, nn.functional.batch_norm(x, *wanted, training=True))
    torch.testing.assert_close(mine, wanted)
    torch.distributed.destroy_process_group()


def test_nccl_with_its_device_ddp_and_syncbn(tmp_path: Path) -> None:
    process = CONTEXT.Process(target=nccl, args=(str(tmp_path),))
    process.start()
    process.join(120)
    assert process.exitcode == 0


def loss_of(*flags: str) -> float:
    """Mean loss of steps 11 to 20."""
    t = make(identify({}, DEVICE), *GPU, *flags)
    images = batches(t)
    for step in range(20):
        if step == 10:
            t.poll.totals.zero_()
        train.train_step(t, images)
    return float(t.poll.totals[0] / t.poll.totals[1])


@pytest.mark.parametrize(
    "flags",
    [("--amp", "bf16"), ("--amp", "fp16"), ("--no-channels-last",), ("--compile",)],
    ids=["bf16", "fp16", "nchw", "compile"],
)
def test_the_fast_paths_train_as_plain_fp32_does(flags: tuple[str, ...]) -> None:
    assert loss_of("--amp", "off", *flags) == pytest.approx(loss_of("--amp", "off"), rel=0.05)


def test_compiling_happens_once_also_with_evaluation_and_a_smaller_last_batch() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    t = make(identify({}, DEVICE), *GPU, "--compile", "--synthetic-train", "250")
    for _ in range(2):
        train.train_epoch(t)
        evaluate.evaluate(t, "test")
    counters = torch._dynamo.utils.counters["stats"]
    assert counters["unique_graphs"] <= 2  # the trial at the start, and training


def test_the_compilers_own_graphs_leave_accumulated_gradients_alone() -> None:
    flags = ("--amp", "off", "--grad-accum-steps", "2")
    compiled = loss_of(*flags, "--compile", "--compile-mode", "reduce-overhead")
    assert compiled == pytest.approx(loss_of(*flags), rel=0.05)


def test_auto_is_bf16_where_the_gpu_has_it() -> None:
    t = make(identify({}, DEVICE), *GPU)
    wanted = "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "off"
    assert t.config.amp == wanted


def test_two_deterministic_runs_have_one_result_and_resume_bitwise(tmp_path: Path) -> None:
    constant = ("--schedule", "constant", "--warmup-epochs", "0")  # whatever --max-steps says
    flags = (*GPU, "--deterministic", *constant, "--max-steps")
    first, second = (Job(tmp_path / name, *flags, "30").done() for name in ("a", "b"))
    assert same(newest_state(first.out), newest_state(second.out))
    Job(tmp_path / "c", *flags, "13").done()
    Job(tmp_path / "c", *flags, "30", "--resume", "auto").done()
    assert same(newest_state(first.out), newest_state(tmp_path / "c"))


def test_no_loss_of_a_late_poll_is_lost_and_a_signal_still_saves(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *GPU, "--epochs", "3").done()
    assert job.metrics("train")[-1]["step"] == 60
    samples = [m["samples"] for m in job.metrics("train")]
    assert samples == sorted(samples) and samples[-1] == 6000
    stopped = Job(tmp_path / "stopped", *GPU, "--epochs", "2000")
    stopped.wait_for("train", step=10, timeout=60)
    stopped.signal(0)
    assert stopped.codes() == [75]
    assert (tmp_path / "stopped" / stopped.status["checkpoint"]).is_dir()


def test_a_snapshot_equals_what_the_gpu_held() -> None:
    t = make(identify({}, DEVICE), *GPU)
    train.train_step(t, batches(t))
    model = t.net.model
    copied = checkpoint.snapshot(model.state_dict())
    checkpoint.synchronize(DEVICE)
    assert all(value.is_pinned() for value in copied.values())
    assert same(copied, {name: value.cpu() for name, value in model.state_dict().items()})


@contextlib.contextmanager
def no_waiting() -> Iterator[None]:
    """Inside, waiting for the GPU is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_evaluation_waits_for_the_gpu_only_to_check_for_a_stop() -> None:
    t = make(identify({}, DEVICE), *GPU, "--synthetic-test", str(10 * (evaluate.STOP_EVERY - 1)))
    train.train_step(t, batches(t))
    evaluate.evaluate(t, "test")
    with no_waiting():
        table = evaluate.Blocks(t, "test", confusion=False).count()
    assert int(table[:, 0].sum()) == t.data.size("test")


def tree(folder: Path) -> Path:
    image = pytest.importorskip("PIL.Image")
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for number in range(50):
                picture = image.effect_noise((80, 60), 50 + number).convert("RGB")
                picture.save(folder / split / name / f"{number:02}.jpg")
    return folder


@pytest.mark.parametrize("data", ["synthetic", "tree"])
def test_a_step_with_every_augmentation_waits_for_nothing(data: str, tmp_path: Path) -> None:
    flags = ("--cutout", "8", "--random-erase", "0.5", "--mixup", "0.2", "--cutmix", "1")
    flags += ("--clip-grad-norm", "1", "--ema", "0.9", "--augment", "crop,alternating-flip")
    if data == "tree":
        flags += ("--data", str(tree(tmp_path)), "--image-size", "32", "--workers", "2")
    t = make(identify({}, DEVICE), *GPU, *flags, "--global-batch", "20")
    images = batches(t)
    for _ in range(2):  # cuDNN chooses, allocators grow
        train.train_step(t, images)
    with no_waiting():
        train.train_step(t, images)
    t.data.close()


def test_pictures_of_a_tree_arrive_from_pinned_memory(tmp_path: Path) -> None:
    t = make(identify({}, DEVICE), *GPU, "--data", str(tree(tmp_path)), "--image-size", "32")
    loaded = next(iter_loader(t))
    assert all(tensor.is_pinned() for tensor in loaded)
    batch = next(t.data.eval_batches("test", [slice(0, 20)]))
    assert all(tensor.device == DEVICE for tensor in batch)
    t.data.close()


def iter_loader(t: Training) -> Iterator[tuple[torch.Tensor, ...]]:
    """What the worker processes deliver, before it goes to the GPU."""
    t.data._queue.requests = [Request("train", np.arange(8), 32)]  # type: ignore[attr-defined]
    return iter(t.data._loader)  # type: ignore[attr-defined]


def test_momentum_of_a_gpu_goes_on_on_a_cpu() -> None:
    """Its memory layout differs: a resumed run must not read one value as another."""
    on_gpu, on_cpu = (make(identify({}, device), *GPU) for device in (DEVICE, torch.device("cpu")))
    images = batches(on_gpu)
    for _ in range(3):
        train.train_step(on_gpu, images)
    from_checkpoint(on_cpu, *to_checkpoint(on_gpu))
    for here, there in zip(on_cpu.net.parameters, on_gpu.net.parameters, strict=True):
        here.grad = torch.randn_like(here)
        there.grad = torch.empty_like(there).copy_(here.grad)
    for t in (on_cpu, on_gpu):
        set_rate(t.optimizer, 0.1)
        t.optimizer.step()
    for here, there in zip(on_cpu.net.parameters, on_gpu.net.parameters, strict=True):
        torch.testing.assert_close(here, there.cpu())


def test_little_time_is_not_training_with_default_settings(tmp_path: Path) -> None:
    """resnet18 on 50,000 images, evaluated, exported and saved as by default."""
    flags = ("--model", "resnet18", "--width", "64", "--synthetic-size", "32", "--epochs", "6")
    sizes = ("--synthetic-train", "50000", "--synthetic-test", "10000", "--global-batch", "512")
    output = ("--save-every", "60s", "--print-every", "50", "--eval-batch-size", "500")
    job = Job(tmp_path / "run", *GPU, *flags, *sizes, *output)
    assert job.codes(timeout=240) == [0], job.log()
    lines = job.metrics("train")[2:]  # without the first epoch, in which cuDNN chooses
    pairs = list(itertools.pairwise(lines))
    training = sum((b["step"] - a["step"]) * b["step_ms"] / 1000 for a, b in pairs)
    wall = lines[-1]["ts"] - lines[0]["ts"]
    evaluation = 1 / 15  # forward of 10,000 images for each forward and backward of 50,000
    assert 1 - training / wall <= evaluation + 0.05
