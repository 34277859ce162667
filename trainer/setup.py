"""Before the first step: the images, the other ranks, the network, and where to go on from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from trainer.config import Config
from trainer.console import Progress, say
from trainer.data import Images, load_dataset
from trainer.disks import find_disks
from trainer.distributed import Ranks, backend, describe, identity, join, pick_device
from trainer.ending import fail
from trainer.errors import DataError, TrainerError
from trainer.logs import Metrics
from trainer.optim import FEW_STEPS, make_plan
from trainer.restore import Restored, check_fits, restore
from trainer.run import Run
from trainer.signals import StopRequest
from trainer.state import Training, build, from_checkpoint, versions
from trainer.state import identity as checkpoint_identity


def meet(config: Config, env: Mapping[str, str]) -> tuple[Ranks, Images]:
    """Load the images on every rank, then agree that all could."""
    failure: Exception | None = None
    data: Images | None = None
    device = torch.device("cpu")
    try:
        device = pick_device(config.device, env)
        data = load_dataset(config, device)
    except TrainerError as error:
        failure = error
    ranks = identity(env, device)
    try:
        join(ranks, env, config.timeout, failure)
    except TrainerError as error:
        fail(None, config, ranks, error)
        raise
    assert data is not None
    return ranks, data


def begin(
    config: Config, ranks: Ranks, data: Images, stop: StopRequest, env: Mapping[str, str]
) -> Run:
    """Network and optimizer, fresh or from a checkpoint; the first lines of log and metrics."""
    say(describe(ranks, config.seed))
    prints = ranks.gather(data.fingerprint)
    if len(set(prints)) > 1:
        odd = next(rank for rank, value in enumerate(prints) if value != prints[0])
        raise DataError(f"rank {odd} has other images than rank 0: push the same folder everywhere")
    with ranks.agreeing():
        plan = make_plan(config, data.size("train"), ranks.world_size)
        t = build(config, plan, ranks, data)
    asked_again = (
        env.get("DDPCTL_RESUME") == "1" or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    )
    disks = find_disks(config, ranks)
    restored = restore(config, ranks, disks, asked_again=asked_again)
    notes = []
    if restored:
        with ranks.agreeing():
            now = checkpoint_identity(t)
            notes = check_fits(restored.meta, now, config.resume_override)
            from_checkpoint(t, restored.state, restored.meta)
    metrics = start_files(t, restored, env)
    run = Run(t, metrics, stop, Progress(t), disks)
    if restored:
        run.saved, run.saved_step = f"ckpt/{restored.name}", t.step
    if ranks.first:
        if config.tensorboard and metrics.writer is None:
            say("note: --tensorboard: the tensorboard package is not installed")
        introduce(t, restored, notes, asked_again)
    return run


def start_files(t: Training, restored: Restored | None, env: Mapping[str, str]) -> Metrics:
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
                data=checkpoint_identity(t)["data"],
                versions=versions(),
                config=dataclasses.asdict(c),
            )
        except OSError as error:
            raise TrainerError(
                f"cannot write to {c.out}: {error.strerror or error}: give another --out"
            ) from error
    return metrics


def introduce(t: Training, restored: Restored | None, notes: list[str], asked_again: bool) -> None:
    c, plan = t.config, t.plan
    for warning in restored.warnings if restored else ():
        say(f"WARNING: damaged checkpoint, going back to an older one: {warning}")
    if restored:
        before = restored.meta["world_size"]
        say(f"resumed from ckpt/{restored.name} (step {t.step} of {plan.total_steps})")
        if restored.sender is not None:
            say(f"rank {restored.sender} sent the checkpoint to ranks whose disk lacks it")
        if before != t.ranks.world_size:
            say(f"world size {before} -> {t.ranks.world_size}: same batches, same order")
        for note in notes:
            say(f"WARNING: going on with other settings: {note}")
        if restored.meta["versions"] != versions():
            say(f"WARNING: saved by {restored.meta['versions']}, this is {versions()}")
    elif asked_again:
        say("WARNING: nothing to resume from: starting at step 0")
    say(
        f"{c.model}, {sum(p.numel() for p in t.parameters):,} parameters; {t.data.name}: "
        f"{plan.samples} images to train on, {t.data.size('test')} to test on"
    )
    say(
        f"{plan.epochs} epochs of {plan.steps_per_epoch} steps; global batch {plan.global_batch} "
        f"= {t.ranks.world_size} ranks x {plan.global_batch // t.ranks.world_size}, in "
        f"{plan.parts_per_rank} micro-batch(es) a rank; peak lr {plan.peak_lr:.6g} = "
        f"{c.lr:g} x {plan.peak_lr / c.lr if c.lr else 1:g} ({c.lr_scaling} scaling)"
    )
    if plan.steps_per_epoch < FEW_STEPS and plan.epochs > 1:
        say(f"note: {plan.steps_per_epoch} steps an epoch are few: a smaller batch trains better")
