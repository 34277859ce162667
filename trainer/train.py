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
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.config import Config
from trainer.data.order import epoch_order
from trainer.distributed import check_replicas, fixed_statistics, kept, leave, set_training
from trainer.ending import Stopped, StopRequest, explain, fail, finish, preempted
from trainer.errors import Diverged, TrainerError
from trainer.evaluate import evaluated_network, record_evaluation, selecting_split
from trainer.logs import say, train_line
from trainer.loss import sample_losses
from trainer.optim import lr_at, part_bounds
from trainer.setup import begin, meet
from trainer.state import Training, save, write_weights
from trainer.tools import canonical_shards


def main(config: Config, env: Mapping[str, str]) -> int:
    """Train as `config` says, where `env` says. Returns the exit code.

    Raises TrainerError, the same on all ranks, once status.json is written.
    """
    set_determinism(config)
    ranks, data = meet(config, env)
    stop = StopRequest()
    stop.listen()
    t: Training | None = None
    try:
        t = begin(config, ranks, data, stop, env)
        kept.append(t)  # DDP holds the process group
        code = run(t, env)
    except TrainerError as error:
        fail(t, config, ranks, error)
        leave(ranks)
        raise
    except Exception as error:
        explained = explain(ranks, t, error)
        fail(t, config, ranks, explained or error)
        if explained:  # the other ranks find out by themselves: no barrier with the dead
            raise explained from error
        raise
    stop.ignore()
    leave(ranks)
    return code


def run(t: Training, env: Mapping[str, str]) -> int:
    try:
        if t.config.test_only:
            record_evaluation(t, "test")
        else:
            train(t)
    except Stopped:
        if t.saved_step != t.step and not t.config.test_only:
            save(t)
        return preempted(t, env)
    finish(t, "completed", "")
    return 0


def train(t: Training) -> None:
    if t.eval_pending:
        end_epoch(t)
    while t.step < t.plan.total_steps:
        train_epoch(t)
        end_epoch(t)
    if t.saved_step != t.step:
        save(t)
    if t.config.val_split and t.last.get("split") != "test":
        record_evaluation(t, "test")


def train_epoch(t: Training) -> None:
    """From the current step to the end of its epoch, or to the last step of the run."""
    c = t.config
    epoch = t.step // t.plan.steps_per_epoch
    order = epoch_order(c.seed, epoch, t.plan.samples).to(t.ranks.device)
    end = min((epoch + 1) * t.plan.steps_per_epoch, t.plan.total_steps)
    every = c.poll_every or (1 if t.ranks.device.type == "cpu" else 10)
    set_training(t.model, frozen=c.bn == "frozen")
    while t.step < end:
        train_step(t, order)
        t.eval_pending = t.step == end and evaluation_is_due(t)
        if t.step % every == 0 or t.step == end:
            poll(t, last=t.step == end)
        if c.check_every and t.step % c.check_every == 0:
            check_replicas(t.ranks, t.parameters, t.step)


def train_step(t: Training, order: torch.Tensor) -> None:
    """Advance by one optimizer step. `order`: the epoch's permutation of samples, on the device."""
    rate = lr_at(t.step, t.config, t.plan)
    for group in t.optimizer.param_groups:
        group["lr"] = rate
    start, end = t.plan.batch_of(t.step)
    batch = order[start:end]
    if t.config.canonical_shards:
        canonical_shards.backward(t, batch, micro_batch_loss)
    else:
        backward(t, batch)
    update(t)
    t.step += 1


def backward(t: Training, batch: torch.Tensor) -> None:
    """Leave the gradient of the global batch's mean loss in every rank's parameters.

    However unevenly the batch is cut, each micro-batch adds its summed loss over the global count,
    times the world size because DDP averages over ranks.
    """
    count = t.plan.parts_per_rank
    for k in range(count):
        first, last = part_bounds(len(batch), t.plan.parts, t.ranks.rank * count + k)
        with contextlib.nullcontext() if k == count - 1 else unsynced(t.net):
            loss = micro_batch_loss(t, batch, first, last)
            loss = loss * (t.ranks.world_size / len(batch))
            (t.scaler.scale(loss) if t.scaler else loss).backward()


