"""Take the Python stacks of this node's ranks: on a signal, a rank writes its stack to a file.

A request is a file `ask-<kind>-<id>` in the control folder; the answer is `stacks-<id>.json`.
Nothing here blocks: the supervisor's loop calls `StackTaker.turn` repeatedly.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import linecache
import os
import re
import threading
import time
from dataclasses import asdict, replace
from typing import Any, Iterable

from .events import Frame, Stack, StackAnswer, Thread
from .proc import descendants, proc_stat
from .ranks import Rank
from .sitecustomize import ALL_THREADS, MAIN_THREAD
from .spec import Spec

LOOK = 0.1  # seconds between checks for requests
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
        self.size = self.read = 0  # bytes in the file; bytes of its complete dumps
        self.text = ""
        self.then: list[int] = []  # signals to send next; one sent during a dump would corrupt it
        self.note = self.ask(kind)
        self.done = bool(self.note)

    def ask(self, kind: str) -> str:
        """Send the signal if that is harmless; otherwise return the reason why not."""
        state = (proc_stat(self.pid) or ["X"])[0]
        if not self.rank.alive or state in STATES:
            return STATES.get(state, "exited")
        numbers = [MAIN_THREAD] + ([ALL_THREADS] if kind == "all" else [])
        try:
            prepared = all(handles(self.pid, number, "SigCgt") for number in numbers)
            if not prepared or not has_open(self.pid, self.path):
                return "unprepared"
            if handles(self.pid, MAIN_THREAD, "SigBlk"):
                return "blocked"
            os.truncate(self.path, 0)
        except OSError:
            return "unprepared"
        signal_main_thread(self.pid, numbers[0])
        self.then = numbers[1:]
        return ""

    def look(self, now: float) -> None:
        if self.done:
            return
        try:
            self._look(now)
        except OSError:
            self.done = True
        if self.done and not self.text:
            self.note = "silent"

    def _look(self, now: float) -> None:
        size = os.stat(self.path).st_size
        if size != self.size:
            self.size, self.grew = size, now
        late = now - self.began > ANSWER_TIMEOUT
        if not late and (size <= self.read or now - self.grew <= QUIET):
            return
        with open(self.path, errors="replace") as file:
            self.text = file.read()
        whole = self.text.endswith("\n")
        if whole and self.then and not late:
            self.read, self.began = size, now
            number = self.then.pop(0)
            if handles(self.pid, number, "SigCgt"):
                signal_main_thread(self.pid, number)
        else:
            self.done = late or whole

    def stack(self) -> Stack:
        threads = parse(self.text)
        main = [thread.frames for thread in threads if thread.thread == "main"]
        return Stack(
            self.rank.rank,
            self.rank.local_rank,
            self.pid,
            (proc_stat(self.pid) or ["X"])[0],
            self.note or None,
            main[0] if main else (),
            tuple(thread for thread in threads if thread.thread != "main"),
        )


class Sources(threading.Thread):
    """Adds source lines to frames, in a thread because the disk may hang."""

    def __init__(self, stacks: list[Stack]) -> None:
        super().__init__(daemon=True)
        self.stacks = stacks
        self._late_at = time.monotonic() + SOURCE_TIMEOUT

    def run(self) -> None:
        linecache.checkcache()
        self.stacks = [
            replace(
                stack,
                frames=with_source(stack.pid, stack.frames),
                threads=tuple(
                    Thread(thread.thread, with_source(stack.pid, thread.frames))
                    for thread in stack.threads
                ),
            )
            for stack in self.stacks
        ]

    @property
    def done(self) -> bool:
        return not self.is_alive() or time.monotonic() > self._late_at


class StackTaker:
    """Takes stacks for requests in the control folder, and for node 0 before it stops a hung run."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._folder = os.path.realpath(os.path.join(spec.dir, "stacks"))
        self._looked_at = 0.0
        self._requests: list[tuple[str, str]] = []  # unanswered (kind, id)
        self._dumps: list[Dump] | None = None  # in progress
        self._sources: Sources | None = None  # the step after the dumps
        self._for_peers = False
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
        """Continue all requests. Return the stacks once, if node 0 wants them.

        Errors are ignored: the user only wants to look at the run.
        """
        self.written = self.written and wanted
        try:
            return self._turn(ranks, phase, wanted)
        except Exception:
            self._requests, self._dumps, self._sources = [], None, None
            self.written = wanted  # nothing is left to wait for
            return None

    def _turn(self, ranks: Iterable[Rank], phase: str, wanted: bool) -> list[Stack] | None:
        now = time.monotonic()
        if now - self._looked_at > LOOK:
            self._looked_at = now
            self._requests += self._new_requests()
        if self._dumps is None and (self._requests or (wanted and not self.written)):
            kind = "all" if any(kind == "all" for kind, _ in self._requests) else "main"
            self._dumps = [Dump(rank, self._folder, kind) for rank in ranks]
            self._for_peers = wanted
        for dump in self._dumps or ():
            dump.look(now)
        if self._dumps is None or not all(dump.done for dump in self._dumps):
            return None
        if self._sources is None:
            self._sources = Sources([dump.stack() for dump in self._dumps])
            self._sources.start()
        if not self._sources.done:
            return None
        return self._finish(self._sources.stacks, phase)

    def _finish(self, stacks: list[Stack], phase: str) -> list[Stack] | None:
        requests, self._requests, self._dumps, self._sources = self._requests, [], None, None
        for _, request in requests:
            self._answer(request, phase, stacks)
        self.written = self.written or self._for_peers
        return stacks if self._for_peers else None

    def _new_requests(self) -> list[tuple[str, str]]:
        """Return new requests. Listing the folder makes NFS ask its server for other hosts' files."""
        found = []
        with contextlib.suppress(OSError):  # the request was withdrawn, or the folder is gone
            for name in os.listdir(self._spec.dir):
                if name.startswith("ask-") and name.count("-") == 2:
                    os.unlink(os.path.join(self._spec.dir, name))
                    _, kind, request = name.split("-")
                    found.append((kind, request))
        return found

    def _answer(self, request: str, phase: str, stacks: list[Stack]) -> None:
        spec = self._spec
        answer = StackAnswer(spec.attempt, spec.node_rank, phase, tuple(stacks))
        scratch = os.path.join(spec.dir, ".stacks-" + request)
        with contextlib.suppress(OSError):  # a full disk: the request times out
            with open(scratch, "w") as file:
                json.dump(asdict(answer), file)
            os.chmod(scratch, 0o644)
            os.rename(scratch, os.path.join(spec.dir, "stacks-%s.json" % request))


