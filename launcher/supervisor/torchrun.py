"""torchrun, the supervisor's child process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys

from .journal import Journal, LineSplitter
from .proc import PR_SET_PDEATHSIG, prctl
from .spec import Spec

READ_SIZE = 1 << 20  # bytes, as much as a pipe holds
FAILURE = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)\s+exitcode +: (-?\d+) \(pid: (\d+)\)")


class Torchrun:
    """The torchrun process. Its own output goes to the journal as lines without a rank."""

    def __init__(self, spec: Spec, journal: Journal) -> None:
        self._spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self.pipe = -1  # its output
        self._lines = LineSplitter(b"-", journal)

    def start(self, argv: list[str], log_folder: str, env: dict[str, str]) -> int:
        """Start torchrun, as `argv`. Return the pipe with its output. Raises OSError if it cannot start."""
        shutdown = max(1, int(stop_grace(self._spec.stop_timeout)) - 1)
        ours = {"PET_REDIRECTS": "3", "PET_LOG_DIR": log_folder}
        ours["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(shutdown)
        self._process = subprocess.Popen(
            executable(argv),
            cwd=self._spec.cwd,
            env={"PYTHONFAULTHANDLER": "1", **env, **ours},  # the first: a crash prints where
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # torchrun ends if the supervisor is killed
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        assert self._process.stdout
        self.pipe = self._process.stdout.fileno()
        os.set_blocking(self.pipe, False)
        return self.pipe

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def exit_code(self) -> int | None:
        """Return the exit code; None while it runs; 127, as in a shell, if it could not start."""
        return self._process.poll() if self._process else 127

    def read(self) -> bool:
        """Copy the output that is available. Return False at its end."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.pipe, READ_SIZE)
            self._lines.feed(data)
            return bool(data)
        return True

    def finish(self) -> None:
        """Copy the rest of the output, after torchrun and all its processes have ended."""
        self.read()
        self._lines.finish()

    def close(self) -> None:
        if self._process and self._process.stdout:
            self._process.stdout.close()

    def last_lines(self) -> list[str]:
        return self._lines.last_lines()

    def failures(self) -> list[list[int]]:
        """Return [rank, local rank, exit code, pid] of failed ranks, in the order of their failures."""
        found = FAILURE.findall("\n".join(self.last_lines()))  # the first failure comes last
        return [[int(number) for number in numbers] for numbers in reversed(found)]


def executable(argv: list[str]) -> list[str]:
    """Return argv with the path of torchrun: beside this Python or on PATH, else its module."""
    if argv[0] != "torchrun":
        return argv
    path = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    found = shutil.which("torchrun", path=path)
    return [*([found] if found else [sys.executable, "-m", "torch.distributed.run"]), *argv[1:]]


def stop_grace(stop_timeout: float) -> float:
    """Return the seconds from SIGTERM to our SIGKILL. The engine kills us too at stop_timeout."""
    return max(0.5 * stop_timeout, stop_timeout - 3.0)
