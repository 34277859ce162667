"""torchrun, the supervisor's child process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from typing import Mapping

from .journal import Journal, LineSplitter
from .proc import end_with
from .spec import Spec

READ_SIZE = 1 << 20  # bytes, as much as a pipe holds
# torchrun that waits for a byte once it has imported torch; the folder of the job is not on its path
WAITING = (
    "import sys; sys.path[:] = filter(None, sys.path); sys.argv[0] = 'torchrun'; "
    "from torch.distributed.run import main; sys.stdin.read(1) or sys.exit(); sys.exit(main())"
)
# variable -> folder below the host's folder of caches, which outlives a run
CACHES = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "PIP_CACHE_DIR": "pip",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
FAILURE = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)\s+exitcode +: (-?\d+) \(pid: (\d+)\)")


class Torchrun:
    """The torchrun process. Its own output goes to the journal as lines without a rank.

    number: of restarts in place before this start.
    """

    def __init__(self, spec: Spec, journal: Journal, number: int = 0) -> None:
        self._spec, self._number = spec, number
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False
        self.pipe = -1  # its output
        self.log_folder = os.path.join(spec.dir, "ranks", str(number))
        self._lines = LineSplitter(b"-", journal)

    def prepare(self, env: dict[str, str]) -> None:
        """Start the process early, because it takes seconds to import torch; `start` lets it go on.

        Do nothing the second time, or if torchrun is not the usual script.
        """
        if self._prepared:
            return
        self._prepared = True
        with contextlib.suppress(OSError):
            if python := interpreter(executable(self._spec.argv)[0]):
                self._open([python, "-c", WAITING, *self._command()[1:]], env, subprocess.PIPE)

    def start(self, env: dict[str, str]) -> int:
        """Start torchrun. Return the pipe with its output. Raises OSError if it cannot start."""
        if not self._go_on():
            self._open(executable(self._command()), env, subprocess.DEVNULL)
        return self.pipe

    def _command(self) -> list[str]:
        return [*self._spec.argv, *(self._spec.resume_args if self._number else ())]

    def _go_on(self) -> bool:
        """Let the prepared process go on. Return False if there is none."""
        with contextlib.suppress(OSError):
            if self._process and self._process.stdin and self._process.poll() is None:
                self._process.stdin.write(b"\n")
                self._process.stdin.close()
                return True
        return False

    def _open(self, argv: list[str], env: dict[str, str], stdin: int) -> None:
        shutdown = max(1, int(self._spec.stop_grace) - 1)
        ours = {"PET_REDIRECTS": "3", "PET_LOG_DIR": self.log_folder}
        ours["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(shutdown)
        if self._number:
            ours.update(DDPCTL_RESUME="1", DDPCTL_RESTART_COUNT=str(self._number))
        supervisor = os.getpid()
        self._process = subprocess.Popen(
            argv,
            bufsize=0,
            cwd=self._spec.cwd,
            # PYTHONFAULTHANDLER: a crash prints where
            env={"PYTHONFAULTHANDLER": "1", **with_caches(env), **ours},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: end_with(supervisor),
        )
        assert self._process.stdout
        self.pipe = self._process.stdout.fileno()
        os.set_blocking(self.pipe, False)

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
            self._process.kill()  # if it was only prepared
            self._process.wait()

    def last_lines(self) -> list[str]:
        return self._lines.last_lines()

    def failures(self) -> list[list[int]]:
        """Return [rank, local rank, exit code, pid] of failed ranks, in the order of their failures."""
        failures = FAILURE.findall("\n".join(self.last_lines()))  # the first failure comes last
        return [[int(number) for number in numbers] for numbers in reversed(failures)]


def with_caches(env: Mapping[str, str]) -> dict[str, str]:
    """Add where libraries keep what they download or compile, if the host has a folder for that."""
    folder = env.get("DDPCTL_CACHE_DIR")
    ours = {name: os.path.join(folder, sub) for name, sub in CACHES.items()} if folder else {}
    return {**ours, **env}


def executable(argv: list[str]) -> list[str]:
    """Return argv with the path of torchrun: beside this Python or on PATH, else its module."""
    if argv[0] != "torchrun":
        return argv
    path = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    script = shutil.which("torchrun", path=path)
    return [*([script] if script else [sys.executable, "-m", "torch.distributed.run"]), *argv[1:]]


def interpreter(torchrun: str) -> str:
    """Return the Python that runs a torchrun, if that is the usual script or Python itself; else ""."""
    if torchrun == sys.executable:
        return torchrun
    with open(torchrun, errors="replace") as file:
        first, *rest = file.read(READ_SIZE).splitlines() or [""]
    usual = re.match(r"#!\s*(/\S*python[\d.]*)$", first)
    return usual[1] if usual and "torch.distributed.run" in "".join(rest) else ""
