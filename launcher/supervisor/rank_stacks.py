"""Take the Python stacks of this node's ranks: on a signal, a rank writes its stack to a file.

A request is a file `ask-<kind>-<id>` in the control folder; the answer is `stacks-<id>.json`.
"""

from __future__ import annotations

import contextlib
import glob
import json
import linecache
import os
import pkgutil
import re
import threading
import time
from dataclasses import asdict, replace
from typing import Iterable

from .events import Frame, Phase, Stack, StackAnswer, Thread
from .journal import publish
from .proc import descendants, proc_stat, read_text
from .ranks import Rank
from .sitecustomize import ALL_THREADS, MAIN_THREAD
from .spec import Spec

LOOK = 0.1  # seconds between checks for requests
QUIET = 0.2  # seconds without growth after which a stack counts as complete
ANSWER_TIMEOUT = 3.0  # seconds for a rank to answer
SOURCE_TIMEOUT = 1.0  # seconds to read the source files
HEAD = re.compile(r"(Stack|Current thread|Thread) ?(0x[0-9a-f]+)?( \[.*\])? \(most recent call")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
STATES = {"T": "stopped", "t": "traced", "Z": "exited", "X": "exited"}


class StackThread(threading.Thread):
    """Takes the ranks' stacks once, in a thread of its own, because reading their source may hang."""

    def __init__(self, ranks: Iterable[Rank], folder: str, requests: list[tuple[str, str]]) -> None:
        super().__init__(daemon=True)
        self.requests = requests  # (kind, id)
        self.stacks: list[Stack] | None = None
        self._ranks, self._folder = list(ranks), folder
        self._late_at = float("inf")

    def run(self) -> None:
        with contextlib.suppress(Exception):  # a failure to take stacks must not end the run
            every = any(kind == "all" for kind, _ in self.requests)
            number = ALL_THREADS if every else MAIN_THREAD
            asked = [ask(rank, self._folder, number) for rank in self._ranks]
            texts = self._answers([stack.pid for stack in asked if stack.note is None])
            stacks = self.stacks = [answered(stack, texts.get(stack.pid)) for stack in asked]
            self._late_at = time.monotonic() + SOURCE_TIMEOUT
            linecache.checkcache()
            self.stacks = [with_source(stack) for stack in stacks]

    def _answers(self, pids: list[int]) -> dict[int, str]:
        """Wait at most ANSWER_TIMEOUT until every file is complete. Return the texts by pid."""
        texts: dict[int, str] = {}
        late_at = time.monotonic() + ANSWER_TIMEOUT
        while time.monotonic() < late_at:
            time.sleep(QUIET)
            before, texts = texts, {p: read_text(os.path.join(self._folder, str(p))) for p in pids}
            if texts == before and all(text.endswith("\n") for text in texts.values()):
                break
        return texts

    @property
    def done(self) -> bool:
        return not self.is_alive() or time.monotonic() > self._late_at


