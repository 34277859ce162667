"""The training loop, top to bottom: run, epoch, step, backward, update, poll, end of epoch.

torchrun --nproc-per-node 2 -m trainer --data synthetic --model resnet8 --epochs 3   # one node
torchrun --nnodes 2 --node-rank 0 --master-addr A --master-port 29500 -m trainer     # node 0
python -m trainer --data ./data --model resnet18                                     # one process
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.profiler import ProfilerActivity, profile
from torch.profiler import schedule as profiled_steps

from .checkpoint import Written
from .config import Config
from .data import Batch
from .data.augment import changed, mix
from .data.order import epoch_order, mixed_seed
from .distributed import Ranks, check_replicas, kept, leave
from .ending import Watch, finish, preempted
from .evaluate import export, record_evaluation, selecting_split, test_only
from .logs import say, train_line
from .optim import keeps_gradients, set_rate
from .plan import lr_at, part_bounds
from .poll import IMAGES, LOSS, NORM, Stopped, StopRequest
from .setup import begin, meet
from .state import Training, to_checkpoint
from .tools import canonical_shards


def main(config: Config, env: Mapping[str, str]) -> int:
    """Train as `config` says, with the ranks that `env` describes. Return the exit code.

    Raises TrainerError, the same on all ranks, once status.json is written.
    """
    set_determinism(config)
    stop = StopRequest(config.parsed_max_time)
    ranks, data = meet(config, env)
    stop.listen()
    watch = Watch(config, ranks)
    watch.start()
    try:
        t = watch.t = begin(config, ranks, data, stop, env)
        kept.append(t)  # DDP holds the process group
        code = run(t, env)
        stop.ignore()
        leave(ranks)
    except Exception as error:
        shared = watch.fail(error)
        if shared is error:
            raise
        raise shared from error
    finally:
        data.close()
    watch.done()
    return code


def run(t: Training, env: Mapping[str, str]) -> int:
    try:
        if t.config.test_only:
            test_only(t)
            return 0
        train(t)
    except Stopped:
        if not t.config.test_only:
            save_last(t)
        return preempted(t, env)
    finish(t, "completed", "")
    return 0


def train(t: Training) -> None:
    if t.eval_pending:
        end_epoch(t)
    with make_profiler(t.config, t.ranks) as profiler:
        while t.step < t.plan.total_steps:
            train_epoch(t, profiler)
            end_epoch(t)
    if t.config.val_split and t.log.last.get("split") != "test":
        record_evaluation(t, "test")
        save(t)
    save_last(t)


def train_epoch(t: Training, profiler: profile | None = None) -> None:
    """Train from the current step to the end of its epoch, or to the last step of the run."""
    c = t.config
    epoch = t.step // t.plan.steps_per_epoch
    end = min((epoch + 1) * t.plan.steps_per_epoch, t.plan.total_steps)
    order = epoch_order(c.seed, epoch, t.plan.samples)
    parts = t.plan.slices_of(t.ranks.rank, range(t.step, end))
    batches = t.data.train_batches(order, parts, seed=c.seed, epoch=epoch)
    t.net.model.train()
    while t.step < end:
        train_step(t, batches)
        if profiler:
            profiler.step()
        if t.step == end:
            t.eval_pending = t.epoch % c.eval_every == 0 or end == t.plan.total_steps
        if t.step % t.poll.every == 0 or t.step == end:
            poll(t, last=t.step == end)
        if c.check_every and t.step % c.check_every == 0:
            check_replicas(t.ranks, t.net.parameters, t.step)


def train_step(t: Training, batches: Iterator[Batch]) -> None:
    """Advance by one optimizer step. `batches`: this rank's micro-batches, in order."""
    t.poll.work.begin()
    set_rate(t.optimizer, lr_at(t.step, t.config, t.plan))
    backward(t, batches)
    update(t)
    if t.net.ema:
        t.net.ema.update(t.step)
    t.step += 1


def backward(t: Training, batches: Iterator[Batch]) -> None:
    """Leave the gradient of the global batch's mean loss in every rank's parameters.

    Each micro-batch adds its summed loss divided by the size of the global batch, so the batch may
    be cut unevenly.
    """
    start, end = t.plan.batch_of(t.step)
    size, parts = end - start, t.plan.parts_of(t.ranks.rank)
    if t.config.canonical_shards:
        canonical_shards.backward(t, size, lambda part: micro_batch_loss(t, size, part, batches))
        return
    buffers = t.net.part_buffers() if t.plan.parts > 1 and t.net.moving else None
    changes = []
    for part in parts:
        if buffers:
            buffers.restore()
        last = part == parts[-1]
        with t.net.exchanging(when=last):
            loss = micro_batch_loss(t, size, part, batches) / size
            t.net.backward(t.scaler.scale(loss) if t.scaler else loss, last=last)
        if buffers:
            changes.append(buffers.change())
    if buffers:
        change = t.ranks.sum_(torch.stack(changes).sum(0))
        buffers.apply(change / t.plan.parts)


def lacks_statistics(t: Training, size: int) -> bool:
    """Return whether batch norms must use their running statistics because a batch of `size` images
    is too small: a part may have only one image or, with --bn sync, none. The image that stands in
    for an empty part would count in the statistics of all ranks."""
    return size < t.plan.parts * (1 if t.config.bn == "sync" else 2)


