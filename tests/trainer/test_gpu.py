"""What only a GPU can show: `make gpu`. One GPU is enough; NCCL runs with a single rank."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from test_gradients import make
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm
from trainer_ranks import CONTEXT, Job, newest_state, same

from trainer import checkpoint, evaluate, train
from trainer.distributed import identify, make_group
from trainer.setup import ddp
from trainer.tools.cuda_graph import GraphedStep

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
    make_group(ranks, torch.distributed.FileStore(f"{folder}/store", 1), timeout=30.0)
    values = torch.ones(3, device=DEVICE)
    torch.distributed.all_reduce(values)
    assert values.tolist() == [1.0, 1.0, 1.0]
    torch.distributed.all_gather_object([None], "by Gloo")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)).to(DEVICE)
    x = torch.randn(16, 3, 8, 8, device=DEVICE).to(memory_format=torch.channels_last)
    ddp(network, ranks, "bf16")(x).square().sum().backward()
    # With a single rank the module falls back to plain batch norm: call what it calls with several.
    found, wanted = ((torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)) for _ in "ab")
    group = torch.distributed.group.WORLD
    synced = SyncBatchNorm.apply(x, None, None, *found, 1e-5, 0.1, group, 1)
    torch.testing.assert_close(synced, nn.functional.batch_norm(x, *wanted, training=True))
    torch.testing.assert_close(found, wanted)
    torch.distributed.destroy_process_group()


def test_nccl_with_its_device_ddp_and_syncbn(tmp_path: Path) -> None:
    process = CONTEXT.Process(target=nccl, args=(str(tmp_path),))
    process.start()
    process.join(120)
    assert process.exitcode == 0


def loss_of(*flags: str) -> float:
    """Mean loss of steps 11 to 20."""
    t = make(identify({}, DEVICE), *GPU, *flags)
    order = torch.arange(t.plan.samples, device=DEVICE)
    if t.config.cuda_graph:
        t.graphed = GraphedStep(train.backward_and_update)
    for step in range(20):
        if step == 10:
            t.totals.zero_()
        train.train_step(t, order)
    return float(t.totals[0] / t.totals[1])


@pytest.mark.parametrize(
    "flags",
    [
        ("--amp", "bf16"),
        ("--amp", "fp16"),
        ("--no-channels-last",),
        ("--compile",),
        ("--cuda-graph",),
    ],
    ids=["bf16", "fp16", "nchw", "compile", "graph"],
)
def test_the_fast_paths_train_as_plain_fp32_does(flags: tuple[str, ...]) -> None:
    assert loss_of("--amp", "off", *flags) == pytest.approx(loss_of("--amp", "off"), rel=0.05)


def test_the_compilers_own_graphs_leave_accumulated_gradients_alone() -> None:
    flags = ("--amp", "off", "--grad-accum-steps", "2")
    compiled = loss_of(*flags, "--compile", "--compile-mode", "reduce-overhead")
    assert compiled == pytest.approx(loss_of(*flags), rel=0.05)


def test_auto_is_bf16_where_the_gpu_has_it() -> None:
    t = make(identify({}, DEVICE), *GPU)
    wanted = "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "off"
    assert t.config.amp == wanted


def test_two_deterministic_runs_have_one_result_and_resume_bitwise(tmp_path: Path) -> None:
    flags = (*GPU, "--deterministic", "--schedule", "constant", "--max-steps")
    first, second = (Job(tmp_path / name, *flags, "30").done() for name in ("a", "b"))
    assert same(newest_state(first.out), newest_state(second.out))
    Job(tmp_path / "c", *flags, "13").done()
    Job(tmp_path / "c", *flags, "30", "--resume", "auto").done()
    assert same(newest_state(first.out), newest_state(tmp_path / "c"))


def test_no_loss_of_a_late_poll_is_lost_and_a_signal_still_saves(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", *GPU, "--epochs", "3", "--poll-every", "3").done()
    assert job.metrics("train")[-1]["step"] == 60
    stopped = Job(tmp_path / "stopped", *GPU, "--epochs", "2000")
    stopped.wait_for("train", step=10, timeout=60)
    stopped.signal(0)
    assert stopped.codes() == [75]
    assert (tmp_path / "stopped" / stopped.status["checkpoint"]).is_dir()


def test_a_snapshot_is_what_the_gpu_held() -> None:
    t = make(identify({}, DEVICE), *GPU)
    train.train_step(t, torch.arange(t.plan.samples, device=DEVICE))
    copied = checkpoint.snapshot(t.model.state_dict())
    checkpoint.synchronise(DEVICE)
    assert all(value.is_pinned() for value in copied.values())
    assert same(copied, {name: value.cpu() for name, value in t.model.state_dict().items()})


def test_evaluation_waits_for_the_gpu_once() -> None:
    t = make(identify({}, DEVICE), *GPU, "--synthetic-test", "500")
    train.train_step(t, torch.arange(t.plan.samples, device=DEVICE))
    evaluate.evaluate(t, "test")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        table = evaluate.count_blocks(t, "test")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(table[:, 3].sum()) == 500


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
