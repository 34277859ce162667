"""How a run ends: stop requests, status.json, the last line of metrics.jsonl, the exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

from trainer.config import Config
from trainer.distributed import Ranks
from trainer.errors import KILLED, PREEMPTED, OutOfMemory, PeerLost, TrainerError
from trainer.logs import clock, say, write_status
from trainer.tools.plot import draw, records

if TYPE_CHECKING:
    from trainer.state import Training

ECHO = 2.0  # seconds
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
LOST = ("connection", "peer", "timed out", "timeout", "nccl", "gloo", "socket")


class Stopped(Exception):
    """All ranks agreed to save and end, because one of them received a signal."""


class StopRequest:
    """Truthy once a signal has arrived; `name` is that signal's.

    SIGTERM, SIGINT and SIGUSR1 on any rank ask for save-then-stop. The handler only notes the
    signal; the ranks agree at the next step boundary. A second signal ends this process at once,
    unsaved, unless it follows within two seconds: a terminal or `docker stop` signals a whole
    process group, and torchrun then passes the signal on to its ranks once more.
    """

    def __init__(self) -> None:
        self.name = ""
        self.since = 0.0

    def __bool__(self) -> bool:
        return bool(self.name)

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def ignore(self) -> None:
        """The run is over: further signals must not disturb its end."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.name:
            self.name = signal.Signals(number).name
            self.since = time.monotonic()
        elif time.monotonic() - self.since > ECHO:
            os._exit(KILLED)  # no cleanup: this process may be inside a collective


def finish(t: Training, state: str, reason: str) -> None:
    """Record how the run ended, once everything is saved and all ranks know."""
    seconds = round(time.monotonic() - t.began, 3)
    results = {
        "epoch": t.epoch,
        "top1": t.last.get("top1"),
        "best_top1": t.best.get("top1"),
        "best_step": t.best.get("step"),
        "selected_on": t.best.get("selected_on"),
    }
    t.metrics.write("end", state=state, step=t.step, seconds=seconds, reason=reason, **results)
    t.metrics.close()
    if not t.ranks.first:
        return
    if t.config.plot:
        draw_curves(Path(t.config.out))
    write_status(Path(t.config.out), state, t.step, t.saved, reason, seconds=seconds, **results)
    best = t.best.get("top1")
    selected = (
        f"  best top-1 {100 * best:.2f} % (selected on {t.best['selected_on']})" if best else ""
    )
    say(f"{state} at step {t.step} of {t.plan.total_steps} in {clock(seconds)}{selected}  {reason}")


def draw_curves(out: Path) -> None:
    """Write curves.png. Failing to is no reason for the run to fail."""
    try:
        draw(records(out / "metrics.jsonl"), out / "curves.png")
    except (TrainerError, OSError) as error:
        say(f"note: no curves.png: {error}")


def preempted(t: Training, env: Mapping[str, str]) -> int:
    """Stopped by a signal, with everything saved. Returns the exit code."""
    names = enumerate(t.ranks.gather(t.stop.name))
    finish(t, "preempted", ", ".join(f"{name} on rank {rank}" for rank, name in names if name))
    # torchrun takes any code but 0 for a crash and kills the other ranks.
    return 0 if "TORCHELASTIC_RUN_ID" in env else PREEMPTED


def fail(t: Training | None, config: Config, ranks: Ranks, error: Exception) -> None:
    """Record why the run failed. A disk that cannot be written must not hide that error."""
    if not ranks.first:
        return
    state = error.state if isinstance(error, TrainerError) else "failed"
    reason = str(error).split("\n")[0] or type(error).__name__
    step, saved = (t.step, t.saved) if t else (0, None)
    with contextlib.suppress(OSError):
        if t:
            seconds = time.monotonic() - t.began
            t.metrics.write("end", state=state, step=step, seconds=seconds, reason=reason)
            t.metrics.close()
        write_status(Path(config.out), state, step, saved, reason)


def explain(ranks: Ranks, t: Training | None, error: Exception) -> TrainerError | None:
    """One line for an error of torch that the user can act on. None: show the traceback."""
    text = str(error).strip()
    step = f" at step {t.step}" if t else ""
    if isinstance(error, torch.cuda.OutOfMemoryError):
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
