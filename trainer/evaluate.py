"""Evaluation that counts every image once and gives the same numbers at any world size.

The images are cut into fixed blocks; rank r takes blocks r, r+W, ... Each block's sums have their
own row in a table, which is added up over ranks and then over rows, always in block order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .checkpoint import snapshot, synchronise, write_exports
from .distributed import averaged_statistics
from .logs import eval_line, say
from .state import Stopped, Training

STOP_EVERY = 50  # blocks between checks for a stop, each of which waits for the GPU


def record_evaluation(t: Training, split: str) -> None:
    """Evaluate a split ("test" or "val"), write the result and remember the best one so far.

    Raises Stopped if the ranks agreed to stop before all images were seen.
    """
    began = time.perf_counter()
    t.last = {"step": t.step, "epoch": t.epoch, **evaluate(t, split)}
    if split == selecting_split(t) and t.last["top1"] > t.best.get("top1", -1.0):
        t.best = {k: t.last[k] for k in ("step", "epoch", "top1")} | {"selected_on": split}
    best = {"best_top1": t.best.get("top1"), "selected_on": t.best.get("selected_on")}
    t.metrics.write("eval", **t.last, **best)
    if t.ranks.first:
        say(eval_line(t.last))
    t.progress.pause(time.perf_counter() - began)


def selecting_split(t: Training) -> str:
    """The split that chooses the best epoch. With "test", the best result is no estimate for new images."""
    return "val" if t.config.val_split else "test"


def evaluate(t: Training, split: str) -> dict[str, Any]:
    """n, correct1, correct5, top1, top5 and loss over a split; with several ranks also `ranks`: top1
    and loss of the images that each rank saw. A collective.

    The network is called without DDP, whose forward would wait for the other ranks.
    """
    table = t.ranks.sum_(count_blocks(t, split)).cpu()
    size, world_size = t.data.size(split), t.ranks.world_size
    loss, correct1, correct5, n = table.sum(0).tolist()
    if n != size:
        raise AssertionError(f"evaluated {n:.0f} of {size} images")
    result = {
        "split": split,
        "n": size,
        "correct1": int(correct1),
        "correct5": int(correct5),
        "top1": correct1 / size,
        "top5": correct5 / size,
        "loss": loss / size,
    }
    if world_size > 1:  # null for a rank that had no block
        sums = [table[rank::world_size].sum(0).tolist() for rank in range(world_size)]
        top1 = [round(correct / n, 6) if n else None for _, correct, _, n in sums]
        losses = [round(total / n, 6) if n else None for total, _, _, n in sums]
        result["ranks"] = {"top1": top1, "loss": losses}
    return result


def count_blocks(t: Training, split: str) -> torch.Tensor:
    """One row per block: summed loss, correct, correct among 5, images. Rows of other ranks are 0."""
    size, block, world_size = t.data.size(split), t.config.eval_batch_size, t.ranks.world_size
    blocks = -(-size // block)
    table = torch.zeros(blocks, 4, dtype=torch.float64, device=t.ranks.device)
    every = 1 if t.ranks.device.type == "cpu" else STOP_EVERY
    t.model.eval()
    with evaluated_network(t), torch.no_grad():
        for turn in range(1, -(-blocks // world_size) + 1):
            row = (turn - 1) * world_size + t.ranks.rank
            if row < blocks:
                _count(t, split, row * block, min((row + 1) * block, size), table[row])
            if turn % every == 0:
                stops = torch.tensor(float(bool(t.stop)), device=t.ranks.device)
                if t.ranks.sum_(stops):
                    raise Stopped
    return table


@contextlib.contextmanager
def evaluated_network(t: Training) -> Iterator[None]:
    """Inside, the network is the one to evaluate and export: with --ema its averages over steps, and
    batch-norm statistics averaged over ranks. A collective."""
    averaged = t.ema.in_place() if t.ema else contextlib.nullcontext()
    with averaged, averaged_statistics(t.model, t.ranks, when=t.own_statistics):
        yield


def _count(t: Training, split: str, start: int, end: int, row: torch.Tensor) -> None:
    x, y = t.data.eval_batch(split, start, end)
    with t.autocast():
        logits = t.compiled(x)
    best = logits.float().topk(min(5, logits.shape[1])).indices == y[:, None]
    row[0] = t.losses[1](logits, y).double().sum()
    row[1] = best[:, 0].sum()
    row[2] = best.sum()
    row[3] = end - start


def export(t: Training) -> None:
    """Write epoch_N.pth, in place of the one before, and best.pth after the best evaluation so far:
    the evaluated network's state_dict, for `build_model(...).load_state_dict(torch.load(path))`."""
    began = time.perf_counter()
    wanted = bool(t.config.export_every) and t.epoch % t.config.export_every == 0
    best = t.best.get("step") == t.step
    names = [f"epoch_{t.epoch}.pth"] * wanted + ["best.pth"] * best
    if names:
        with evaluated_network(t):
            weights = snapshot(t.model.state_dict())
        synchronise(t.ranks.device)
        if t.ranks.first:
            write = partial(write_exports, Path(t.config.out), names, weights)
            t.writer.submit(write, then=lambda _: None)
        t.progress.pause(time.perf_counter() - began)