def micro_batch_loss(t: Training, size: int, part: int, batches: Iterator[Batch]) -> torch.Tensor:
    """Return the summed loss of part `part` of a batch of `size` images. An empty part has zero
    loss, but still has gradients, because every rank must take part in the all-reduce."""
    c, epoch = t.config, t.step // t.plan.steps_per_epoch
    first, last = part_bounds(size, t.plan.parts, part)
    began = time.perf_counter()
    batch = next(batches)
    x = changed(batch, c, epoch=epoch)
    x, share = mix(x, c.mixup, c.cutmix, seed=mixed_seed(f"mix/{c.seed}/{t.step}/{part}"))
    t.poll.progress.data_seconds += time.perf_counter() - began
    # The network's random numbers depend only on the micro-batch, so no random state is saved.
    torch.manual_seed(mixed_seed(f"network/{c.seed}/{t.step}/{part}"))
    logits = t.net(x, fixed=c.bn == "frozen" or lacks_statistics(t, size))
    loss = t.losses.training(logits, batch.y)
    if share < 1:
        loss = share * loss + (1 - share) * t.losses.training(logits, batch.y.roll(1))
    total = loss.sum()
    if last == first:
        return total * 0
    t.poll.totals[LOSS] += total.detach()
    t.poll.totals[IMAGES] += last - first
    return total


def update(t: Training) -> None:
    c = t.config
    if c.clip_grad_norm or (t.step + 1) % c.print_every == 0:
        if t.scaler:
            t.scaler.unscale_(t.optimizer)
        norm = get_total_norm([p.grad for p in t.net.trainable if p.grad is not None])
        t.poll.totals[NORM] = norm
        if c.clip_grad_norm:
            clip_grads_with_norm_(t.net.trainable, c.clip_grad_norm, norm)
    if t.scaler:
        t.scaler.step(t.optimizer)
        t.scaler.update()
    else:
        t.optimizer.step()
    t.optimizer.zero_grad(set_to_none=not keeps_gradients(c))


def poll(t: Training, last: bool) -> None:
    """Exchange the ranks' totals and flags, then write a progress line, stop or save as needed.

    Raises Diverged if the loss is not finite, and Stopped if any rank was asked to stop.
    """
    t.saver.collect()
    due = t.ranks.first and t.saver.due(t.step, t.config.parsed_save_every)
    t.poll.exchange(t.step, save_due=due or t.saver.writer.failed)
    stop = t.poll.read(everything=last)
    if t.poll.progress.due(t.step) or last or stop:
        rate = float(t.optimizer.param_groups[0]["lr"])
        fields = t.poll.progress.fields(t.step, t.epoch, rate)
        t.log.write("train", **fields)
        if t.ranks.first:
            say(train_line(fields, t.plan))
    if stop:
        raise Stopped
    if t.poll.save_due and not last:  # at the end of an epoch, save after evaluating
        save(t)


def end_epoch(t: Training) -> None:
    if t.eval_pending:
        record_evaluation(t, selecting_split(t))
        t.eval_pending = False
    export(t)
    count, unit = t.config.parsed_save_every
    if t.poll.save_due or (unit == "ep" and count and t.epoch % count == 0):
        save(t)


def save(t: Training) -> None:
    """Check that all ranks hold the same weights, take a snapshot and write it while training
    continues. A collective."""
    began = time.perf_counter()
    t.saver.finish()
    t.poll.read(everything=True)  # weights after a loss that is not finite are not worth saving
    check_replicas(t.ranks, t.net.parameters, t.step)
    state, meta = to_checkpoint(t)
    paused = time.perf_counter() - began

    t.saver.save(state, meta, partial(record_saved, t, meta, paused))
    t.poll.save_due = False
    t.poll.progress.pause(paused)


def record_saved(t: Training, meta: Mapping[str, Any], paused: float, written: Written) -> None:
    saved, seconds = written
    t.log.write(
        "checkpoint",
        step=meta["step"],
        epoch=meta["epoch"],
        path=t.saver.newest,
        bytes=(saved.path / "state.pt").stat().st_size,
        sha256=saved.identity,
        seconds=round(seconds, 4),  # in the background
        paused=round(paused, 4),  # of training
    )


def save_last(t: Training) -> None:
    if (t.saver.step, t.saver.eval_pending) != (t.step, t.eval_pending):
        save(t)
    t.saver.finish()


def make_profiler(
    config: Config, ranks: Ranks
) -> contextlib.AbstractContextManager[profile | None]:
    """Return a context manager. With --profile FIRST:LAST, it yields a profiler, whose `step` must be
    called after each step; otherwise, it yields None.

    Steps are counted from the start or the resume, so that a resumed run can also be profiled.
    """
    if config.parsed_profile is None:
        return contextlib.nullcontext()
    first, last = config.parsed_profile
    warmup = min(1, first - 1)
    on_gpu = [ProfilerActivity.CUDA] if ranks.device.type == "cuda" else []

    def write(recorded: profile) -> None:
        path = Path(config.out) / f"trace-rank-{ranks.rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)  # other nodes do not have this folder yet
        recorded.export_chrome_trace(str(path))

    return profile(
        activities=[ProfilerActivity.CPU, *on_gpu],
        schedule=profiled_steps(
            wait=first - 1 - warmup, warmup=warmup, active=last - first + 1, repeat=1
        ),
        on_trace_ready=write,
    )


def set_determinism(config: Config) -> None:
    """Set the thread count and the deterministic switches. Call this before CUDA starts, because
    that is when cuBLAS reads CUBLAS_WORKSPACE_CONFIG."""
    if config.threads:
        torch.set_num_threads(config.threads)
    elif config.canonical_shards:
        torch.set_num_threads(1)  # rounding inside a shard must not depend on the core count
    strict = config.deterministic or bool(config.canonical_shards)
    torch.backends.cudnn.benchmark = not strict
    if strict:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # filling is slow, and nothing reads uninitialized memory
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic = True
        full_precision()


def full_precision() -> None:
    """Turn off TF32. torch 2.9 renamed the switches, and reading an old one after setting a new one
    is an error."""
    if hasattr(torch.backends.cudnn, "conv"):
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    else:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
