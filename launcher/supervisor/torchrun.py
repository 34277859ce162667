"""torchrun: the child process whose own output goes into the journal as lines of nobody's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from .journal import Journal
from .proc import die_with_parent, pidfd
from .stacks import Stacks

READ_SIZE = 1 << 20  # bytes
LAST_BYTES = 32768  # of what it said, kept as evidence


class Torchrun:
    """The child process. Its own output goes into the journal as lines of nobody's."""

    def __init__(self, spec: dict[str, Any], journal: Journal, stacks: Stacks) -> None:
        self._spec, self._journal, self._stacks = spec, journal, stacks
        self._process: subprocess.Popen[bytes] | None = None
        self._partial: dict[int, bytes] = {}
        self.last = b""  # the end of what it said
        self.exit_fd: int | None = None  # readable once it has exited

    def start(self, log_folder: str) -> None:
        """Raises OSError when it cannot be started."""
        spec = self._spec
        env = dict(os.environ, PET_REDIRECTS="3", PET_LOG_DIR=log_folder)
        env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, int(patience(spec["stop_timeout"])) - 1))
        env.setdefault("PYTHONFAULTHANDLER", "1")  # so that a crash says where
        self._process = subprocess.Popen(
            executable(spec["argv"]),
            cwd=spec.get("cwd"),
            env=self._stacks.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self.exit_fd = pidfd(self.pid)
        for pipe in self.pipes():
            os.set_blocking(pipe, False)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def pipes(self) -> list[int]:
        assert self._process and self._process.stdout and self._process.stderr
        return [self._process.stdout.fileno(), self._process.stderr.fileno()]

    def exit_code(self) -> int | None:
        return self._process.poll() if self._process else None

    def read(self, pipe: int) -> bool:
        """Copies what a pipe holds. False at its end."""
        try:
            data = os.read(pipe, READ_SIZE)
        except BlockingIOError:
            return True
        head, newline, rest = (self._partial.get(pipe, b"") + data).rpartition(b"\n")
        self._partial[pipe] = rest
        if newline:
            self._hand_on(head + newline)
        return bool(data)

    def finish(self) -> None:
        for pipe in self.pipes():
            before = None
            while before != self._partial.get(pipe) and self.read(pipe):
                before = self._partial.get(pipe)
            if self._partial.get(pipe):
                self._hand_on(self._partial.pop(pipe) + b"\n")

    def failures(self) -> list[dict[str, Any]]:
        """What its failure summary says of each rank. It shows no exit code 0."""
        found = []
        pattern = re.compile(
            r"rank +: (\d+) \(local_rank: (\d+)\)\s+exitcode +: (-?\d+) \(pid: (\d+)\)"
        )
        for match in pattern.finditer(self.last.decode(errors="replace")):
            rank, local_rank, code, pid = map(int, match.groups())
            found.append({"rank": rank, "local_rank": local_rank, "exit_code": code, "pid": pid})
        return found

    def _hand_on(self, whole: bytes) -> None:
        self._journal.lines(b"-", whole)
        self.last = (self.last + whole)[-LAST_BYTES:]


def executable(argv: list[str]) -> list[str]:
    """`torchrun` beside this Python, on PATH, or as a module of this Python."""
    if argv[0] != "torchrun":
        return argv
    beside = os.path.join(os.path.dirname(sys.executable), "torchrun")
    if os.access(beside, os.X_OK):
        return [beside, *argv[1:]]
    import shutil

    found = shutil.which("torchrun")
    program = [found] if found else [sys.executable, "-m", "torch.distributed.run"]
    return [*program, *argv[1:]]


def patience(stop_timeout: float) -> float:
    """Seconds from SIGTERM to our SIGKILL: the engine's own comes at stop_timeout, and ends us too."""
    return max(0.5 * stop_timeout, stop_timeout - 3.0)