def unsynced(net: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Gradients add up locally; the last micro-batch's backward all-reduces them."""
    return net.no_sync() if isinstance(net, DistributedDataParallel) else contextlib.nullcontext()


def micro_batch_loss(t: Training, batch: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Summed loss of samples first..last-1 of the batch. Without any it is zero but has gradients,
    since every rank must take part in the all-reduce."""
    size = last - first
    indices = batch[first:last] if size else batch[:1]
    began = time.perf_counter()
    x, y = t.data.train_batch(indices, seed=t.config.seed, epoch=t.step // t.plan.steps_per_epoch)
    t.progress.data_seconds += time.perf_counter() - began
    # A single image has no batch statistics.
    with fixed_statistics(t.model, when=size < 2 and t.config.bn == "local"), t.autocast():
        logits = t.net(x)
    loss = sample_losses(logits, y, t.config.label_smoothing).sum()
    if not size:
        return loss * 0
    t.totals[0] += loss.detach()
    t.totals[1] += size
    return loss


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
    t.optimizer.zero_grad()
    if t.averages is not None:
        with torch.no_grad():
            torch._foreach_lerp_(t.averages, list(t.model.parameters()), 1 - t.config.ema)


def poll(t: Training, last: bool) -> None:
    """Exchange what the ranks must agree on: one small all-reduce, and the only host sync.

    Raises Diverged if the loss is not finite, Stopped if any rank was asked to stop.
    """
    t.totals[2] = float(bool(t.stop))
    t.totals[3] = float(t.ranks.first and save_is_due(t))
    by_rank = t.totals.new_zeros(t.ranks.world_size, 2)
    by_rank[t.ranks.rank] = t.totals[:2]
    values = t.ranks.sum_(torch.cat([t.totals, by_rank.flatten()])).tolist()
    (loss_sum, images, stop, due), own = values[:4], values[4:]
    t.totals.zero_()
    t.progress.add(loss_sum, images, own)
    if not math.isfinite(loss_sum):
        raise Diverged(
            f"step {t.step}: the loss is {loss_sum}: lower --lr or lengthen --warmup-epochs; "
            f"newest checkpoint: {t.saved or 'none'}"
        )
    if t.progress.due(t.step) or last or stop:
        fields = t.progress.fields(t.step, t.epoch)
        t.metrics.write("train", **fields)
        if t.ranks.first:
            say(train_line(fields, t.plan))
    if stop:
        raise Stopped
    if due and not last:  # at the end of an epoch, saving comes after evaluating
        save(t)


def save_is_due(t: Training) -> bool:
    count, unit = t.config.parsed_save_every
    if not count or unit == "ep":
        return False
    if unit == "st":
        return t.step - max(0, t.saved_step) >= count
    return time.monotonic() - t.saved_at >= count


def evaluation_is_due(t: Training) -> bool:
    return t.epoch % t.config.eval_every == 0 or t.step == t.plan.total_steps


def end_epoch(t: Training) -> None:
    if t.eval_pending:
        record_evaluation(t, selecting_split(t))
        t.eval_pending = False
    if t.step % t.plan.steps_per_epoch == 0:
        export(t)
    count, unit = t.config.parsed_save_every
    due = unit == "ep" and count and t.epoch % count == 0
    if due or t.ranks.broadcast(save_is_due(t)):
        save(t)


def export(t: Training) -> None:
    """epoch_N.pth and, after the best evaluation so far, best.pth: the evaluated network's plain
    state_dict. Load with `build_model(...).load_state_dict(torch.load(path))`."""
    began = time.perf_counter()
    wanted = bool(t.config.export_every) and t.epoch % t.config.export_every == 0
    best = t.best.get("step") == t.step
    names = [f"epoch_{t.epoch}.pth"] * wanted + ["best.pth"] * best
    if names:
        with evaluated_network(t), t.ranks.agreeing():
            if t.ranks.first:
                for name in names:
                    write_weights(Path(t.config.out) / name, t.model)
        t.progress.pause(time.perf_counter() - began)


def set_determinism(config: Config) -> None:
    """Call before CUDA starts: cuBLAS reads its variable then."""
    if config.threads:
        torch.set_num_threads(config.threads)
    elif config.canonical_shards:
        torch.set_num_threads(1)  # rounding inside a shard must not depend on the core count
    torch.backends.cudnn.benchmark = not config.deterministic
    if config.deterministic or config.canonical_shards:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
