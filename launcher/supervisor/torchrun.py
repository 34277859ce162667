"""torchrun, the supervisor's child process."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from typing import Mapping

from .proc import end_with
from .rank_logs import TORCHRUN_LOG
from .spec import Spec

# Imports torch, then waits for a byte before it runs torchrun. Keeps the job's folder off sys.path.
WAITING = (
    "import sys; sys.path[:] = filter(None, sys.path); sys.argv[0] = 'torchrun'; "
    "from torch.distributed.run import main; sys.stdin.read(1) or sys.exit(); sys.exit(main())"
)
# variable -> folder below the host's cache folder, which outlives a run
CACHES = {
    "HF_HOME": "huggingface",
    "TORCH_HOME": "torch",
    "PIP_CACHE_DIR": "pip",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}
ENDING = re.compile(r"Sending process (\d+) closing signal")
FAILURE = re.compile(r"rank +: (\d+) \(local_rank: (\d+)\)\s+exitcode +: (-?\d+) \(pid: (\d+)\)")


class Torchrun:
    """The torchrun process. Its own and its ranks' output goes to files in `log_folder`.

    It inherits the supervisor's environment. number: how many restarts in place came before.
    """

    def __init__(self, spec: Spec, number: int = 0) -> None:
        self._spec, self._number = spec, number
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False
        self.log_folder = os.path.join(spec.dir, "ranks", str(number))

    def prepare(self) -> None:
        """Start the process early, because importing torch takes seconds; `start` lets it continue.

        Does nothing if called again, or if torchrun is not the usual script.
        """
        if self._prepared:
            return
        self._prepared = True
        with contextlib.suppress(OSError):
            if python := interpreter(executable(self._spec.argv)[0]):
                self._open([python, "-c", WAITING, *self._command()[1:]], subprocess.PIPE)

    def start(self) -> None:
        """Start torchrun. Raises OSError if it cannot start."""
        with contextlib.suppress(OSError):
            if self._process and self._process.stdin and self._process.poll() is None:
                self._process.stdin.write(b"\n")
                self._process.stdin.close()
                return
        self._open(executable(self._command()), subprocess.DEVNULL)

    def _command(self) -> list[str]:
        return [*self._spec.argv, *(self._spec.resume_args if self._number else ())]

    def _open(self, argv: list[str], stdin: int) -> None:
        shutdown = max(1, int(self._spec.time_to_save()) - 1)
        ours = {
            "PET_REDIRECTS": "3",  # both streams of each rank go to files, which RankLogs copies
            "PET_LOG_DIR": self.log_folder,
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(shutdown),
        }
        if self._number:
            ours.update(DDPCTL_RESUME="1", DDPCTL_RESTART_COUNT=str(self._number))
        supervisor = os.getpid()
        os.makedirs(self.log_folder, exist_ok=True)
        with open(os.path.join(self.log_folder, TORCHRUN_LOG), "ab") as output:
            self._process = subprocess.Popen(
                argv,
                bufsize=0,
                cwd=self._spec.cwd,
                env={**os.environ, **ours},
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: end_with(supervisor),
            )

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def exit_code(self) -> int | None:
        """Return torchrun's exit code: None while it runs, 127 (as in a shell) if it could not start."""
        return self._process.poll() if self._process else 127

    def close(self) -> None:
        if self._process:
            self._process.kill()  # in case it was only prepared
            self._process.wait()


def ended_pids(lines: list[str]) -> set[int]:
    """Return the pids of the ranks that torchrun has ended, from its last lines.

    When torchrun first sees a failure or is asked to stop, it signals every rank that is still
    alive, and writes a line about each one before it sends the signal.
    """
    return {int(pid) for pid in ENDING.findall("\n".join(lines))}


def failures(lines: list[str]) -> list[list[int]]:
    """Return [rank, local rank, exit code, pid] of each failed rank in torchrun's last lines.

    The ranks are in the order in which they failed.
    """
    found = FAILURE.findall("\n".join(lines))  # the first failure comes last
    return [[int(number) for number in numbers] for numbers in reversed(found)]


def with_caches(env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` with paths for libraries' caches (downloads, code) if the host keeps them."""
    folder = env.get("DDPCTL_CACHE_DIR")
    ours = {name: os.path.join(folder, sub) for name, sub in CACHES.items()} if folder else {}
    return {**ours, **env}


def executable(argv: list[str]) -> list[str]:
    """Return argv with `torchrun` replaced by its path, beside this Python or on PATH.

    If there is none, `python -m torch.distributed.run` replaces it.
    """
    if argv[0] != "torchrun":
        return argv
    path = os.pathsep.join([os.path.dirname(sys.executable), *os.get_exec_path()])
    script = shutil.which("torchrun", path=path)
    return [*([script] if script else [sys.executable, "-m", "torch.distributed.run"]), *argv[1:]]


def interpreter(torchrun: str) -> str:
    """Return the Python that runs `torchrun`: the file itself or the one in its first line.

    Returns "" if the file is not the usual script.
    """
    if torchrun == sys.executable:
        return torchrun
    with open(torchrun, errors="replace") as file:
        first, *rest = file.read(65536).splitlines() or [""]
    usual = re.match(r"#!\s*(/\S*python[\d.]*)$", first)
    return usual[1] if usual and "torch.distributed.run" in "".join(rest) else ""
