"""How a run ends: results, failures, status.json, the exit code."""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from .config import Config
from .distributed import Ranks, Store, as_fact
from .errors import KINDS, PREEMPTED, OutOfMemory, PeerLost, TrainerError, print_error
from .logs import clock, say, write_status
from .state import Training
from .tools.plot import draw, records

FAILURE = "failure"  # the key in the store under which the first failing rank reports
WATCH_EVERY = 0.5  # seconds
LOST_GRACE = 2.0  # seconds that a rank which lost a peer waits for that peer's report
LEAVE_GRACE = 3.0  # seconds that the failing rank waits for the others to notice
LINGER = 1.0  # seconds that the others wait before exiting: launchers kill all ranks after the first exit
LOST = ("connection", "peer", "timed out", "timeout", "nccl", "gloo", "socket")


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
    out = Path(t.config.out)
    if t.config.plot:
        try:
            draw(records(out / "metrics.jsonl"), out / "curves.png")
        except (TrainerError, OSError) as error:  # must not fail the run
            say(f"note: no curves.png: {error}")
    with t.status:
        t.moved_at = math.inf
        write_status(out, state, t.step, t.saved, reason, seconds=seconds, **results)
    best = t.best.get("top1")
    selected = (
        f"  best top-1 {100 * best:.2f} % (selected on {t.best['selected_on']})" if best else ""
    )
    say(f"{state} at step {t.step} of {t.plan.total_steps} in {clock(seconds)}{selected}  {reason}")


def preempted(t: Training, env: Mapping[str, str]) -> int:
    """Record a stop by a signal, with everything saved. Returns the exit code."""
    names = enumerate(t.ranks.gather(t.stop.name))
    finish(t, "preempted", ", ".join(f"{name} on rank {rank}" for rank, name in names if name))
    # torchrun takes any code but 0 for a crash and kills the other ranks.
    return 0 if "TORCHELASTIC_RUN_ID" in env else PREEMPTED


class Watch:
    """End all ranks soon, and with the same error, when one of them fails.

    A rank that fails mid-step cannot tell the others through a collective: they are waiting in
    another one, and would wait for the whole timeout. It writes its error to the store instead, where a
    thread of every rank looks twice a second. That thread also counts up this rank's sign of life.
    """

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        # Seconds without a poll after which rank 0 writes a provisional status.json: NCCL's own
        # watchdog kills a process that waits for the whole timeout, without a word.
        self.stalled_after = 0.8 * config.timeout if ranks.device.type == "cuda" else math.inf
        self.t: Training | None = None
        self.provisional = False
        self.ending = threading.Lock()  # held by whichever thread ends this process

    def start(self) -> None:
        if self.ranks.store is not None:
            threading.Thread(target=self._run, name="watch", daemon=True).start()

    def done(self) -> None:
        """The run has succeeded: stop watching."""
        self.ending.acquire()

    def fail(self, error: Exception) -> Exception:
        """Record this rank's error and tell the other ranks. Returns the error to exit with: the one
        that the first failing rank reported, the same on all ranks."""
        if not self.ending.acquire(blocking=False):
            threading.Event().wait()  # the watching thread is ending this process
        mine = explain(self.ranks, self.t, error) or error
        store, shared = self.ranks.store, mine
        if store is not None:
            # The store may have gone down with the rank holding it.
            with contextlib.suppress(RuntimeError, ConnectionError):
                shared = self._report(store, mine)
        write_failure(self.t, self.config, self.ranks, shared)
        if store is not None:
            self._part(store, reporter=shared is mine)
        return shared

    def _report(self, store: Store, mine: Exception) -> Exception:
        if isinstance(mine, PeerLost):  # the store may already have that peer's error
            wait_until(lambda: store.check([FAILURE]), LOST_GRACE)
        if store.add("failures", 1) == 1 and not store.check([FAILURE]):
            get_error_handler().record_exception(mine)  # torchrun names the first rank that did
            located = isinstance(mine, TrainerError) and mine.located
            where = "" if located else f"rank {self.ranks.rank} on {self.ranks.host}: "
            fact = as_fact(self.ranks, mine)
            store.set(FAILURE, json.dumps(fact | {"message": where + fact["message"]}))
            if isinstance(mine, TrainerError):
                mine.args = (where + str(mine),)
            return mine
        wait_until(lambda: store.check([FAILURE]), LOST_GRACE)
        return reported(store)

    def _part(self, store: Store, reporter: bool) -> None:
        """The rank that failed leaves first, so that launchers see it first, but not before the
        others know: it may hold the store."""
        with contextlib.suppress(RuntimeError, ConnectionError):
            if reporter:
                others = self.ranks.world_size - 1
                wait_until(lambda: store.add("informed", 0) >= others, LEAVE_GRACE)
            else:
                store.add("informed", 1)
                time.sleep(LINGER)

    def _run(self) -> None:
        store = self.ranks.store
        assert store is not None
        while not self.ending.locked():
            try:
                store.add(f"alive/{self.ranks.rank}", 1)
                failed = store.check([FAILURE])
            except (RuntimeError, ConnectionError):
                return  # the store is gone, with the rank or agent that held it
            if failed and self.ending.acquire(blocking=False):
                error = reported(store)
                write_failure(self.t, self.config, self.ranks, error)
                print_error(error)
                self._part(store, reporter=False)
                os._exit(error.exit_code)  # the main thread may be inside a collective
            self._note_stall()
            time.sleep(WATCH_EVERY)

    def _note_stall(self) -> None:
        if self.t is None or not self.ranks.first:
            return
        with self.t.status:
            silent = time.monotonic() - self.t.moved_at
            if silent > self.stalled_after and not self.provisional:
                self.provisional = True
                reason = f"no progress for {silent:.0f} s at step {self.t.step}: a rank may be lost"
                with contextlib.suppress(OSError):
                    out = Path(self.config.out)
                    write_status(out, PeerLost.state, self.t.step, self.t.saved, reason)
            elif self.provisional and 0 < silent < self.stalled_after:
                self.provisional = False
                (Path(self.config.out) / "status.json").unlink(missing_ok=True)


def reported(store: Store) -> TrainerError:
    fact = json.loads(store.get(FAILURE))
    return KINDS[fact["error"]](fact["message"])


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def write_failure(t: Training | None, config: Config, ranks: Ranks, error: Exception) -> None:
    """Record why the run failed. A disk that is not writable must not hide that error."""
    if not ranks.first:
        return
    state = error.state if isinstance(error, TrainerError) else "failed"
    reason = str(error).split("\n")[0] or type(error).__name__
    with contextlib.suppress(OSError):
        if t is None:
            write_status(Path(config.out), state, 0, None, reason)
            return
        seconds = time.monotonic() - t.began
        t.metrics.write("end", state=state, step=t.step, seconds=seconds, reason=reason)
        t.metrics.close()
        with t.status:
            t.moved_at = math.inf
            write_status(Path(config.out), state, t.step, t.saved, reason)


def explain(ranks: Ranks, t: Training | None, error: Exception) -> TrainerError | None:
    """One line for a torch error that the user can act on. None: show the traceback."""
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
