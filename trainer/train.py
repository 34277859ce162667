"""The run, in reading order: meet the other ranks, restore, train, evaluate, save, part.

torchrun --nproc-per-node 2 -m trainer --data synthetic --model resnet8 --epochs 3   # one node
torchrun --nnodes 2 --node-rank 0 --master-addr A --master-port 29500 -m trainer     # node 0
python -m trainer --data ./data --model resnet18 --amp bf16                          # one process
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

import torch

from trainer import batchnorm, replicas
from trainer.config import Config
from trainer.console import say, train_line
from trainer.data.order import epoch_order
from trainer.distributed import kept, leave
from trainer.ending import explain, fail, finish, preempted
from trainer.errors import Diverged, TrainerError
from trainer.run import Run, Stopped, export, record_evaluation, save, selecting_split
from trainer.setup import begin, meet
from trainer.signals import StopRequest, ignore
from trainer.step import train_step


def main(config: Config, env: Mapping[str, str]) -> int:
    """Train as `config` says, in the place that `env` gives. Returns the exit code.

    Raises TrainerError, the same on all ranks, after status.json tells of it.
    """
    set_determinism(config)
    ranks, data = meet(config, env)
    stop = StopRequest()
    stop.listen()
    run: Run | None = None
    try:
        run = begin(config, ranks, data, stop, env)
        kept.append(run)  # DDP holds the process group
        code = go(run, env)
    except TrainerError as error:
        fail(run, config, ranks, error)
        leave(ranks)
        raise
    except Exception as error:
        explained = explain(ranks, run, error)
        fail(run, config, ranks, explained or error)
        if explained:  # the other ranks find out by themselves: no barrier with the dead
            raise explained from error
        raise
    ignore()
    leave(ranks)
    return code


def go(run: Run, env: Mapping[str, str]) -> int:
    try:
        if run.t.config.test_only:
            record_evaluation(run, "test")
        else:
            train(run)
    except Stopped:
        if run.saved_step != run.t.step and not run.t.config.test_only:
            save(run)
        return preempted(run, env)
    finish(run, "completed", "")
    return 0


def train(run: Run) -> None:
    t = run.t
    if t.eval_pending:
        end_epoch(run)
    while t.step < t.plan.total_steps:
        train_epoch(run)
        end_epoch(run)
    if run.saved_step != t.step:
        save(run)
    if t.config.val_split and run.last.get("split") != "test":
        record_evaluation(run, "test")


def train_epoch(run: Run) -> None:
    """From wherever the run is in the epoch to its end, or to the last step of all."""
    t, c = run.t, run.t.config
    index = t.step // t.plan.steps_per_epoch
    order = epoch_order(c.seed, index, t.plan.samples).to(t.ranks.device)
    end = min((index + 1) * t.plan.steps_per_epoch, t.plan.total_steps)
    every = c.poll_every or (1 if t.ranks.device.type == "cpu" else 10)
    batchnorm.set_training(t.model, frozen=c.bn == "frozen")
    while t.step < end:
        train_step(t, order)
        t.eval_pending = t.step == end and is_evaluated(run)
        if t.step % every == 0 or t.step == end:
            poll(run, last=t.step == end)
        if c.check_every and t.step % c.check_every == 0:
            replicas.check_equal(t)


def is_evaluated(run: Run) -> bool:
    t = run.t
    return t.epoch % t.config.eval_every == 0 or t.step == t.plan.total_steps


def poll(run: Run, last: bool) -> None:
    """Exchange what the ranks must agree on: one small all-reduce, and the only host sync.

    Raises Diverged when the loss is not finite, Stopped when any rank was asked to stop.
    """
    t = run.t
    t.totals[2] = float(bool(run.stop))
    t.totals[3] = float(t.ranks.first and save_is_due(run))
    by_rank = t.totals.new_zeros(t.ranks.world_size, 2)
    by_rank[t.ranks.rank] = t.totals[:2]
    told = t.ranks.sum_(torch.cat([t.totals, by_rank.flatten()])).tolist()
    (loss_sum, images, stop, due), own = told[:4], told[4:]
    t.totals.zero_()
    run.progress.add(loss_sum, images, own)
    if not math.isfinite(loss_sum):
        raise Diverged(
            f"step {t.step}: the loss is {loss_sum}: lower --lr or lengthen --warmup-epochs; "
            f"newest checkpoint: {run.saved or 'none'}"
        )
    if run.progress.due or last or stop:
        fields = run.progress.fields()
        run.metrics.write("train", **fields)
        if t.ranks.first:
            say(train_line(fields, t))
    if stop:
        raise Stopped
    if due and not last:  # at the end of an epoch, saving follows evaluation
        save(run)


def save_is_due(run: Run) -> bool:
    count, unit = run.t.config.parsed_save_every
    if not count or unit == "ep":
        return False
    if unit == "st":
        return run.t.step - max(0, run.saved_step) >= count
    return time.monotonic() - run.saved_at >= count


def end_epoch(run: Run) -> None:
    t = run.t
    if t.eval_pending:
        record_evaluation(run, selecting_split(t))
        t.eval_pending = False
    if t.step % t.plan.steps_per_epoch == 0:
        export(run)
    count, unit = t.config.parsed_save_every
    due = unit == "ep" and count and t.epoch % count == 0
    if due or t.ranks.broadcast(save_is_due(run)):
        save(run)


def set_determinism(config: Config) -> None:
    """Before CUDA starts: cuBLAS reads its variable then."""
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
