"""Evaluation that counts every image once and gives the same numbers at any world size.

The images are cut into fixed blocks; rank r takes blocks r, r+W, ... Each block's sums have their
own row in a table, which is added up over ranks and then over rows, always in block order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .checkpoint import snapshot, synchronize
from .config import named_function
from .errors import TrainerError
from .logs import eval_line, say, write_json
from .poll import Stopped
from .state import Training

STOP_EVERY = 50  # blocks between checks for a stop; each check waits for the GPU


def record_evaluation(t: Training, split: str) -> None:
    """Evaluate a split ("test" or "val") and log the result.

    If this split selects the best epoch, also remember the best result so far. Raises Stopped if the
    ranks agreed to stop before all images were seen.
    """
    began = time.perf_counter()
    t.log.last = {"step": t.step, "epoch": t.epoch, **evaluate(t, split)}
    if split == selecting_split(t) and t.log.last["top1"] > t.best.get("top1", -1.0):
        t.best = {k: t.log.last[k] for k in ("step", "epoch", "top1")} | {"selected_on": split}
    best = {"best_top1": t.best.get("top1"), "selected_on": t.best.get("selected_on")}
    t.log.write("eval", **t.log.last, **best)
    if t.ranks.first:
        say(eval_line(t.log.last))
    t.poll.progress.pause(time.perf_counter() - began)


def selecting_split(t: Training) -> str:
    """Return the split that chooses the best epoch. With "test", the best score is biased, because
    the same images chose it."""
    return "val" if t.config.val_split else "test"


def evaluate(t: Training, split: str, confusion: bool = False) -> dict[str, Any]:
    """Return n, correct1, correct5, top1, top5 and loss over a split, and the results of --tta and
    --metric. With several ranks, also return `ranks`: top1 and loss of the images that each rank
    saw. A collective.

    confusion: also return how many images of each class (row) were classified as each class (column).
    """
    blocks = Blocks(t, split, confusion)
    table = t.ranks.sum_(blocks.count()).cpu()
    sums = dict(zip(blocks.names, table.sum(0).tolist(), strict=True))
    size, world_size = t.data.size(split), t.ranks.world_size
    if sums["n"] != size:
        raise AssertionError(f"evaluated {sums['n']:.0f} of {size} images")
    result = {
        "split": split,
        "n": size,
        "correct1": int(sums["correct1"]),
        "correct5": int(sums["correct5"]),
        "top1": sums["correct1"] / size,
        "top5": sums["correct5"] / size,
        "loss": sums["loss"] / size,
    }
    if t.config.tta != "none":
        result["tta_top1"] = sums["tta_correct1"] / size
    if blocks.confusion is not None:
        result["confusion"] = t.ranks.sum_(blocks.confusion).tolist()
    if t.config.metric:
        result["metrics"] = own_metrics(t, *blocks.gathered())
    if world_size > 1:  # null for a rank that had no block
        result["ranks"] = {name: [] for name in ("top1", "loss")}
        for rank in range(world_size):
            own = dict(zip(blocks.names, table[rank::world_size].sum(0).tolist(), strict=True))
            for name, total in (("top1", own["correct1"]), ("loss", own["loss"])):
                share = round(total / own["n"], 6) if own["n"] else None
                result["ranks"][name].append(share)
    return result


def scores(
    logits: torch.Tensor, y: torch.Tensor, loss: Callable[..., torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return, for each image of a block, the values that are summed over all images.

    To add a metric, add it here, add its name to `Blocks.names`, and add its value to the result of
    `evaluate`.
    """
    best = logits.float().topk(min(5, logits.shape[1])).indices == y[:, None]
    return {
        "n": torch.ones_like(y),
        "loss": loss(logits, y),
        "correct1": best[:, 0],
        "correct5": best.any(1),
    }


