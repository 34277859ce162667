"""Take the Python stacks of this node's ranks: on a signal, a rank writes its stack to a file.

A request is a file `ask-<kind>-<id>` in the control folder; the answer is `stacks-<id>.json`.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import linecache
import os
import re
import threading
import time
from dataclasses import asdict, replace
from typing import Any, Iterable

from .events import Frame, Stack, StackAnswer, Thread
from .journal import publish
from .proc import descendants, proc_stat, read_text
from .ranks import Rank
from .sitecustomize import ALL_THREADS, MAIN_THREAD
from .spec import Spec

LOOK = 0.1  # seconds between checks for requests and for the ranks' answers
QUIET = 0.3  # seconds without growth after which a stack is complete
ANSWER_TIMEOUT = 3.0  # seconds for a rank to answer
SOURCE_TIMEOUT = 1.0  # seconds to read the source files
HEAD = re.compile(r"(Stack|Current thread|Thread) ?(0x[0-9a-f]+)?( \[.*\])? \(most recent call")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
STATES = {"T": "stopped", "t": "traced", "Z": "exited", "X": "exited"}


class Dump:
    """A request to one rank. note: why there is no stack."""

    def __init__(self, rank: Rank, folder: str, kind: str) -> None:
        self.rank = rank
        self.pid = python_of(rank.pid, folder) if rank.alive else rank.pid
        self.path = os.path.join(folder, str(self.pid))
        self.began = self.grew = time.monotonic()
        self.text = ""
        self.note = self._ask(ALL_THREADS if kind == "all" else MAIN_THREAD)

    def _ask(self, number: int) -> str:
        """Send the signal if that is harmless; otherwise return the reason why not."""
        if not self.rank.alive or self.state in STATES:
            return STATES.get(self.state, "exited")
        try:
            if not handles(self.pid, number, "SigCgt") or not has_open(self.pid, self.path):
                return "unprepared"
            if handles(self.pid, number, "SigBlk"):
                return "blocked"
            os.truncate(self.path, 0)
        except OSError:
            return "unprepared"
        signal_main_thread(self.pid, number)
        return ""

    @property
    def state(self) -> str:
        return (proc_stat(self.pid) or ["X"])[0]

    def done(self) -> bool:
        if self.note:
            return True
        now, text = time.monotonic(), read_text(self.path)
        if text != self.text:
            self.text, self.grew = text, now
        whole = text.endswith("\n") and now - self.grew > QUIET
        return whole or now - self.began > ANSWER_TIMEOUT

    def stack(self) -> Stack:
        threads = parse(self.text)
        return Stack(
            self.rank.rank,
            self.rank.local_rank,
            self.pid,
            self.state,
            self.note or (None if self.text else "silent"),
            next((thread.frames for thread in threads if thread.thread == "main"), ()),
            tuple(thread for thread in threads if thread.thread != "main"),
        )


class Taking(threading.Thread):
    """Takes the stacks of some ranks once. In a thread, because the disk with their code may hang."""

    def __init__(self, ranks: Iterable[Rank], folder: str, requests: list[tuple[str, str]]) -> None:
        super().__init__(daemon=True)
        self.requests = requests  # (kind, id)
        self.stacks: list[Stack] | None = None
        self._ranks, self._folder = list(ranks), folder
        self._late_at = float("inf")

    def run(self) -> None:
        with contextlib.suppress(Exception):  # the user only wants to look at the run
            kind = "all" if any(kind == "all" for kind, _ in self.requests) else "main"
            dumps = [Dump(rank, self._folder, kind) for rank in self._ranks]
            while [dump for dump in dumps if not dump.done()]:
                time.sleep(LOOK)
            stacks = self.stacks = [dump.stack() for dump in dumps]
            self._late_at = time.monotonic() + SOURCE_TIMEOUT
            linecache.checkcache()
            self.stacks = [with_source(stack) for stack in stacks]

    @property
    def done(self) -> bool:
        return not self.is_alive() or time.monotonic() > self._late_at


class StackTaker:
    """Takes stacks for requests in the control folder, and for node 0 before it stops a hung run."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._folder = os.path.realpath(os.path.join(spec.dir, "stacks"))
        self._looked_at = 0.0
        self._taking: Taking | None = None
        self.written = False  # whether the stacks that node 0 requested are in the journal

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """Return `env` changed so that the ranks can answer, or unchanged if that is impossible."""
        if os.pathsep in self._folder:
            return env
        try:
            source = own_file("sitecustomize.py")
            os.makedirs(self._folder, exist_ok=True)
            with open(os.path.join(self._folder, "sitecustomize.py"), "wb") as file:
                file.write(source)
        except OSError:
            return env
        paths = [self._folder, env.get("PYTHONPATH", "")]
        return dict(env, PYTHONPATH=os.pathsep.join(filter(None, paths)))

    def turn(self, ranks: Iterable[Rank], phase: str, wanted: bool) -> list[Stack] | None:
        """Answer requests. Return the stacks once, if node 0 wants them."""
        self.written = self.written and wanted
        if self._taking is None:
            requests = self._new_requests()
            if requests or (wanted and not self.written):
                self._taking = Taking(ranks, self._folder, requests)
                with contextlib.suppress(RuntimeError):  # the job has used up the process limit
                    self._taking.start()
        if self._taking is None or not self._taking.done:
            return None
        taken, self._taking = self._taking, None
        self.written = wanted
        if taken.stacks is None:
            return None
        for _, request in taken.requests:
            self._answer(request, phase, taken.stacks)
        return taken.stacks if wanted else None

    def _new_requests(self) -> list[tuple[str, str]]:
        """Return new requests. Listing the folder makes NFS ask its server for other hosts' files."""
        found: list[tuple[str, str]] = []
        if time.monotonic() - self._looked_at < LOOK:
            return found
        self._looked_at = time.monotonic()
        with contextlib.suppress(OSError):  # the request was withdrawn, or the folder is gone
            for name in os.listdir(self._spec.dir):
                if name.startswith("ask-") and name.count("-") == 2:
                    os.unlink(os.path.join(self._spec.dir, name))
                    _, kind, request = name.split("-")
                    found.append((kind, request))
        return found

    def _answer(self, request: str, phase: str, stacks: list[Stack]) -> None:
        answer = StackAnswer(self._spec.attempt, self._spec.node_rank, phase, tuple(stacks))
        path = os.path.join(self._spec.dir, "stacks-%s.json" % request)
        with contextlib.suppress(OSError):  # a full disk: the request times out
            publish(path, json.dumps(asdict(answer)))


