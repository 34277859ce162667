"""torch's flight recorder: each rank's last calls, to find the rank that missed a collective.

Each rank writes a dump when its node stops after a failure (`sitecustomize`), and torch's NCCL process
group writes one when a collective times out. A dump is a pickle. The supervisor of the node that
wrote it reads it, without loading any class; the launching machine receives only names and numbers.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pickle
import re
import time
from typing import Any, Iterator

from .events import Collective

ENTRIES = 2000  # collectives that a rank remembers
NAMES = 100  # how many of the newest collectives are reported for each group
SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # torch up to 2.7 reads the second
FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
LARGEST_DUMP = 64 << 20  # bytes
ANSWER_TIMEOUT = 0.5  # seconds for the ranks to write their dumps


class FlightRecorder:
    """The folder for the dumps. The ranks get its path from their environment."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "flight-recorder")
        self._asked: list[str] = []  # the pipes of the ranks that were asked for a dump
        self._late_at = 0.0  # time.monotonic()

    def environment(self, env: dict[str, str], torch: str) -> dict[str, str]:
        """Return `env` with the recorder on, unless the user has set it up. torch: torch's version."""
        with contextlib.suppress(OSError):
            os.makedirs(self._folder, exist_ok=True)
        old = bool(re.match(r"[01]\.|2\.[0-7]\b", torch))  # newer ones warn about the old names
        prefix = os.path.join(self._folder, "nccl-rank-")
        ours = {"DDPCTL_FLIGHT_RECORDER": self._folder, "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
        for names, value in ((SIZE, str(ENTRIES)), (FILE, prefix)):
            if not any(name in env for name in names):
                ours[names[old]] = value
        return {**ours, **env}

    def ask(self) -> bool:
        """Ask all running ranks for a dump. Return whether any could be asked."""
        self._late_at = time.monotonic() + ANSWER_TIMEOUT
        pipes = glob.glob(os.path.join(glob.escape(self._folder), "ask-*"))
        self._asked = list(filter(ask, pipes))
        return bool(self._asked)

    @property
    def is_ready(self) -> bool:
        """Whether all ranks have written their dumps (and removed their pipes) or timed out."""
        return time.monotonic() > self._late_at or not any(map(os.path.exists, self._asked))

    def read(self, round: int) -> list[Collective]:
        """Return each rank's last call in each group, and rename the dumps.

        round: the number of the start that wrote the dumps. The next start reuses their names.
        """
        newest: list[Collective] = []
        for path in sorted(glob.glob(os.path.join(glob.escape(self._folder), "*-rank-*"))):
            name = re.fullmatch(r"(gloo|nccl)-rank-(\d{1,6})", os.path.basename(path))
            if name:
                with contextlib.suppress(Exception):  # a damaged dump
                    kept = os.path.join(self._folder, "%d-%s" % (round, name[0]))
                    os.rename(path, kept)
                    newest += collectives(int(name[2]), name[1], load(kept))
        return newest


def ask(pipe: str) -> bool:
    """Ask the rank that reads this pipe for a dump. Return False if its process is gone."""
    with contextlib.suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, b"\n")
        os.close(descriptor)
        return True
    return False


class Plain(pickle.Unpickler):
    """An unpickler for plain data only. torch's functions that build lists become `list`."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch.jit._pickle" and name.startswith("build_"):
            return list
        raise pickle.UnpicklingError("%s.%s" % (module, name))


def load(path: str) -> Any:
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > LARGEST_DUMP:
            raise ValueError("too large")
        return Plain(file).load()


def collectives(rank: int, backend: str, dump: Any) -> Iterator[Collective]:
    """Yield the newest collective of each group in a rank's dump."""
    by_group: dict[str, dict[int, str]] = {}
    for entry in dump["entries"]:
        if not entry["is_p2p"]:
            group = "%s %s" % (backend, entry["process_group"][0])
            name = str(entry["profiling_name"]).split(":")[-1][:80]
            # NCCL gives all collectives of a coalesced group one number; the last one counts
            by_group.setdefault(group, {})[int(entry["collective_seq_id"])] = name
    for group, names in by_group.items():
        newest = max(names)
        run = [names.get(number, "") for number in range(max(1, newest - NAMES + 1), newest + 1)]
        yield Collective(rank, group[:200], newest, tuple(run))
