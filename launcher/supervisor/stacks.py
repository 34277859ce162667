"""Where the ranks of this node stand: asked of them by a signal, told by files.

A file `ask-<kind>-<word>` in the control folder asks; `stacks-<word>.json` is the answer. Nothing here
waits: `turn` is called again and again by the supervisor's loop.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import time
from typing import Any, Dict, Iterable, List

from .proc import descendants, proc_stat
from .ranks import Rank
from .sitecustomize import ALL_THREADS, MAIN_THREAD

LOOK = 0.1  # seconds between two looks for somebody who asks
QUIET = 0.3  # seconds after which a stack that grows no more is whole
PATIENCE = 3.0  # seconds for a rank to answer
SOURCE_PATIENCE = 1.0  # seconds for the files of the source to be read
HEAD = re.compile(r"(Stack|Current thread|Thread) ?(0x[0-9a-f]+)?( \[.*\])? \(most recent call")
FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
STATES = {"T": "stopped", "t": "traced", "Z": "exited", "X": "exited"}

Told = List[Dict[str, Any]]  # at runtime, where Python 3.8 knows no list[...]


class Dump:
    """One rank, asked once. `note` says why there is no stack."""

    def __init__(self, rank: Rank, folder: str, kind: str) -> None:
        self.rank = rank
        self.pid = python_of(rank.pid, folder) if rank.alive else rank.pid
        self.path = os.path.join(folder, str(self.pid))
        self.began = self.grew = time.monotonic()
        self.size = self.read = 0  # bytes that are there, and of the dumps that are whole
        self.text = ""
        self.then: list[int] = []  # a signal in the middle of a dump would tear it
        self.note = self.ask(kind)
        self.done = bool(self.note)

    def ask(self, kind: str) -> str:
        """Sends the signal where it does no harm; else says why not."""
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
            size = os.stat(self.path).st_size
            if size != self.size:
                self.size, self.grew = size, now
            late = now - self.began > PATIENCE
            if late or (size > self.read and now - self.grew > QUIET):
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
        except OSError:
            self.done = True
        if self.done and not self.text:
            self.note = "silent"

    def told(self) -> dict[str, Any]:
        threads = parse(self.text)
        main = [thread["frames"] for thread in threads if thread["thread"] == "main"]
        return {
            "rank": self.rank.rank,
            "local_rank": self.rank.local_rank,
            "pid": self.pid,
            "state": (proc_stat(self.pid) or ["X"])[0],
            "note": self.note or None,
            "frames": main[0] if main else [],
            "threads": [thread for thread in threads if thread["thread"] != "main"],
        }


class Sources(threading.Thread):
    """Puts each frame's line of source beside it. A disk that hangs, hangs only this thread."""

    def __init__(self, found: Told) -> None:
        super().__init__(daemon=True)
        self.found = found
        self.late_at = time.monotonic() + SOURCE_PATIENCE

    def run(self) -> None:
        import linecache  # what few runs need loads when they need it: each host waits for our start

        linecache.checkcache()
        for rank in self.found:
            for frames in [rank["frames"], *(thread["frames"] for thread in rank["threads"])]:
                for frame in frames:
                    frame["text"] = source_line(rank["pid"], frame["file"], frame["line"])

    @property
    def done(self) -> bool:
        return not self.is_alive() or time.monotonic() > self.late_at