def python_of(pid: int, folder: str) -> int:
    """Return the process that can answer: the rank, or the Python that its shell script started."""
    found = (p for p in [pid, *descendants(pid)] if os.path.exists(os.path.join(folder, str(p))))
    return next(found, pid)


def handles(pid: int, number: int, field: str) -> bool:
    """Return whether a signal is in a set of /proc/PID/status: SigCgt are caught, SigBlk blocked."""
    with open("/proc/%d/status" % pid) as file:
        sets = [line.split()[1] for line in file if line.startswith(field)]
    return bool(int(sets[0], 16) >> (number - 1) & 1)


def has_open(pid: int, path: str) -> bool:
    """Return whether the process has the file open.

    A script may close all descriptors, and the stack would be written to whatever it opened since.
    """
    return path in map(os.path.realpath, glob.glob("/proc/%d/fd/*" % pid))


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread with tgkill, whose number depends on the architecture."""
    call = {"x86_64": 234, "aarch64": 131, "ppc64le": 250, "riscv64": 131, "s390x": 241}
    machine = os.uname().machine
    if machine in call:
        ctypes.CDLL(None).syscall(call[machine], pid, pid, number)
    else:
        os.kill(pid, number)


def parse(text: str) -> list[Thread]:
    """Parse faulthandler's output. The main thread is named "main", others by their ids."""
    found: list[tuple[str, list[Frame]]] = []
    for line in text.split("\n"):
        head, frame = HEAD.match(line), FRAME.match(line)
        if head:
            other = head[1] == "Thread"  # the signal went to the main thread
            found.append(((head[2] or "") + (head[3] or "") if other else "main", []))
        elif frame and found:
            found[-1][1].insert(0, Frame(frame[1], int(frame[2]), frame[3]))
    return [Thread(name, tuple(frames)) for name, frames in found]


def with_source(stack: Stack) -> Stack:
    """Add the source lines to the frames."""

    def read(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        return tuple(replace(f, text=source_line(stack.pid, f.file, f.line)) for f in frames)

    threads = tuple(replace(thread, frames=read(thread.frames)) for thread in stack.threads)
    return replace(stack, frames=read(stack.frames), threads=threads)


def source_line(pid: int, file: str, number: int) -> str:
    if file.startswith("<"):
        return ""
    path = os.path.join("/proc/%d/cwd" % pid, file)
    return linecache.getline(path, number).strip()[:200]


def own_file(name: str) -> bytes:
    """Return a file in this folder, which may be inside a zip."""
    loader: Any = __spec__.loader
    content: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), name))
    return content