class StackTaker:
    """Takes stacks for requests in the control folder, and for node 0 before it stops a hung run."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._folder = os.path.realpath(os.path.join(spec.dir, "stacks"))
        self._looked_at = 0.0
        self._thread: StackThread | None = None
        self.written = False  # whether the stacks that node 0 requested are in the journal

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """Return `env`, changed so that the ranks can answer requests for stacks.

        Returns it unchanged if the code for that cannot be written to the disk.
        """
        source = pkgutil.get_data(__package__, "sitecustomize.py") or b""
        try:
            os.makedirs(self._folder, exist_ok=True)
            with open(os.path.join(self._folder, "sitecustomize.py"), "wb") as file:
                file.write(source)
        except OSError:
            return env
        paths = [self._folder, env.get("PYTHONPATH", "")]
        return dict(env, PYTHONPATH=os.pathsep.join(filter(None, paths)))

    def turn(self, ranks: Iterable[Rank], phase: Phase, wanted: bool) -> list[Stack] | None:
        """Answer requests for stacks. Return the stacks once if `wanted` by node 0, else None."""
        self.written = self.written and wanted
        if self._thread is None:
            requests = self._new_requests()
            if requests or (wanted and not self.written):
                self._thread = StackThread(ranks, self._folder, requests)
                with contextlib.suppress(RuntimeError):  # the job has used up the process limit
                    self._thread.start()
        if self._thread is None or not self._thread.done:
            return None
        thread, self._thread = self._thread, None
        self.written = wanted
        if thread.stacks is None:
            return None
        for _, request in thread.requests:
            self._answer(request, phase, thread.stacks)
        return thread.stacks if wanted else None

    def _new_requests(self) -> list[tuple[str, str]]:
        """Return new requests and delete their files.

        Listing the folder makes the NFS client see files that other hosts wrote.
        """
        requests: list[tuple[str, str]] = []
        if time.monotonic() - self._looked_at < LOOK:
            return requests
        self._looked_at = time.monotonic()
        with contextlib.suppress(OSError):  # the request was withdrawn, or the folder is gone
            for name in os.listdir(self._spec.dir):
                if name.startswith("ask-") and name.count("-") == 2:
                    os.unlink(os.path.join(self._spec.dir, name))
                    _, kind, request = name.split("-")
                    requests.append((kind, request))
        return requests

    def _answer(self, request: str, phase: Phase, stacks: list[Stack]) -> None:
        path = os.path.join(self._spec.dir, "stacks-%s.json" % request)
        with contextlib.suppress(OSError):  # if the disk is full, the request times out
            publish(path, json.dumps(asdict(StackAnswer(phase, tuple(stacks)))))


def ask(rank: Rank, folder: str, number: int) -> Stack:
    """Signal the rank, or the Python that its shell script started, to write its stack.

    If the signal could do harm, do not send it, and explain why in the result's `note`.
    """
    pids = [rank.pid, *descendants(rank.pid)] if rank.alive else []
    pythons = (pid for pid in pids if os.path.exists(os.path.join(folder, str(pid))))
    pid = next(pythons, rank.pid)
    path = os.path.join(folder, str(pid))
    note = STATES.get(state(pid)) if rank.alive else "exited"
    try:
        if note is None and not (handles(pid, number, "SigCgt") and has_open(pid, path)):
            note = "unprepared"
        if note is None and handles(pid, number, "SigBlk"):
            note = "blocked"
        if note is None:
            os.truncate(path, 0)
            os.kill(pid, number)  # the kernel prefers to run the handler in the main thread
    except OSError:
        note = "unprepared"
    return Stack(rank.rank, rank.local_rank, pid, state(pid), note)


def answered(stack: Stack, text: str | None) -> Stack:
    """Return `stack` with the frames in the rank's answer, `text`; unchanged if it has a note."""
    if stack.note:
        return stack
    threads = parse(text or "")
    return replace(
        stack,
        state=state(stack.pid),
        note=None if text else "silent",
        frames=next((thread.frames for thread in threads if thread.thread == "main"), ()),
        threads=tuple(thread for thread in threads if thread.thread != "main"),
    )


def state(pid: int) -> str:
    return (proc_stat(pid) or ["X"])[0]


def handles(pid: int, number: int, field: str) -> bool:
    """Return whether the process catches a signal (field: SigCgt) or blocks it (SigBlk)."""
    with open("/proc/%d/status" % pid) as file:
        sets = [line.split()[1] for line in file if line.startswith(field)]
    return bool(int(sets[0], 16) >> (number - 1) & 1)


def has_open(pid: int, path: str) -> bool:
    """Return whether the process has the file open.

    A script may have closed all descriptors. The stack would then go to a file that the
    script opened later.
    """
    for name in glob.glob("/proc/%d/fd/*" % pid):
        with contextlib.suppress(OSError):
            if os.readlink(name) == path:
                return True
    return False


def parse(text: str) -> list[Thread]:
    """Parse faulthandler's output; skip other lines.

    Name the main thread "main", and the others by id and name.
    """
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.split("\n"):
        head, frame = HEAD.match(line), FRAME.match(line)
        if head:
            other = head[1] == "Thread"  # the main thread handled the signal
            threads.append(((head[2] or "") + (head[3] or "") if other else "main", []))
        elif frame and threads:
            threads[-1][1].insert(0, Frame(frame[1], int(frame[2]), frame[3]))
    return [Thread(name, tuple(frames)) for name, frames in threads]


def with_source(stack: Stack) -> Stack:
    cwd = "/proc/%d/cwd" % stack.pid

    def line(frame: Frame) -> str:
        return linecache.getline(os.path.join(cwd, frame.file), frame.line).strip()[:200]

    def read(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        return tuple(replace(frame, text=line(frame)) for frame in frames)

    threads = tuple(replace(thread, frames=read(thread.frames)) for thread in stack.threads)
    return replace(stack, frames=read(stack.frames), threads=threads)