class Stacks:
    """The ranks' stacks for those who ask by a file, and for the gang before it ends as hung."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._control: str = spec["dir"]
        self._folder = os.path.realpath(os.path.join(self._control, "stacks"))
        self._looked_at = 0.0
        self._asked: list[tuple[str, str]] = []  # (kind, word) of those who wait
        self._dumps: list[Dump] | None = None  # under way
        self._sources: Sources | None = None  # then these
        self._for_gang = False
        self.told = False  # to the gang, since it wanted them

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        """`env` so that the ranks will answer; as it is when that cannot be had."""
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

    def turn(self, ranks: Iterable[Rank], phase: str, wanted: bool) -> Told | None:
        """One look. Returns the stacks, once, when the gang wants them. Whatever goes wrong here must
        not end a run that somebody only looks at."""
        self.told = self.told and wanted
        try:
            return self._turn(ranks, phase, wanted)
        except Exception:
            self._asked, self._dumps, self._sources = [], None, None
            self.told = wanted  # there is no more to wait for
            return None

    def _turn(self, ranks: Iterable[Rank], phase: str, wanted: bool) -> Told | None:
        now = time.monotonic()
        if now - self._looked_at > LOOK:
            self._looked_at = now
            self._asked += self._questions()
        if self._dumps is None and (self._asked or (wanted and not self.told)):
            kind = "all" if any(kind == "all" for kind, _ in self._asked) else "main"
            self._dumps = [Dump(rank, self._folder, kind) for rank in ranks]
            self._for_gang = wanted
        for dump in self._dumps or ():
            dump.look(now)
        if self._dumps is None or not all(dump.done for dump in self._dumps):
            return None
        if self._sources is None:
            self._sources = Sources([dump.told() for dump in self._dumps])
            self._sources.start()
        if not self._sources.done:
            return None
        return self._tell(self._sources.found, phase)

    def _tell(self, found: Told, phase: str) -> Told | None:
        asked, self._asked, self._dumps, self._sources = self._asked, [], None, None
        for _, word in asked:
            self._answer(word, phase, found)
        self.told = self.told or self._for_gang
        return found if self._for_gang else None

    def _questions(self) -> list[tuple[str, str]]:
        found = []
        try:
            for name in os.listdir(self._control):
                if name.startswith("ask-") and name.count("-") == 2:
                    os.unlink(os.path.join(self._control, name))
                    _, kind, word = name.split("-")
                    found.append((kind, word))
        except OSError:
            pass  # whoever asked has gone, or the folder
        return found

    def _answer(self, word: str, phase: str, found: Told) -> None:
        told = {key: self._spec[key] for key in ("attempt", "node_rank", "host")}
        document = dict(told, v=1, phase=phase, expected=self._spec["nproc_per_node"], ranks=found)
        scratch = os.path.join(self._control, ".stacks-" + word)
        try:
            with open(scratch, "w") as file:
                json.dump(document, file)
            os.chmod(scratch, 0o644)
            os.rename(scratch, os.path.join(self._control, "stacks-%s.json" % word))
        except OSError:
            pass  # a full disk: whoever asked hears that nothing came


def python_of(pid: int, folder: str) -> int:
    """The process that can tell: the rank itself, or the Python that a rank's shell script started."""
    if os.path.exists(os.path.join(folder, str(pid))):
        return pid
    below = descendants(pid)
    return next((p for p in below if os.path.exists(os.path.join(folder, str(p)))), pid)


def handles(pid: int, number: int, field: str) -> bool:
    """Whether a signal is in a set of /proc/PID/status: SigCgt has a handler, SigBlk waits."""
    with open("/proc/%d/status" % pid) as file:
        sets = [line.split()[1] for line in file if line.startswith(field)]
    return bool(int(sets[0], 16) >> (number - 1) & 1)


def has_open(pid: int, path: str) -> bool:
    """A script may close all descriptors: then what it opened since would be written into."""
    folder = "/proc/%d/fd" % pid
    for name in os.listdir(folder):
        try:
            if os.readlink(os.path.join(folder, name)) == path:
                return True
        except OSError:
            continue
    return False


def signal_main_thread(pid: int, number: int) -> None:
    """tgkill, so that it is the main thread that tells. The number differs by architecture."""
    call = {"x86_64": 234, "aarch64": 131, "ppc64le": 250, "riscv64": 131, "s390x": 241}
    machine = os.uname().machine
    if machine in call:
        ctypes.CDLL(None, use_errno=True).syscall(call[machine], pid, pid, number)
    else:
        os.kill(pid, number)


def parse(text: str) -> Told:
    """What faulthandler wrote: [{"thread": "main" or an id, "frames": [...]}], the innermost last."""
    found: Told = []
    for line in text.split("\n"):
        head, frame = HEAD.match(line), FRAME.match(line)
        if head:
            name = "main" if head[1] == "Stack" else (head[2] or "") + (head[3] or "")
            found.append({"thread": name, "current": head[1] == "Current thread", "frames": []})
        elif frame and found:
            fields = {"file": frame[1], "line": int(frame[2]), "function": frame[3], "text": ""}
            found[-1]["frames"].insert(0, fields)
    return [
        {"thread": thread["thread"], "frames": thread["frames"]}
        for thread in found
        if not thread["current"]  # the main thread, which has told already
    ]


def own_file(name: str) -> bytes:
    """A file beside this one, be it in a folder or in a zip."""
    loader: Any = __spec__.loader
    content: bytes = loader.get_data(os.path.join(os.path.dirname(__file__), name))
    return content


def source_line(pid: int, file: str, number: int) -> str:
    import linecache

    if file.startswith("<"):
        return ""
    path = file if os.path.isabs(file) else os.path.join("/proc/%d/cwd" % pid, file)
    return linecache.getline(path, number).strip()[:200]
