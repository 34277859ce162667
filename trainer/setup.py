"""Before the first step: load images, join the other ranks, find a checkpoint, build the network."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from .config import NEEDS_GPU, Config, is_function_name, named_function
from .data import Images, Resident, load_dataset
from .distributed import Ranks, backend, check_replicas, describe, identify, join, pick_device
from .ending import LINGER, write_failure
from .errors import DataError, TrainerError, UsageError
from .logs import Log, Progress, say
from .loss import make_losses
from .model import LARGE, build_model, choose_stem, load_weights
from .net import Net, flops
from .optim import make_optimizer
from .plan import Plan, make_plan, schedule
from .poll import Poll, StopRequest
from .restore import Disks, Restored, check_fits, find_disks, prepare, restore
from .saver import Saver
from .slow_ranks import OwnWork
from .state import Training, from_checkpoint, identity, versions

FEW_STEPS = 25  # per epoch; with fewer, the batch is usually too large to train well


def meet(config: Config, env: Mapping[str, str]) -> tuple[Ranks, Images]:
    """Load the images and join the other ranks. Return both.

    If this fails on any rank, raises that rank's error on all ranks.
    """
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
    """Return a new or resumed Training. Prints its settings, and begins or continues metrics.jsonl."""
    say(describe(ranks, config.seed))
    fingerprints = ranks.gather(data.fingerprint)
    if len(set(fingerprints)) > 1:
        odd = next(rank for rank, value in enumerate(fingerprints) if value != fingerprints[0])
        raise DataError(
            f"rank {odd}'s images differ from rank 0's; push the same images to every host"
        )
    later_attempt = (
        env.get("DDPCTL_RESUME") == "1" or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    )
    disks = find_disks(config, ranks)
    restored = restore(config, ranks, later_attempt=later_attempt)
    with ranks.agreeing():
        config = resolve(config, ranks, data)
        before = restored.meta if restored else None
        plan = make_plan(config, data.size("train"), ranks.world_size, before)
        t = build(config, plan, ranks, data, disks, stop)
    notes = start_values(t, restored)
    if not config.test_only:
        prepare(disks, restored, ranks)
        start_log(t, restored, env)
    t.poll.progress.restart(t.step)
    if ranks.first:
        introduce(t, restored, notes, later_attempt)
    return t


def build(
    config: Config,
    plan: Plan,
    ranks: Ranks,
    data: Images,
    disks: Disks | None = None,
    stop: StopRequest | None = None,
) -> Training:
    """Return a Training at step 0. `config` must come from `resolve`. Raises UsageError."""
    stop = StopRequest() if stop is None else stop  # a StopRequest is falsy at first
    torch.manual_seed(config.seed)
    writes = ranks.first and not config.test_only
    report = None
    with ranks.agreeing():  # before DDP, in which the ranks wait for one another
        model = make_model(config, ranks, data)
        schedule(config)  # raises UsageError
        if config.metric:
            named_function("--metric", config.metric)  # raises UsageError
        if writes and config.report_to:  # importing its module may start a tracker
            report = named_function("--report-to", config.report_to)
    work = flops(model, data.shape) if ranks.first else None
    net = Net(model, config, plan, ranks, data.shape)
    optimizer = make_optimizer(model, config)  # raises UsageError
    return Training(
        config=config,
        plan=plan,
        ranks=ranks,
        data=data,
        net=net,
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(ranks.device.type) if config.amp == "fp16" else None,
        losses=make_losses(config),
        poll=Poll(
            ranks,
            Progress(config, plan, ranks, work),
            stop,
            OwnWork(ranks.device, net.trainable[0]),
        ),
        saver=Saver(disks or Disks(Path(config.checkpoint_dir), True, None), ranks, config.keep),
        log=Log(Path(config.out) if writes else None, report),
    )


def make_model(config: Config, ranks: Ranks, data: Images) -> nn.Module:
    """Return the network on this rank's device, not yet compiled or distributed. Raises UsageError."""
    classes = config.num_classes or data.num_classes
    model = build_model(config.model, num_classes=classes, stem=config.stem, width=config.width)
    model = model.to(ranks.device)
    set_layout(model, config, ranks.device)
    if config.bn == "sync" and ranks.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def start_values(t: Training, restored: Restored | None) -> list[str]:
    """Load the checkpoint or, without one, the weights that --weights names. Return warnings for the
    user. Raises CheckpointError or ReplicaMismatch, the same on all ranks."""
    c, notes = t.config, []
    if restored:
        with t.ranks.agreeing():
            notes = check_fits(restored.meta, identity(t), c)
            parts = restored.meta["plan"]["parts"]
            if c.bn == "local" and parts != t.plan.parts:
                notes.append(
                    f"continuing with different settings: micro-batches {parts} -> {t.plan.parts}; each "
                    "has its own batch-norm statistics"
                )
            from_checkpoint(t, restored.state, restored.meta)
        t.saver.newest, t.saver.step = restored.name, t.step
        t.saver.eval_pending = t.eval_pending
    elif c.weights:
        with t.ranks.agreeing():
            fresh = load_weights(t.net.model, c.weights)
            if t.net.ema:
                t.net.ema.load(t.net.model.state_dict())
        if fresh:
            notes = [
                f"{c.weights} lacks these weights or has them in another shape, so they were not "
                f"loaded: {', '.join(fresh)}"
            ]
    # fails unless all ranks loaded the same weights
    check_replicas(t.ranks, t.net.parameters, t.step)
    return notes


