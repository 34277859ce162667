"""The output of rank 0: metrics.jsonl and status.json for programs, lines of text for people.

metrics.jsonl has one JSON object per line, of kind start, train, eval, checkpoint or end. A resumed
run continues the file from the step it resumes at, so no step appears twice. status.json is replaced
atomically and exists only once a run has ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .checkpoint import replace_file, set_aside
from .config import Config
from .distributed import Ranks
from .plan import Plan
from .slow_ranks import SlowRanks

VERSION = 1
LONGEST_SILENCE = 60.0  # seconds between lines when steps are slow
PEAKS = {  # peak TFLOP/s of dense bf16 matrix products, by a part of the GPU's name
    "B200": 2250.0,
    "H200": 989.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
}


class Log:
    """metrics.jsonl in `out`. If `out` is None, this rank writes nothing."""

    def __init__(
        self, out: Path | None = None, report: Callable[[dict[str, Any]], object] | None = None
    ) -> None:
        """report: a function that is also called with each line."""
        self.path = out / "metrics.jsonl" if out else None
        self.last: dict[str, Any] = {}  # the newest evaluation
        self.began = time.monotonic()
        self._report = report
        self._waiting: list[str] = []  # lines that could not be written yet
        self._warned: set[str] = set()

    def start(self, resumed_step: int | None) -> None:
        """Continue the file from step `resumed_step`; if None, begin a new file, and keep an earlier
        run's file and weights under other names. Raises OSError."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        (self.path.parent / "status.json").unlink(missing_ok=True)
        if resumed_step is None:
            exports = self.path.parent.glob("epoch_*.pth")
            for path in (self.path, self.path.with_name("best.pth"), *exports):
                set_aside(path, "earlier")
        else:
            truncate(self.path, resumed_step, self.last)
        self.path.touch()

    def write(self, kind: str, **fields: Any) -> None:
        """Add a line. A full disk does not end the run; the line is written with a later one."""
        if self.path is None:
            return
        line = {"v": VERSION, "kind": kind, "ts": round(time.time(), 3), **fields}
        self._waiting.append(json.dumps(_finite(line)) + "\n")
        try:
            append(self.path, "".join(self._waiting))
            self._waiting.clear()
        except OSError as error:
            self._warn(f"cannot write {self.path}: {error.strerror or error}")
        if self._report is not None:
            try:
                self._report(_finite(line))
            except Exception as error:  # an unreachable tracker must not end the run
                self._warn(f"--report-to: {type(error).__name__}: {error}")

    def _warn(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            say(f"WARNING: {problem}")


def append(path: Path, text: str) -> None:
    """Add whole lines to a file, or nothing. Raises OSError."""
    with path.open("ab") as file:
        size = file.tell()
        try:
            file.write(text.encode())
            file.flush()
        except OSError:
            with contextlib.suppress(OSError):  # closing tries once more to write the rest
                file.close()
            with path.open("rb+") as torn:
                torn.truncate(size)
            raise


def write_status(
    out: Path, state: str, step: int, checkpoint: str | None, reason: str, **more: Any
) -> None:
    """Write status.json.

    state: completed, preempted, failed or diverged. checkpoint: the folder of the newest checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    status = {"v": VERSION, "state": state, "step": step, "checkpoint": checkpoint}
    status |= {"reason": reason, "ts": round(time.time(), 3), **more}
    write_json(out / "status.json", status)


def write_json(path: Path, value: dict[str, Any]) -> None:
    replace_file(path, (json.dumps(_finite(value), indent=2) + "\n").encode())


def truncate(path: Path, step: int, last: dict[str, Any]) -> None:
    """Drop what a run resumed at `step` will write again: lines after that step, and evaluations
    after `last`, the newest one in the checkpoint. Also drops earlier `end` lines and an incomplete
    last line."""

    def belongs(line: str) -> bool:
        try:
            entry = json.loads(line)
            kind, of_step = entry["kind"], int(entry.get("step", 0))
        except (ValueError, TypeError, KeyError):
            return False
        if kind == "end" or not line.endswith("\n"):
            return False
        if kind == "eval" and of_step == step:  # "val" comes before "test"
            return last.get("step") == step and last["split"] in ("test", entry["split"])
        return kind == "start" or of_step <= step

    with contextlib.suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if belongs(line)]
        if kept != lines:
            replace_file(path, "".join(kept).encode())


def mentions_checkpoints(out: Path) -> bool:
    """Return whether metrics.jsonl has a line of kind checkpoint."""
    with contextlib.suppress(OSError):
        text = (out / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        return '"kind": "checkpoint"' in text
    return False


def _finite(value: Any) -> Any:
    """Return the value with None in place of NaN and infinity, because JSON has neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


class Progress:
    """Loss and speed since the last progress line."""

    def __init__(self, config: Config, plan: Plan, ranks: Ranks, flops: int | None = None) -> None:
        """flops: floating-point operations in one image's forward and backward passes, if known."""
        self.config, self.plan, self.ranks, self.flops = config, plan, ranks, flops
        self.slow = SlowRanks(ranks.world_size)
        self.slow_changed = False  # since the last line
        self.restart(step=0)

    def restart(self, step: int) -> None:
        self.step, self.since = step, time.perf_counter()
        self.loss_sum = self.images = self.paused = self.data_seconds = 0.0
        self.grad_norm: float | None = None  # the newest one
        self.by_rank = [0.0] * (3 * self.ranks.world_size)

    def add(
        self, loss_sum: float, images: float, by_rank: Sequence[float], grad_norm: float = 0.0
    ) -> None:
        """Add the totals of a poll. by_rank: loss, images and seconds of own work, rank after rank."""
        self.loss_sum += loss_sum
        self.images += images
        self.by_rank = [a + b for a, b in zip(self.by_rank, by_rank, strict=True)]
        self.grad_norm = grad_norm or self.grad_norm
        self.slow_changed |= self.slow.add(by_rank[2::3], by_rank[1::3])

    def pause(self, seconds: float) -> None:
        """Exclude `seconds`, spent on evaluating or saving, from the speed."""
        self.paused += seconds

    def due(self, step: int) -> bool:
        slow = time.perf_counter() - self.since >= LONGEST_SILENCE
        return slow or self.slow_changed or step - self.step >= self.config.print_every

    def fields(self, step: int, epoch: int, lr: float) -> dict[str, Any]:
        """Return the fields of a `train` line of metrics.jsonl, and start the next interval."""
        steps = max(1, step - self.step)
        seconds = max(1e-9, time.perf_counter() - self.since - self.paused)
        # not self.images, because on a GPU the newest losses are not read yet
        speed = (self.plan.samples_by(step) - self.plan.samples_by(self.step)) / seconds
        fields: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "samples": self.plan.samples_by(step),
            "loss": self.loss_sum / max(1.0, self.images),
            "lr": lr,
            "grad_norm": self.grad_norm,
            "img_s": round(speed, 1),
            **self._utilization(speed),
            "step_ms": round(1000 * seconds / steps, 2),
            "data_ms": round(1000 * self.data_seconds / steps, 3),
            "mem_mb": memory_mb(self.ranks.device),
            "eta_s": round(seconds / steps * (self.plan.total_steps - step)),
        }
        if self.ranks.world_size > 1:
            losses, images, work = (self.by_rank[place::3] for place in range(3))
            fields["ranks"] = {
                "loss": [round(a / max(1.0, n), 6) for a, n in zip(losses, images, strict=True)],
                "img_s": [round(speed * n / max(1.0, self.images), 1) for n in images],
                "work_ms": [round(1000 * own / steps, 2) for own in work],
                "slow": {str(rank): ratio for rank, ratio in self.slow.ratios.items()},
            }
        self.slow_changed = False
        self.restart(step)
        return fields

    def _utilization(self, images_per_second: float) -> dict[str, float]:
        """Return the TFLOP/s of all ranks and, on a known GPU, their share of its peak (MFU)."""
        if self.flops is None:
            return {}
        tflops = self.flops * images_per_second / 1e12
        fields = {"tflops": round(tflops, 4)}
        if peak := peak_tflops(self.ranks.device):
            fields["mfu"] = round(tflops / (peak * self.ranks.world_size), 4)
        return fields


