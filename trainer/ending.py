"""The end of a run: results, failures, status.json, the exit code."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from .config import Config
from .distributed import Ranks, Store, as_fact
from .errors import (
    KINDS,
    PREEMPTED,
    DataError,
    OutOfMemory,
    PeerLost,
    TrainerError,
    print_error,
)
from .logs import clock, say, write_status
from .state import Training

FAILURE = "failure"  # the key in the store under which the first failing rank reports
WATCH_EVERY = 0.5  # seconds
LOST_GRACE = 2.0  # seconds that a rank which lost a peer waits for that peer's report
STORE_GRACE = 10.0  # seconds that a rank which lost the store waits for its own collective to fail
LEAVE_GRACE = 3.0  # seconds that the failing rank waits for the others to notice
LINGER = 1.0  # seconds that the others wait, because launchers kill all ranks after the first exit
LOST = ("connection", "peer", "timed out", "timeout", "nccl", "gloo", "socket")


def finish(t: Training, state: str, reason: str) -> None:
    """Record in metrics.jsonl and status.json how the run ended, and print it. Call this after the
    last save."""
    seconds = round(time.monotonic() - t.log.began, 3)
    results = {
        "epoch": t.epoch,
        "top1": t.log.last.get("top1"),
        "best_top1": t.best.get("top1"),
        "best_step": t.best.get("step"),
        "selected_on": t.best.get("selected_on"),
    }
    t.log.write("end", state=state, step=t.step, seconds=seconds, reason=reason, **results)
    if not t.ranks.first:
        return
    out = Path(t.config.out)
    try:
        write_status(out, state, t.step, t.saver.newest, reason, seconds=seconds, **results)
    except OSError as error:  # a full disk must not fail a run that has saved everything
        say(f"WARNING: cannot write {out}/status.json: {error.strerror or error}")
    best = t.best.get("top1")
    selected = (
        f"  best top-1 {100 * best:.2f}% (selected on {t.best['selected_on']})" if best else ""
    )
    say(f"{state} at step {t.step} of {t.plan.total_steps} in {clock(seconds)}{selected}  {reason}")


def preempted(t: Training, env: Mapping[str, str]) -> int:
    """Record a stop by a signal or by --max-time, with everything saved. Return the exit code."""
    names = enumerate(t.ranks.gather(t.poll.stop.name))
    reason = ", ".join(f"{name} on rank {rank}" for rank, name in names if name)
    if not t.config.test_only:
        finish(t, "preempted", reason)
    # torchrun takes any code but 0 for a crash and kills the other ranks.
    return 0 if "TORCHELASTIC_RUN_ID" in env else PREEMPTED


class Watch:
    """When a rank fails or is lost, ends all ranks soon and with the same error.

    A rank that fails mid-step cannot tell the others through a collective, because they are waiting in
    another collective, and would wait for the whole timeout. Instead, it writes its error to the store,
    which a thread of every rank checks twice a second. That thread also counts this rank's signs of
    life and watches the count of the next rank, so that a lost host is noticed after --timeout.
    """

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config, self.ranks = config, ranks
        self.t: Training | None = None
        self.ending = threading.Lock()  # held by whichever thread ends this process
        self.next = (ranks.rank + 1) % ranks.world_size
        self.sign, self.sign_at = -1, time.monotonic()

    def start(self) -> None:
        if self.ranks.store is not None:
            threading.Thread(target=self._run, name="watch", daemon=True).start()

    def done(self) -> None:
        """Stop watching, because the run has succeeded."""
        self.ending.acquire()

    def fail(self, error: Exception) -> Exception:
        """Record this rank's error and tell the other ranks. Return the error to exit with: the one
        that the first failing rank reported or, if the store is gone, this rank's own."""
        if not self.ending.acquire(blocking=False):
            threading.Event().wait()  # the watching thread is ending this process
        mine = explain(self.ranks, self.t, error) or error
        store, shared = self.ranks.store, mine
        if store is not None:
            # The store may have gone down with the rank that held it.
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
            get_error_handler().record_exception(mine)  # torchrun names the first one recorded
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
        """Let the failed rank exit first, so that launchers blame the right one.

        The failed rank waits until the others know of the failure, because it may host the store.
        """
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
            alone = False
            try:
                error = self._look(store)
            except (RuntimeError, ConnectionError):  # the process that held the store is gone
                time.sleep(STORE_GRACE)
                alone, error = (
                    True,
                    PeerLost(
                        f"rank {self.ranks.rank} on {self.ranks.host} lost contact with the key-value "
                        "store on the first node; see that node's log for the first failure"
                    ),
                )
            if error is not None and self.ending.acquire(blocking=False):
                with contextlib.suppress(RuntimeError, ConnectionError):
                    error = self._report(store, error)
                write_failure(self.t, self.config, self.ranks, error)
                print_error(error, every_rank=alone)
                self._part(store, reporter=False)
                os._exit(getattr(error, "exit_code", 1))
            time.sleep(WATCH_EVERY)

    def _look(self, store: Store) -> Exception | None:
        """Give a sign of life. Return the error that a rank has reported, PeerLost if the next rank
        is lost, or None."""
        store.add(f"alive/{self.ranks.rank}", 1)
        if store.check([FAILURE]):
            return reported(store)
        sign = store.add(f"alive/{self.next}", 0)
        if sign != self.sign:
            self.sign, self.sign_at = sign, time.monotonic()
        if time.monotonic() - self.sign_at < self.config.timeout:
            return None
        step = f" at step {self.t.step}" if self.t else ""
        return PeerLost(
            f"rank {self.ranks.rank} on {self.ranks.host} lost contact with rank {self.next}{step}: "
            f"no sign of life for {self.config.timeout:g} s; check that rank's log and host"
        )


def reported(store: Store) -> TrainerError:
    fact = json.loads(store.get(FAILURE))
    return KINDS[fact["error"]](fact["message"])


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)


def write_failure(t: Training | None, config: Config, ranks: Ranks, error: Exception) -> None:
    """Record why the run failed. A disk that is not writable must not hide the error."""
    if not ranks.first or config.test_only:
        return
    state = error.state if isinstance(error, TrainerError) else "failed"
    reason = str(error).split("\n")[0] or type(error).__name__
    step, newest = (t.step, t.saver.newest) if t else (0, None)
    with contextlib.suppress(OSError):
        if t:
            seconds = time.monotonic() - t.log.began
            t.log.write("end", state=state, step=step, seconds=seconds, reason=reason)
        write_status(Path(config.out), state, step, newest, reason)


def explain(ranks: Ranks, t: Training | None, error: Exception) -> TrainerError | None:
    """Return a one-line error for a torch error that the user can act on, or None for any other error."""
    first = (str(error).strip().splitlines() or [""])[0][:200]
    where = f"rank {ranks.rank} on {ranks.host}"
    step = f" at step {t.step}" if t else ""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return OutOfMemory(
            f"{where}: out of GPU memory{step}; "
            "lower the batch size, raise --grad-accum-steps, or use --amp bf16"
        )
    if isinstance(error, TrainerError) or not isinstance(error, RuntimeError):
        return None
    if "DataLoader worker" in first:
        return DataError(
            f"a process that loads images was killed: {first}; give the container more shared "
            "memory (`shm_size:`), or lower --workers"
        )
    if ranks.world_size == 1 or not any(word in str(error).lower() for word in LOST):
        return None
    return PeerLost(
        f"{where} lost contact with another rank{step}: {first}; see that rank's log for the first "
        "failure"
    )