def resolve(config: Config, ranks: Ranks, data: Images) -> Config:
    """Return the settings after filling in those that depend on the machine and the data. A collective."""
    on_gpu = ranks.device.type == "cuda"
    if config.bn == "sync" and not on_gpu:
        raise UsageError(NEEDS_GPU)
    width = data.shape[-1]
    stem = choose_stem(config.model, config.stem, config.width, width)
    if stem == "cifar" and config.model in LARGE and width >= 96 and ranks.first:
        say(f"note: at {width} pixels, --stem imagenet needs a sixteenth of the work")
    no_folder = isinstance(data, Resident) or is_function_name(config.data)
    if no_folder and (config.randaugment or config.trivialaugment) and ranks.first:
        say("WARNING: --randaugment and --trivialaugment apply only to image folders")
    amp = config.amp
    if amp == "auto":  # older GPUs only emulate bf16
        has_bf16 = on_gpu and torch.cuda.get_device_capability(ranks.device) >= (8, 0)
        amp = "bf16" if has_bf16 else "off"
    if amp == "bf16" and not on_gpu and ranks.first and emulates_bf16():
        say("WARNING: this CPU emulates bf16, up to ten times slower than fp32; use --amp off")
    exchange = config.grad_exchange
    if exchange == "auto":
        exchange = "fp32" if on_gpu else "fp64"
    problem = ""
    if config.compile:
        problem = next(filter(None, ranks.gather(compiler_problem(ranks.device))), "")
        if problem and ranks.first:
            say(f"WARNING: continuing without --compile: {problem}")
    compiles = config.compile and not problem
    return dataclasses.replace(config, stem=stem, amp=amp, compile=compiles, grad_exchange=exchange)


def set_layout(model: nn.Module, config: Config, device: torch.device) -> None:
    """Store all weights in NHWC if --channels-last is set and this rank trains on a GPU. Otherwise, give
    NHWC strides only to 1x1 kernels, because their gradients have NHWC strides in any case. On a CPU,
    the images decide the layout, and the fused optimizer is twice as fast on plain weights."""
    everywhere = config.channels_last and device.type == "cuda"
    for parameter in model.parameters():
        if parameter.ndim == 4 and (everywhere or parameter.shape[2:] == (1, 1)):
            parameter.data = parameter.data.to(memory_format=torch.channels_last)


def emulates_bf16() -> bool:
    """Return whether this is an x86 CPU without bf16 instructions.

    False with older versions of torch, which do not report this.
    """
    has: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    native = has.get("avx512_bf16") or has.get("amx_bf16")
    return not native and has.get("architecture") == "x86_64"


def compiler_problem(device: torch.device) -> str:
    """Return why torch.compile does not work, such as a missing C++ compiler, or "" if it works."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(2, device=device))
    except Exception as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return ""


def start_log(t: Training, restored: Restored | None, env: Mapping[str, str]) -> None:
    """Begin or continue metrics.jsonl. Raises TrainerError, the same on all ranks."""
    c, ranks = t.config, t.ranks
    with ranks.agreeing():
        try:
            t.log.start(t.step if restored else None)
        except OSError as error:
            raise TrainerError(
                f"cannot write to {c.out}: {error.strerror or error}; pass another --out"
            ) from error
    t.log.write(
        "start",
        run=env.get("DDPCTL_RUN_ID"),
        attempt=int(env.get("DDPCTL_ATTEMPT") or 1),
        world=ranks.world_size,
        nodes=ranks.nnodes,
        backend=backend(ranks),
        device=ranks.device.type,
        step=t.step,
        resumed_from=restored.name if restored else None,
        global_batch=t.plan.global_batch,
        steps_per_epoch=t.plan.steps_per_epoch,
        total_steps=t.plan.total_steps,
        peak_lr=t.plan.peak_lr,
        data=t.data.fingerprint,
        versions=versions(),
        config=dataclasses.asdict(c),
    )


def introduce(
    t: Training, restored: Restored | None, notes: list[str], later_attempt: bool
) -> None:
    """Print the run's settings and where it starts."""
    c, plan = t.config, t.plan
    if restored:
        for warning in restored.warnings:
            say(f"WARNING: ignoring a damaged checkpoint: {warning}")
        say(f"resumed from {restored.name} (step {t.step} of {plan.total_steps})")
        if restored.sender is not None:
            say(f"rank {restored.sender} sent the checkpoint to ranks that do not have it on disk")
        before = restored.meta["plan"]["world_size"]
        if before != plan.world_size:
            same = restored.meta["identity"] == identity(t)
            how = ": same batches, same order" if same else ""
            say(f"world size {before} -> {plan.world_size}{how}")
        if plan.parts % plan.world_size:
            even = dataclasses.replace(plan, parts=plan.world_size)
            say(
                f"note: keeping {plan.parts} micro-batches gives the same result, but some ranks "
                f"wait for others; --elastic even is faster, with global batch {even}"
            )
        if restored.meta["versions"] != versions():
            say(
                f"WARNING: the checkpoint was saved by {restored.meta['versions']}, but this run "
                f"has {versions()}"
            )
    elif later_attempt:
        say("WARNING: found no checkpoint to resume from; starting at step 0")
    for note in notes:
        say(f"WARNING: {note}")
    say(
        f"{c.model}, {sum(p.numel() for p in t.net.parameters):,} parameters; {t.data.name}: "
        f"{plan.samples} training images, {t.data.size('test')} test images"
    )
    say(
        f"epochs: {plan.epochs}, steps per epoch: {plan.steps_per_epoch}; global batch {plan}, "
        f"ranks: {plan.world_size}, micro-batches: {plan.parts}; peak lr {plan.peak_lr:.6g} = "
        f"{c.lr:g} x {plan.peak_lr / c.lr if c.lr else 1:g} ({c.lr_scaling} scaling); "
        + ("fp32" if c.amp == "off" else f"{c.amp} autocast")
    )
    if plan.steps_per_epoch < FEW_STEPS and plan.epochs > 1:
        say("note: there are few steps per epoch; a smaller batch trains better")
