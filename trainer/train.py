"""The training loop, top to bottom: run, epoch, step, backward, update, poll, end of epoch.

torchrun --nproc-per-node 2 -m trainer --data synthetic --model resnet8 --epochs 3   # one node
torchrun --nnodes 2 --node-rank 0 --master-addr A --master-port 29500 -m trainer     # node 0
python -m trainer --data ./data --model resnet18 --amp bf16                          # one process
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .config import Config
from .data.augment import cutout, mix
from .data.order import epoch_order, mixed_seed
from .distributed import check_replicas, kept, leave
from .ending import Watch, finish, preempted
from .errors import Diverged
from .evaluate import export, record_evaluation, selecting_split
from .logs import say, train_line
from .model import fixed_statistics
from .optim import keeps_gradients, lr_at, part_bounds, set_rate
from .setup import begin, meet
from .state import Stopped, StopRequest, Training, finish_writing, save
from .tools import canonical_shards
from .tools.cuda_graph import GraphedStep


def main(config: Config, env: Mapping[str, str]) -> int:
    """Train as `config` says, with the ranks that `env` describes. Returns the exit code.

    Raises TrainerError, the same on all ranks, once status.json is written.
    """
    set_determinism(config)
    ranks, data = meet(config, env)
    stop = StopRequest()
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
    watch.done()
    return code


def run(t: Training, env: Mapping[str, str]) -> int:
    try:
        if t.config.test_only:
            record_evaluation(t, "test")
        else:
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
    if t.config.cuda_graph:
        t.graphed = GraphedStep(backward_and_update)
    with t.profiler or contextlib.nullcontext():
        while t.step < t.plan.total_steps:
            train_epoch(t)
            end_epoch(t)
    save_last(t)
    if t.config.val_split and t.last.get("split") != "test":
        record_evaluation(t, "test")


def train_epoch(t: Training) -> None:
    """Train from the current step to the end of its epoch, or to the last step of the run."""
    c = t.config
    epoch = t.step // t.plan.steps_per_epoch
    end = min((epoch + 1) * t.plan.steps_per_epoch, t.plan.total_steps)
    order = t.data.start_epoch(
        epoch_order(c.seed, epoch, t.plan.samples),
        t.plan.parts_of_rank(t.ranks.rank, range(t.step, end)),
        seed=c.seed,
        epoch=epoch,
    )
    every = c.poll_every or (1 if t.ranks.device.type == "cpu" else 10)
    t.model.train()
    while t.step < end:
        train_step(t, order)
        if t.profiler:
            t.profiler.step()
        if t.step == end:
            t.eval_pending = t.epoch % c.eval_every == 0 or end == t.plan.total_steps
        if t.step % every == 0 or t.step == end:
            poll(t, last=t.step == end)
        if c.check_every and t.step % c.check_every == 0:
            check_replicas(t.ranks, t.parameters, t.step)


def train_step(t: Training, order: torch.Tensor) -> None:
    """Advance by one optimizer step. `order`: the epoch's permutation of samples."""
    set_rate(t.optimizer, lr_at(t.step, t.config, t.plan))
    start, end = t.plan.batch_of(t.step)
    batch = order[start:end]
    if t.graphed:
        seed_network(t, part=0)
        t.graphed(t, batch)
    else:
        backward_and_update(t, batch)
    if t.ema:
        t.ema.update(t.step)
    t.step += 1


def backward_and_update(t: Training, batch: torch.Tensor) -> None:
    if t.config.canonical_shards:
        canonical_shards.backward(t, batch, micro_batch_loss)
    else:
        backward(t, batch)
    update(t)


def backward(t: Training, batch: torch.Tensor) -> None:
    """Leave the gradient of the global batch's mean loss in every rank's parameters.

    However unevenly the batch is cut, each micro-batch adds its summed loss over the global count,
    times the world size because DDP averages over ranks. The last micro-batch's backward
    all-reduces; before it, gradients add up locally.
    """
    count = t.plan.parts_per_rank
    for k in range(count):
        ddp = isinstance(t.net, DistributedDataParallel) and k < count - 1
        with t.net.no_sync() if ddp else contextlib.nullcontext():  # type: ignore[operator]
            loss = micro_batch_loss(t, batch, t.ranks.rank * count + k)
            loss = loss * (t.ranks.world_size / len(batch))
            (t.scaler.scale(loss) if t.scaler else loss).backward()


