"""torchrun, the supervisor's child process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from .journal import Journal, Lines
from .proc import die_with_parent
from .spec import Spec

READ_SIZE = 1 << 20  # bytes
FAILURE = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)\s+exitcode +: (-?\d+) \(pid: (\d+)\)")


class Failure(NamedTuple):
    rank: int
    local_rank: int
    exit_code: int
    pid: int


class Torchrun:
    """The torchrun process. Its own output goes to the journal as lines without a rank."""

    def __init__(self, spec: Spec, journal: Journal) -> None:
        self._spec, self._journal = spec, journal
        self._process: subprocess.Popen[bytes] | None = None
        self._output: dict[int, Lines] = {}  # by pipe

    def start(self, log_folder: str, env: dict[str, str]) -> None:
        """Start torchrun. Raises OSError if that fails."""
        shutdown = max(1, int(stop_grace(self._spec.stop_timeout)) - 1)
        ours = {"PET_REDIRECTS": "3", "PET_LOG_DIR": log_folder}
        ours["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(shutdown)
        self._process = subprocess.Popen(
            executable(self._spec.argv),
            cwd=self._spec.cwd,
            env={"PYTHONFAULTHANDLER": "1", **env, **ours},  # the first: a crash says where
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        for pipe in self.pipes():
            os.set_blocking(pipe, False)
            self._output[pipe] = Lines(b"-", self._journal)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def pipes(self) -> list[int]:
        assert self._process and self._process.stdout and self._process.stderr
        return [self._process.stdout.fileno(), self._process.stderr.fileno()]

    def exit_code(self) -> int | None:
        """Return the exit code; 127, as in a shell, if torchrun could not be started."""
        return self._process.poll() if self._process else 127

    def read(self, pipe: int) -> int:
        """Copy the available data of a pipe. Return the number of bytes; 0 at its end."""
        data = os.read(pipe, READ_SIZE)
        self._output[pipe].feed(data)
        return len(data)

    def finish(self) -> None:
        """Copy the rest of the output, after torchrun and all its processes have ended."""
        for pipe in self.pipes():
            with contextlib.suppress(BlockingIOError):  # held by a process that survived SIGKILL
                while self.read(pipe):
                    pass
            self._output[pipe].finish()

    def last_lines(self) -> list[str]:
        """Return the end of stdout, then of stderr, which shows the failure."""
        return [
            line for lines in self._output.values() if lines.last for line in lines.last_lines()
        ]

    def failures(self) -> list[Failure]:
        """Return the failed ranks in torchrun's summary, which lists the first last and omits code 0."""
        found = FAILURE.findall("\n".join(self.last_lines()))
        return [Failure(*map(int, numbers)) for numbers in reversed(found)]


def executable(argv: list[str]) -> list[str]:
    """Find `torchrun` beside this Python, on PATH, or as a module of this Python."""
    if argv[0] != "torchrun":
        return argv
    path = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    found = shutil.which("torchrun", path=path)
    return [*([found] if found else [sys.executable, "-m", "torch.distributed.run"]), *argv[1:]]


def stop_grace(stop_timeout: float) -> float:
    """Return the seconds from SIGTERM to our SIGKILL: at stop_timeout the engine kills us too."""
    return max(0.5 * stop_timeout, stop_timeout - 3.0)