def python_of(pid: int, folder: str) -> int:
    """Return the process that can answer: the rank, or the Python that its shell script started."""
    for each in [pid, *descendants(pid)]:
        if os.path.exists(os.path.join(folder, str(each))):
            return each
    return pid


def handles(pid: int, number: int, field: str) -> bool:
    """Return whether a signal is in a set of /proc/PID/status: SigCgt are caught, SigBlk blocked."""
    with open("/proc/%d/status" % pid) as file:
        sets = [line.split()[1] for line in file if line.startswith(field)]
    return bool(int(sets[0], 16) >> (number - 1) & 1)


def has_open(pid: int, path: str) -> bool:
    """Return whether the process has the file open.

    A script may close all descriptors, and the stack would be written to whatever it opened since.
    """
    folder = "/proc/%d/fd" % pid
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.readlink(os.path.join(folder, name)) == path:
                return True
    return False


def signal_main_thread(pid: int, number: int) -> None:
    """Send a signal to the main thread with tgkill, whose number depends on the architecture."""
    call = {"x86_64": 234, "aarch64": 131, "ppc64le": 250, "riscv64": 131, "s390x": 241}
    machine = os.uname().machine
    if machine in call:
        ctypes.CDLL(None, use_errno=True).syscall(call[machine], pid, pid, number)
    else:
        os.kill(pid, number)


def parse(text: str) -> list[Thread]:
    """Parse faulthandler's output. The main thread is named "main", others by their ids."""
    found: list[tuple[str, list[Frame]]] = []
    for line in text.split("\n"):
        head, frame = HEAD.match(line), FRAME.match(line)
        if head:
            name = {"Stack": "main", "Current thread": ""}.get(head[1])
            found.append(((head[2] or "") + (head[3] or "") if name is None else name, []))
        elif frame and found:
            found[-1][1].insert(0, Frame(frame[1], int(frame[2]), frame[3]))
    # "": the main thread again
    return [Thread(name, tuple(frames)) for name, frames in found if name]


def with_source(pid: int, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    return tuple(replace(f, text=source_line(pid, f.file, f.line)) for f in frames)


def source_line(pid: int, file: str, number: int) -> str:
    if file.startswith("<"):
        return ""
    path = file if os.path.isabs(file) else os.path.join("/proc/%d/cwd" % pid, file)
    return linecache.getline(path, number).strip()[:200]


def own_file(name: str) -> bytes:
    """Return a file in this folder, which may be inside a zip."""
    loader: Any = __spec__.loader
    content: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), name))
    return content