def micro_batch_loss(t: Training, batch: torch.Tensor, part: int) -> torch.Tensor:
    """Summed loss of part `part` of the batch. An empty part has zero loss but gradients, since
    every rank must take part in the all-reduce."""
    c, epoch = t.config, t.step // t.plan.steps_per_epoch
    first, last = part_bounds(len(batch), t.plan.parts, part)
    began = time.perf_counter()
    indices = batch[first : max(last, first + 1)]
    x, y = t.data.train_batch(indices, seed=c.seed, epoch=epoch)
    if c.cutout:
        x = cutout(x, indices, c.cutout, seed=c.seed, epoch=epoch)
    x, share = mix(x, c.mixup, c.cutmix, seed=mixed_seed(f"mix/{c.seed}/{t.step}/{part}"))
    t.progress.data_seconds += time.perf_counter() - began
    if not t.graphed:  # seeding is not allowed while capturing
        seed_network(t, part)
    single = last - first < 2 and c.bn == "local"  # an empty part has no batch statistics
    with fixed_statistics(t.model, when=single or c.bn == "frozen"), t.autocast():
        logits = t.net(x)
    loss = t.losses[0](logits, y)
    if share < 1:
        loss = share * loss + (1 - share) * t.losses[0](logits, y.roll(1))
    loss = loss.sum()
    if last == first:
        return loss * 0
    t.totals[0] += loss.detach()
    t.totals[1] += last - first
    return loss


def seed_network(t: Training, part: int) -> None:
    """Seed random numbers (dropout) from the micro-batch alone, so that nothing needs saving."""
    torch.manual_seed(mixed_seed(f"network/{t.config.seed}/{t.step}/{part}"))


def update(t: Training) -> None:
    if t.config.clip_grad_norm:
        if t.scaler:
            t.scaler.unscale_(t.optimizer)
        nn.utils.clip_grad_norm_(t.parameters, t.config.clip_grad_norm)
    if t.scaler:
        t.scaler.step(t.optimizer)
        t.scaler.update()
    else:
        t.optimizer.step()
    t.optimizer.zero_grad(set_to_none=not keeps_gradients(t.config))


def poll(t: Training, last: bool) -> None:
    """Exchange what the ranks must agree on, in one small all-reduce.

    On a GPU the values are read one poll later, when they have arrived, so that no step waits
    for the device; at the end of an epoch, all are read.
    Raises Diverged if the loss is not finite, Stopped if any rank was asked to stop.
    """
    t.moved_at = time.monotonic()
    if not t.writer.failed:  # if so, all ranks end in the next save
        t.writer.collect(wait=False)
    t.totals[2] = float(bool(t.stop))
    t.totals[3] = float(t.writer.failed or (t.ranks.first and save_is_due(t)))
    by_rank = t.totals.new_zeros(t.ranks.world_size, 2)
    by_rank[t.ranks.rank] = t.totals[:2]
    values = t.ranks.sum_(torch.cat([t.totals, by_rank.flatten()]))
    t.polls.append((t.step, to_host(values)))
    t.totals.zero_()
    t.save_due = stop = False
    while len(t.polls) > (0 if last else t.poll_lag):
        step, numbers = t.polls.popleft()
        stop |= read_poll(t, step, numbers())
    if t.progress.due(t.step) or last or stop:
        rate = float(t.optimizer.param_groups[0]["lr"])
        fields = t.progress.fields(t.step, t.epoch, rate)
        t.metrics.write("train", **fields)
        if t.ranks.first:
            say(train_line(fields, t.plan))
    if stop:
        raise Stopped
    if t.save_due and not last:  # at the end of an epoch, save after evaluating
        save(t)


def to_host(values: torch.Tensor) -> Callable[[], list[float]]:
    """Start copying to the CPU. Calling the result waits for the copy and returns the numbers."""
    if not values.is_cuda:
        return values.tolist
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    target.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def numbers() -> list[float]:
        arrived.synchronize()
        return target.tolist()

    return numbers


def read_poll(t: Training, step: int, values: list[float]) -> bool:
    """Return whether to stop. Raises Diverged."""
    (loss_sum, images, stop, due), own = values[:4], values[4:]
    t.progress.add(loss_sum, images, own)
    if not math.isfinite(loss_sum):
        raise Diverged(
            f"step {step}: the loss is {loss_sum}: lower --lr or lengthen --warmup-epochs"
        )
    t.save_due = t.save_due or bool(due)
    return bool(stop)


def save_is_due(t: Training) -> bool:
    count, unit = t.config.parsed_save_every
    since = {"st": t.step - max(0, t.saved_step), "s": time.monotonic() - t.saved_at, "ep": 0}
    return 0 < count <= since[unit]


def end_epoch(t: Training) -> None:
    if t.eval_pending:
        record_evaluation(t, selecting_split(t))
        t.eval_pending = False
    if t.step % t.plan.steps_per_epoch == 0:
        export(t)
    count, unit = t.config.parsed_save_every
    if t.save_due or (unit == "ep" and count and t.epoch % count == 0):
        save(t)


def save_last(t: Training) -> None:
    if t.saved_step != t.step:
        save(t)
    finish_writing(t)


def set_determinism(config: Config) -> None:
    """Call this before CUDA starts: cuBLAS reads its variable then."""
    if config.threads:
        torch.set_num_threads(config.threads)
    elif config.canonical_shards:
        torch.set_num_threads(1)  # rounding inside a shard must not depend on the core count
    strict = config.deterministic or bool(config.canonical_shards)
    torch.backends.cudnn.benchmark = not strict
    if strict:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
