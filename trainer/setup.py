"""Before the first step: load images, join the other ranks, build the network, restore a checkpoint."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from .config import NEEDS_GPU, Config
from .data import Images, Resident, load_dataset
from .distributed import Ranks, backend, check_replicas, describe, identify, join, pick_device
from .ending import LINGER, write_failure
from .errors import DataError, TrainerError, UsageError
from .logs import Metrics, Progress, say
from .loss import make_losses
from .model import LARGE, build_model, choose_stem, copy, load_weights
from .optim import FEW_STEPS, Ema, Plan, make_optimizer, make_plan
from .restore import Disks, Restored, check_fits, find_disks, restore
from .state import StopRequest, Training, from_checkpoint, identity, versions


def meet(config: Config, env: Mapping[str, str]) -> tuple[Ranks, Images]:
    """Load the images on every rank, then check that every rank succeeded."""
    failure: Exception | None = None
    data: Images | None = None
    device = torch.device("cpu")
    try:
        device = pick_device(config.device, env)
        data = load_dataset(config, device)
    except TrainerError as error:
        failure = error
    ranks = identify(env, device)
    try:
        ranks = join(ranks, env, config.timeout, failure)
    except TrainerError as error:
        write_failure(None, config, ranks, error)
        get_error_handler().record_exception(error)
        if not ranks.first:
            time.sleep(LINGER)
        raise
    assert data is not None
    return ranks, data


def begin(
    config: Config, ranks: Ranks, data: Images, stop: StopRequest, env: Mapping[str, str]
) -> Training:
    """Return a Training, new or from a checkpoint, and write the first lines of log and metrics."""
    say(describe(ranks, config.seed))
    fingerprints = ranks.gather(data.fingerprint)
    if len(set(fingerprints)) > 1:
        odd = next(rank for rank, value in enumerate(fingerprints) if value != fingerprints[0])
        raise DataError(f"rank {odd}'s images differ from rank 0's: push the same to every host")
    with ranks.agreeing():
        plan = make_plan(config, data.size("train"), ranks.world_size)
        t = build(config, plan, ranks, data, stop)
    later_attempt = (
        env.get("DDPCTL_RESUME") == "1" or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    )
    t.disks = find_disks(config, ranks)
    restored = restore(config, ranks, t.disks, later_attempt=later_attempt)
    notes = []
    if restored:
        with ranks.agreeing():
            notes = check_fits(restored.meta, identity(t), t.config, plan.parts)
            from_checkpoint(t, restored.state, restored.meta)
        t.saved, t.saved_step = f"ckpt/{restored.name}", t.step
    elif config.weights:
        with ranks.agreeing():
            fresh = load_weights(t.model, config.weights)
            if t.ema:
                copy(t.ema.live, t.ema.values)
        check_replicas(ranks, t.parameters, t.step)  # fails unless every rank read the same file
        notes = [f"not in {config.weights}: {', '.join(fresh)}"] if fresh else []
    t.metrics = start_metrics(t, restored, env)
    t.progress.restart(t.step)
    if ranks.first:
        introduce(t, restored, notes, later_attempt)
    return t


def build(
    config: Config, plan: Plan, ranks: Ranks, data: Images, stop: StopRequest | None = None
) -> Training:
    config = resolve(config, ranks, data)
    torch.manual_seed(config.seed)
    classes = config.num_classes or data.num_classes
    model = build_model(config.model, num_classes=classes, stem=config.stem, width=config.width)
    model = model.to(ranks.device)
    set_layout(model, config, ranks.device)
    if config.bn == "sync" and ranks.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    compiled: nn.Module = model
    if config.compile:
        compiled = torch.compile(model, mode=config.compile_mode)  # type: ignore[assignment]
    alone = ranks.world_size == 1 or config.canonical_shards
    return Training(
        config=config,
        plan=plan,
        ranks=ranks,
        data=data,
        model=model,
        compiled=compiled,
        net=compiled if alone else ddp(compiled, ranks, config.grad_compression),
        optimizer=make_optimizer(model, config),
        scaler=torch.amp.GradScaler(ranks.device.type) if config.amp == "fp16" else None,
        ema=Ema(model, config.ema) if config.ema else None,
        totals=torch.zeros(4, dtype=torch.float64, device=ranks.device),
        stop=StopRequest() if stop is None else stop,  # it is falsy
        progress=Progress(config, plan, ranks, step=0),
        disks=Disks(Path(config.checkpoint_dir), own=True, copy_on=None),
        losses=make_losses(config),
        profiler=make_profiler(config, ranks),
        poll_lag=1 if ranks.device.type == "cuda" else 0,
    )


def resolve(config: Config, ranks: Ranks, data: Images) -> Config:
    """The settings that depend on the machine and the data. A collective."""
    on_gpu = ranks.device.type == "cuda"
    if config.bn == "sync" and not on_gpu:
        raise UsageError(NEEDS_GPU)
    if config.cuda_graph and not (on_gpu and ranks.world_size == 1 and isinstance(data, Resident)):
        raise UsageError(
            "--cuda-graph needs a single rank on a GPU, and images that stay there (CIFAR, synthetic)"
        )
    stem = choose_stem(config.model, config.stem, config.width, data.image_size)
    if stem == "cifar" and config.model in LARGE and data.image_size >= 96 and ranks.first:
        say(f"note: at {data.image_size} pixels --stem imagenet does a sixteenth of the work")
    amp = config.amp
    if amp == "auto":  # older GPUs only emulate bf16
        has_bf16 = on_gpu and torch.cuda.get_device_capability(ranks.device) >= (8, 0)
        amp = "bf16" if has_bf16 else "off"
    problem = ""
    if config.compile:
        problem = next(filter(None, ranks.gather(compiler_problem(ranks.device))), "")
        if problem and ranks.first:
            say(f"WARNING: continuing without --compile: {problem}")
    compiles = config.compile and not problem
    return dataclasses.replace(config, stem=stem, amp=amp, compile=compiles)


def set_layout(model: nn.Module, config: Config, device: torch.device) -> None:
    """NHWC weights on a GPU. On a CPU the images decide the layout, and the fused optimizer is twice
    as fast on plain weights; there only 1x1 kernels have NHWC strides, as their gradients will."""
    everywhere = config.channels_last and device.type == "cuda"
    for parameter in model.parameters():
        if parameter.ndim == 4 and (everywhere or parameter.shape[2:] == (1, 1)):
            parameter.data = parameter.data.to(memory_format=torch.channels_last)


def compiler_problem(device: torch.device) -> str:
    """Why torch.compile does not work here (it needs a C++ compiler), or "" if it does."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return ""


