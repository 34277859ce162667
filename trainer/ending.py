"""The ways a run ends: status.json, the last line of metrics.jsonl, the exit code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from trainer.config import Config
from trainer.console import clock, say
from trainer.distributed import Ranks
from trainer.errors import PREEMPTED, OutOfMemory, PeerLost, TrainerError
from trainer.logs import write_status
from trainer.run import Run

LOST = ("connection", "peer", "timed out", "timeout", "nccl", "gloo", "socket")


def finish(run: Run, state: str, reason: str) -> None:
    """Everything is saved and all ranks know: write how it ended."""
    t, seconds = run.t, round(time.monotonic() - run.began, 3)
    results = {
        "epoch": t.epoch,
        "top1": run.last.get("top1"),
        "best_top1": t.best.get("top1"),
        "best_step": t.best.get("step"),
        "selected_on": t.best.get("selected_on"),
    }
    run.metrics.write("end", state=state, step=t.step, seconds=seconds, reason=reason, **results)
    run.metrics.close()
    if not t.ranks.first:
        return
    if t.config.plot:
        draw_curves(run)
    write_status(run.out, state, t.step, run.saved, reason, seconds=seconds, **results)
    best = t.best.get("top1")
    selected = (
        f"  best top-1 {100 * best:.2f} % (selected on {t.best['selected_on']})" if best else ""
    )
    say(f"{state} at step {t.step} of {t.plan.total_steps} in {clock(seconds)}{selected}  {reason}")


def draw_curves(run: Run) -> None:
    """curves.png, as far as that can be had: a picture is no reason to fail."""
    from trainer.tools.plot import draw, records

    try:
        draw(records(run.out / "metrics.jsonl"), run.out / "curves.png")
    except (TrainerError, OSError) as error:
        say(f"note: no curves.png: {error}")


def preempted(run: Run, env: Mapping[str, str]) -> int:
    """Stopped by a signal, everything saved."""
    names = enumerate(run.t.ranks.gather(run.stop.name))
    reason = ", ".join(f"{name} on rank {rank}" for rank, name in names if name)
    finish(run, "preempted", reason)
    # torchrun takes any code but 0 for a crash and kills the other ranks.
    return 0 if "TORCHELASTIC_RUN_ID" in env else PREEMPTED


def fail(run: Run | None, config: Config, ranks: Ranks, error: Exception) -> None:
    """Tell in the files why the run ended; never hide that error behind one of writing."""
    if not ranks.first:
        return
    state = error.state if isinstance(error, TrainerError) else "failed"
    reason = str(error).split("\n")[0] or type(error).__name__
    step, saved = (run.t.step, run.saved) if run else (0, None)
    with contextlib.suppress(OSError):
        if run:
            run.metrics.write(
                "end", state=state, step=step, seconds=time.monotonic() - run.began, reason=reason
            )
            run.metrics.close()
        write_status(Path(config.out), state, step, saved, reason)


def explain(ranks: Ranks, run: Run | None, error: Exception) -> TrainerError | None:
    """The one line for an error of torch that the user can understand; None: show it as it is."""
    text = str(error).strip()
    step = f" at step {run.t.step}" if run else ""
    if isinstance(error, torch.OutOfMemoryError):
        return OutOfMemory(
            f"rank {ranks.rank} on {ranks.host}: out of GPU memory{step}: "
            "lower the batch, raise --grad-accum-steps, or use --amp bf16"
        )
    lost = any(word in text.lower() for word in LOST)
    if ranks.world_size == 1 or not isinstance(error, RuntimeError) or not lost:
        return None
    return PeerLost(
        f"rank {ranks.rank} on {ranks.host} lost contact with another rank{step}: "
        f"{text.splitlines()[0][:200]}: the first failure is in that rank's log"
    )
