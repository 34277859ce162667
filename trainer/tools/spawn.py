"""`--spawn N`: N ranks on this machine, without torchrun.

The ranks are ordinary processes with torchrun's variables, so everything behaves as under torchrun,
except that exit codes come through. When one fails the others are stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

PATIENCE = 5.0  # seconds after one failed that the others have to end by themselves
GRACE = 30.0  # seconds after which they are killed


def spawn(count: int, argv: Sequence[str]) -> int:
    """Run `python -m trainer argv` as `count` ranks. Returns the first code that is not 0."""
    with tempfile.TemporaryDirectory(prefix="trainer-spawn-") as folder:
        ranks = [_start(rank, count, argv, Path(folder) / "store") for rank in range(count)]
        with _passing_signals_to(ranks):
            return _wait(ranks)


def _start(rank: int, count: int, argv: Sequence[str], store: Path) -> subprocess.Popen[bytes]:
    env = dict(os.environ)
    env |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "GROUP_RANK": "0",
        "TRAINER_STORE": str(store),  # a file: no port to be taken
    }
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return subprocess.Popen([sys.executable, "-m", "trainer", *argv], env=env)


@contextlib.contextmanager
def _passing_signals_to(ranks: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    code, failed_at, told = 0, 0.0, False
    while any(process.poll() is None for process in ranks):
        time.sleep(0.05)
        if not code:
            code = next((p.returncode for p in ranks if p.returncode), 0)
            failed_at = time.monotonic()
            continue
        waited = time.monotonic() - failed_at
        if waited > GRACE:
            _signal(ranks, signal.SIGKILL)
        elif waited > PATIENCE and not told:
            _signal(ranks, signal.SIGTERM)
            told = True
    code = code or next((process.returncode for process in ranks if process.returncode), 0)
    return code if code >= 0 else 128 - code


def _signal(ranks: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in ranks:
        if process.poll() is None:
            process.send_signal(number)