def ddp(model: nn.Module, ranks: Ranks, compression: str = "off") -> DistributedDataParallel:
    """Compiling happens inside DDP, which keeps DDP's hooks out of the compiled graph. Batch-norm
    statistics are averaged before evaluating and saving, not sent at each forward."""
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    sync: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    net = DistributedDataParallel(
        model,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        **sync,  # torch 2.13 renamed it
    )
    if compression == "bf16":
        # DDP refuses the original hook without NCCL, although Gloo supports it.
        net.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
    return net


def make_profiler(config: Config, ranks: Ranks) -> profile | None:
    """For --profile FIRST:LAST: enter it around the training loop, and call `step` each step. Steps
    count from the start or the resume, so that a resumed run can also be profiled."""
    if config.parsed_profile is None:
        return None
    first, last = config.parsed_profile
    warmup = min(1, first - 1)
    on_gpu = [ProfilerActivity.CUDA] if ranks.device.type == "cuda" else []

    def write(recorded: profile) -> None:
        path = Path(config.out) / f"trace-rank-{ranks.rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)  # other nodes do not have it yet
        recorded.export_chrome_trace(str(path))

    return profile(
        activities=[ProfilerActivity.CPU, *on_gpu],
        schedule=schedule(
            wait=first - 1 - warmup, warmup=warmup, active=last - first + 1, repeat=1
        ),
        on_trace_ready=write,
    )


def start_metrics(t: Training, restored: Restored | None, env: Mapping[str, str]) -> Metrics:
    """metrics.jsonl with its `start` line. Raises TrainerError on all ranks alike."""
    c, ranks = t.config, t.ranks
    with ranks.agreeing():
        try:
            metrics = Metrics(
                Path(c.out) if ranks.first else None, t.step if restored else None, c.tensorboard
            )
            metrics.write(
                "start",
                run=env.get("DDPCTL_RUN_ID"),
                attempt=int(env.get("DDPCTL_ATTEMPT") or 1),
                world=ranks.world_size,
                nodes=ranks.nnodes,
                backend=backend(ranks),
                device=ranks.device.type,
                step=t.step,
                resumed_from=f"ckpt/{restored.name}" if restored else None,
                global_batch=t.plan.global_batch,
                steps_per_epoch=t.plan.steps_per_epoch,
                total_steps=t.plan.total_steps,
                peak_lr=t.plan.peak_lr,
                data=t.data.fingerprint,
                versions=versions(),
                config=dataclasses.asdict(c),
            )
        except OSError as error:
            raise TrainerError(
                f"cannot write to {c.out}: {error.strerror or error}: pass another --out"
            ) from error
    return metrics


def introduce(
    t: Training, restored: Restored | None, notes: list[str], later_attempt: bool
) -> None:
    """Print the run's settings and where it starts."""
    c, plan = t.config, t.plan
    if c.tensorboard and t.metrics.writer is None:
        say("note: --tensorboard: the tensorboard package is not installed")
    if restored:
        for warning in restored.warnings:
            say(f"WARNING: damaged checkpoint, falling back to an older one: {warning}")
        say(f"resumed from ckpt/{restored.name} (step {t.step} of {plan.total_steps})")
        if restored.sender is not None:
            say(f"rank {restored.sender} sent the checkpoint to ranks that do not have it on disk")
        before = restored.meta["world_size"]
        if before != plan.world_size:
            say(f"world size {before} -> {plan.world_size}: same batches, same order")
        if restored.meta["versions"] != versions():
            say(f"WARNING: saved by {restored.meta['versions']}, this is {versions()}")
    elif later_attempt:
        say("WARNING: nothing to resume from: starting at step 0")
    for note in notes:
        say(f"WARNING: {note}")
    tf32 = t.ranks.device.type == "cuda" and torch.backends.cudnn.allow_tf32
    precision = "fp32, with TF32 in convolutions" if tf32 else "fp32"
    if c.amp != "off":
        precision = f"{c.amp} autocast"
    say(
        f"{c.model}, {sum(p.numel() for p in t.parameters):,} parameters; {t.data.name}: "
        f"{plan.samples} training images, {t.data.size('test')} test images"
    )
    say(
        f"{plan.epochs} epochs of {plan.steps_per_epoch} steps; global batch {plan.global_batch} "
        f"= {plan.world_size} ranks x {plan.global_batch // plan.world_size}, in "
        f"{plan.parts_per_rank} micro-batch(es) per rank; peak lr {plan.peak_lr:.6g} = "
        f"{c.lr:g} x {plan.peak_lr / c.lr if c.lr else 1:g} ({c.lr_scaling} scaling); {precision}"
    )
    if plan.steps_per_epoch < FEW_STEPS and plan.epochs > 1:
        say(f"note: only {plan.steps_per_epoch} steps per epoch: a smaller batch trains better")