def peak_tflops(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")  # print() writes twice, and another line could land in between
    sys.stdout.flush()


def train_line(f: dict[str, Any], plan: Plan) -> str:
    share = 100 * f["data_ms"] / f["step_ms"] if f["step_ms"] else 0
    norm = f"  grad norm {f['grad_norm']:.3g}" if f["grad_norm"] else ""
    used = f"  mfu {100 * f['mfu']:.1f}%" if "mfu" in f else ""
    slow = f.get("ranks", {}).get("slow", {}).items()
    named = "".join(f"  slow: rank {rank} ({ratio:g} times the median)" for rank, ratio in slow)
    return (
        f"epoch {f['epoch']}/{plan.epochs}  step {f['step']}/{plan.total_steps}  "
        f"loss {f['loss']:.4f}  lr {f['lr']:.4g}{norm}  {f['img_s']:.0f} img/s "
        f"({f['img_s'] / plan.world_size:.0f} per rank){used}  data {share:.0f}%  "
        f"mem {f['mem_mb']} MB  eta {clock(f['eta_s'])}{named}"
    )


def eval_line(f: dict[str, Any]) -> str:
    mirrored = f"  with mirror images {100 * f['tta_top1']:.2f}%" if "tta_top1" in f else ""
    own = "".join(f"  {name} {value:.4f}" for name, value in f.get("metrics", {}).items())
    return (
        f"epoch {f['epoch']}  {f['split']}: top-1 {100 * f['top1']:.2f}% "
        f"({f['correct1']} of {f['n']})  top-5 {100 * f['top5']:.2f}%{mirrored}  "
        f"loss {f['loss']:.4f}{own}"
    )


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def memory_mb(device: torch.device) -> int:
    """Return this process's peak memory in MiB: GPU memory, or resident memory if it uses the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