class Blocks:
    """This rank's part of an evaluation."""

    def __init__(self, t: Training, split: str, confusion: bool) -> None:
        self.t, self.split = t, split
        size, block = t.data.size(split), t.config.eval_batch_size
        self.bounds = [slice(n, min(n + block, size)) for n in range(0, size, block)]
        self.names = ["n", "loss", "correct1", "correct5"]
        self.names += ["tta_correct1"] if t.config.tta != "none" else []
        self.confusion: torch.Tensor | None = None
        if confusion:
            classes = t.config.num_classes or t.data.num_classes
            self.confusion = torch.zeros(classes, classes, dtype=torch.int64, device=t.ranks.device)
        self._outputs: list[tuple[torch.Tensor, torch.Tensor]] = []  # with --metric

    def count(self) -> torch.Tensor:
        """Return one row of sums per block; rows of other ranks' blocks are 0. Raises Stopped."""
        t, world_size = self.t, self.t.ranks.world_size
        shape = (len(self.bounds), len(self.names))
        table = torch.zeros(shape, dtype=torch.float64, device=t.ranks.device)
        every = 1 if t.ranks.device.type == "cpu" else STOP_EVERY
        batches = t.data.eval_batches(self.split, self.bounds[t.ranks.rank :: world_size])
        t.net.model.eval()
        with t.net.evaluated() as model, torch.no_grad():
            for turn in range(1, -(-len(self.bounds) // world_size) + 1):
                row = (turn - 1) * world_size + t.ranks.rank
                if row < len(self.bounds):
                    _, x, y = next(batches)
                    sums = self.sums(model, x, y)
                    table[row] = torch.stack([sums[name].double().sum() for name in self.names])
                if turn % every == 0:
                    stops = torch.tensor(float(bool(t.poll.stop)), device=t.ranks.device)
                    if t.ranks.sum_(stops):
                        raise Stopped
        return table

    def sums(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the scores of a block's images. The plain network computes them, because compiling
        it again for evaluation would take more time than it saves."""
        t = self.t
        with t.net.autocast():
            logits = model(x)
        sums = scores(logits, y, t.losses.evaluation)
        if t.config.tta == "mirror":
            with t.net.autocast():
                both = logits.float() + model(x.flip(3)).float()
            sums["tta_correct1"] = both.argmax(1) == y
        if self.confusion is not None:
            places = y * len(self.confusion) + logits.argmax(1)
            self.confusion += torch.bincount(places, minlength=self.confusion.numel()).view_as(
                self.confusion
            )
        if t.config.metric:
            self._outputs.append((logits.float().cpu(), y.cpu()))
        return sums

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits and labels of the whole split, in order. A collective."""
        of_ranks = self.t.ranks.gather(self._outputs)
        count = self.t.ranks.world_size
        blocks = [of_ranks[n % count][n // count] for n in range(len(self.bounds))]
        logits, labels = zip(*blocks, strict=True)
        return torch.cat(logits), torch.cat(labels)


def own_metrics(t: Training, logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Return the numbers that --metric's function computes, by name. A single number gets the
    function's name."""
    value = named_function("--metric", t.config.metric)(logits, labels)
    named = value if isinstance(value, dict) else {t.config.metric.partition(":")[2]: value}
    return {str(name): float(number) for name, number in named.items()}


def test_only(t: Training) -> None:
    """Evaluate the checkpoint and write eval.json. The run's own files stay as they are."""
    result = {"step": t.step, "epoch": t.epoch, **evaluate(t, "test", confusion=True)}
    path = Path(t.config.out) / "eval.json"
    with t.ranks.agreeing():
        if not t.ranks.first:
            return
        say(eval_line(result))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, result)
        except OSError as error:
            raise TrainerError(
                f"cannot write {path}: {error.strerror or error}; pass another --out, and this "
                "run's folder with --checkpoint-dir"
            ) from error
        say(f"wrote {path}")


def export(t: Training) -> None:
    """Write the state_dict of the evaluated network: every --export-every epochs as epoch_N.pth, in
    place of the previous one, and after the best evaluation so far as best.pth. To load it, use
    `build_model(...).load_state_dict(torch.load(path))`."""
    began = time.perf_counter()
    whole = t.step % t.plan.steps_per_epoch == 0
    every = t.config.export_every
    names = [f"epoch_{t.epoch}.pth"] if whole and every and t.epoch % every == 0 else []
    names += ["best.pth"] if t.best.get("step") == t.step else []
    if names:
        with t.net.evaluated() as model:
            weights = snapshot(model.state_dict())
        synchronize(t.ranks.device)
        t.saver.export(Path(t.config.out), names, weights)
        t.poll.progress.pause(time.perf_counter() - began)
