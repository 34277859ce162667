"""The supervisor of one node: starts torchrun, keeps its journal, and ends with its gang.

Put into the container by the launcher and run as `python3 supervisor.py spec.json`. Python's standard
library only, Python >= 3.8, Linux. Everything happens in one loop of one thread (`Supervisor.run`).

A journal record is one line, TIME<TAB>WHO<TAB>TEXT: unix seconds; a global rank, `-` for torchrun and
the supervisor, or `!` for an event, whose text is a JSON object with a "kind". `end` is the last record.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

Reason = Dict[str, Any]

TICK = 0.02  # seconds between looks at the logs while they grow
IDLE_TICK = 0.08  # the same while they do not
READ_SIZE = 1 << 20  # bytes taken from one log at a time
LONGEST_LINE = 16 << 20  # bytes; what is longer is cut, so that memory stays bounded
LAST_BYTES = 8192  # of a stream's end, kept as evidence
BALLAST = 1 << 20  # bytes of disk held back, so that a full disk leaves room for the last events
STOPPED_TOO_LONG = 8.0  # seconds that a rank may be stopped by a signal
TORCHRUN_LAST_WORDS = 2.0  # seconds for torchrun to end once its ranks are gone
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


# --- what the kernel says of processes ----------------------------------------------------------


def proc_stat(pid: int) -> List[str]:
    """/proc/PID/stat after the command name: state, parent, ...; [] when the process is gone."""
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def proc_environ(pid: int) -> Dict[str, str]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = file.read().decode(errors="surrogateescape").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def children(pid: int) -> List[int]:
    found = []  # type: List[int]
    paths = glob.glob("/proc/%d/task/*/children" % pid)
    if not paths:  # a kernel without CONFIG_PROC_CHILDREN
        return [p for p, parent in parents().items() if parent == pid]
    for path in paths:
        try:
            with open(path) as file:
                found += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return found


def parents() -> Dict[int, int]:
    """pid -> parent's pid of every process that can be seen."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    stats = ((pid, proc_stat(pid)) for pid in pids)
    return {pid: int(stat[1]) for pid, stat in stats if stat}


def descendants(root: int) -> List[int]:
    by_parent = {}  # type: Dict[int, List[int]]
    for pid, parent in parents().items():
        by_parent.setdefault(parent, []).append(pid)
    found = []  # type: List[int]
    waiting = [root]
    while waiting:
        below = by_parent.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def pidfd(pid: int) -> Optional[int]:
    """A descriptor that is readable once the process has exited; None on a kernel before 5.3."""
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        fd = ctypes.CDLL(None, use_errno=True).syscall(434, pid, 0)
        return fd if fd >= 0 else None
    except OSError:
        return None


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans() -> None:
    """Ranks whose torchrun dies become ours, to be ended and reaped."""
    prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def die_with_parent() -> None:
    prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a killed supervisor leaves no torchrun running


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # gone


# --- the journal ---------------------------------------------------------------------------------


class Journal:
    """Append-only, and written through at once. Its lines are copied to stdout for the engine's log."""

    def __init__(self, folder: str, host: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.path.join(folder, "journal"), flags, 0o644)
        self._ballast = os.path.join(folder, "ballast")
        self._host = host.encode()
        self._unsaid = b""  # of the copy on stdout
        self.dropped = 0  # bytes of output that a full disk did not take
        self._hold_ballast()
        os.set_blocking(1, False)  # an engine that reads no more must not stop the run

    def lines(self, who: bytes, data: bytes) -> None:
        """`data`: whole lines, each with its newline."""
        head = b"%.6f\t%b\t" % (time.time(), who)
        if not self._append(head + data[:-1].replace(b"\n", b"\n" + head) + b"\n"):
            self.dropped += len(data)
        label = b"[%b] " % (self._host if who == b"-" else self._host + b":" + who)
        self._say(label + data[:-1].replace(b"\n", b"\n" + label) + b"\n")

    def say(self, text: str) -> None:
        """The supervisor's own line in the log."""
        self.lines(b"-", b"ddpctl: %b\n" % text.encode(errors="replace"))

    def event(self, kind: str, **fields: Any) -> None:
        fields["kind"] = kind
        record = b"%.6f\t!\t%b\n" % (time.time(), json.dumps(fields).encode())
        if not self._append(record):
            self._drop_ballast()
            self._append(record)

    def close(self) -> None:
        self._drop_ballast()
        os.close(self._file)

    def _append(self, data: bytes) -> bool:
        start = os.fstat(self._file).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if len(view) != len(data):  # half a record would swallow the next one
                os.ftruncate(self._file, start)
            return False
        return True

    def _say(self, data: bytes) -> None:
        if len(self._unsaid) > READ_SIZE:
            return  # nobody reads; the journal has it
        self._unsaid += data
        try:
            while self._unsaid:
                self._unsaid = self._unsaid[os.write(1, self._unsaid[:65536]) :]
        except OSError:
            pass

    def _hold_ballast(self) -> None:
        try:
            with open(self._ballast, "wb") as file:
                file.write(b"\0" * BALLAST)
        except OSError:
            pass

    def _drop_ballast(self) -> None:
        try:
            os.unlink(self._ballast)
        except OSError:
            pass


# --- what the ranks write ------------------------------------------------------------------------


class Tail:
    """One growing file, handed on in whole lines."""

    def __init__(self, path: str, who: bytes, journal: Journal) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._who, self._journal = who, journal
        self._partial = []  # type: List[bytes]
        self.last = b""  # the end of what was written

    def read(self) -> int:
        """Takes what is there now, at most READ_SIZE. Returns the number of bytes."""
        data = os.read(self._file, READ_SIZE)
        head, newline, rest = data.rpartition(b"\n")
        if newline:
            whole = b"".join(self._partial) + head + newline
            self._partial = []
            self._hand_on(whole)
        if rest:
            self._partial.append(rest)
            if len(data) == READ_SIZE and sum(map(len, self._partial)) > LONGEST_LINE:
                self.finish()
        return len(data)

    def finish(self) -> None:
        """A last line without its newline is a line too."""
        if self._partial:
            whole = b"".join(self._partial) + b"\n"
            self._partial = []
            self._hand_on(whole)

    def _hand_on(self, whole: bytes) -> None:
        self._journal.lines(self._who, whole)
        self.last = (self.last + whole[-LAST_BYTES:])[-LAST_BYTES:]


class RankLogs:
    """The files that torchrun redirects its ranks to: <folder>/*/attempt_0/<local_rank>/std*.log."""

    def __init__(self, folder: str, first_rank: int, nproc: int, journal: Journal) -> None:
        self.folder = folder
        self._first, self._nproc, self._journal = first_rank, nproc, journal
        self._tails = {}  # type: Dict[Tuple[int, str], Tail]

    def poll(self) -> int:
        """Copies what is new. Returns the number of bytes; 0 when nothing was."""
        if len(self._tails) < 2 * self._nproc:
            self._find()
        return sum(tail.read() for tail in self._tails.values())

    def drain(self) -> None:
        while self.poll():
            pass

    def finish(self) -> None:
        self.drain()
        for tail in self._tails.values():
            tail.finish()

    def last_lines(self, local_rank: int, count: int = 40) -> List[str]:
        """The end of the rank's stderr, or of its stdout when stderr is empty."""
        for stream in ("stderr", "stdout"):
            tail = self._tails.get((local_rank, stream))
            if tail and tail.last:
                return tail.last.decode(errors="replace").rstrip("\n").split("\n")[-count:]
        return []

    def error(self, local_rank: int) -> Optional[Dict[str, Any]]:
        """What @record wrote about the rank's exception: {message, traceback}, or None."""
        for path in glob.glob(os.path.join(self.folder, "*/attempt_*/%d/error.json" % local_rank)):
            try:
                with open(path) as file:
                    message = json.load(file)["message"]
            except (OSError, ValueError, KeyError):
                continue
            if isinstance(message, str):
                return {"message": message, "traceback": ""}
            info = message.get("extraInfo", {})
            return {"message": message.get("message"), "traceback": info.get("py_callstack", "")}
        return None

    def _find(self) -> None:
        for local_rank in range(self._nproc):
            for stream in ("stdout", "stderr"):
                if (local_rank, stream) in self._tails:
                    continue
                name = "*/attempt_*/%d/%s.log" % (local_rank, stream)
                for path in glob.glob(os.path.join(self.folder, name)):
                    who = b"%d" % (self._first + local_rank)
                    self._tails[local_rank, stream] = Tail(path, who, self._journal)


# --- torchrun and its ranks ----------------------------------------------------------------------


class Torchrun:
    """The child process. Its own output goes into the journal as lines of nobody's."""

    def __init__(self, spec: Dict[str, Any], journal: Journal) -> None:
        self._spec, self._journal = spec, journal
        self._process = None  # type: Optional[subprocess.Popen[bytes]]
        self._partial = {}  # type: Dict[int, bytes]
        self.last = b""  # the end of what it said

    def start(self, log_folder: str) -> None:
        """Raises OSError when it cannot be started."""
        spec = self._spec
        env = dict(os.environ, PET_REDIRECTS="3", PET_LOG_DIR=log_folder)
        env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(max(1, int(patience(spec["stop_timeout"])) - 1))
        env.setdefault("PYTHONFAULTHANDLER", "1")  # so that a crash says where
        self._process = subprocess.Popen(
            executable(spec["argv"]),
            cwd=spec.get("cwd"),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        for pipe in self.pipes():
            os.set_blocking(pipe, False)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def pipes(self) -> List[int]:
        assert self._process and self._process.stdout and self._process.stderr
        return [self._process.stdout.fileno(), self._process.stderr.fileno()]

    def exit_code(self) -> Optional[int]:
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

    def failures(self) -> List[Dict[str, Any]]:
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
        self.last = (self.last + whole)[-8 * LAST_BYTES :]


def executable(argv: List[str]) -> List[str]:
    """`torchrun` beside this Python, on PATH, or as a module of this Python."""
    if argv[0] != "torchrun":
        return argv
    beside = os.path.join(os.path.dirname(sys.executable), "torchrun")
    found = beside if os.access(beside, os.X_OK) else shutil.which("torchrun")
    return (
        [found, *argv[1:]] if found else [sys.executable, "-m", "torch.distributed.run", *argv[1:]]
    )


def patience(stop_timeout: float) -> float:
    """Seconds from SIGTERM to our SIGKILL: the engine's own comes at stop_timeout, and ends us too."""
    return max(0.5 * stop_timeout, stop_timeout - 3.0)


class Rank:
    """One process of torchrun's."""

    def __init__(self, pid: int, rank: int, local_rank: int) -> None:
        self.pid, self.rank, self.local_rank = pid, rank, local_rank
        self.fd = pidfd(pid)
        self.exited = None  # type: Optional[float]
        self.exit_code = None  # type: Optional[int]  # negative: the signal
        self.stopped_since = None  # type: Optional[float]

    @property
    def alive(self) -> bool:
        return self.exited is None

    def look(self) -> bool:
        """True when it has exited since the last look. The code is there until torchrun reaps it."""
        stat = proc_stat(self.pid)
        if stat and stat[0] not in "ZX":
            return False
        self.exited = time.time()
        if stat and len(stat) > 49:
            status = int(stat[49])
            self.exit_code = -(status & 127) if status & 127 else status >> 8
        if self.fd is not None:
            os.close(self.fd)
        return True

    def stopped_for(self, now: float) -> float:
        """Seconds that SIGSTOP has held it."""
        stat = proc_stat(self.pid)
        if not stat or stat[0] != "T":
            self.stopped_since = None
            return 0.0
        self.stopped_since = self.stopped_since or now
        return now - self.stopped_since


class Ranks:
    """The ranks of this node, found as torchrun's children with RANK in their environment."""

    def __init__(self, nproc: int) -> None:
        self._nproc = nproc
        self.by_local_rank = {}  # type: Dict[int, Rank]

    def find(self, torchrun_pid: int) -> List[Rank]:
        """Those that were not known yet."""
        if len(self.by_local_rank) == self._nproc:
            return []
        found = []
        known = {rank.pid for rank in self.by_local_rank.values()}
        for pid in children(torchrun_pid):
            if pid in known:
                continue
            env = proc_environ(pid)
            if "RANK" in env and "LOCAL_RANK" in env:
                rank = Rank(pid, int(env["RANK"]), int(env["LOCAL_RANK"]))
                self.by_local_rank[rank.local_rank] = rank
                found.append(rank)
        return found

    def alive(self) -> List[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.alive]

    def failed(self) -> bool:
        return any(rank.exit_code for rank in self.by_local_rank.values())


# --- the story -----------------------------------------------------------------------------------


class Supervisor:
    def __init__(self, spec: Dict[str, Any]) -> None:
        self.spec = spec
        self.journal = Journal(spec["dir"], spec["host"])
        first = spec["node_rank"] * spec["nproc_per_node"]
        ranks_folder = os.path.join(spec["dir"], "ranks")
        self.logs = RankLogs(ranks_folder, first, spec["nproc_per_node"], self.journal)
        self.torchrun = Torchrun(spec, self.journal)
        self.ranks = Ranks(spec["nproc_per_node"])
        self.selector = selectors.DefaultSelector()
        self.signals = listen_for_signals()
        self.reason = None  # type: Optional[Reason]  # why this node stops
        self.kill_at = None  # type: Optional[float]  # time.monotonic() of SIGKILL
        self.asked_to_stop = False

    def run(self) -> int:
        adopt_orphans()
        self.journal.event("start", pid=os.getpid(), argv=self.spec["argv"], host=self.spec["host"])
        try:
            self.torchrun.start(self.logs.folder)
        except OSError as error:
            return self.could_not_start(error)
        self.listen()
        quiet = TICK
        while self.torchrun.exit_code() is None:
            self.hear(quiet)
            quiet = TICK if self.logs.poll() else IDLE_TICK
            self.meet_ranks()
            self.see_ranks()
            self.press_on()
        return self.conclude()

    # --- what happens ---

    def listen(self) -> None:
        self.selector.register(self.signals, selectors.EVENT_READ, self.hear_signals)
        for pipe in self.torchrun.pipes():
            self.selector.register(pipe, selectors.EVENT_READ, self.hear_torchrun)

    def hear(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            key.data(key.fileobj)

    def hear_torchrun(self, pipe: int) -> None:
        if not self.torchrun.read(pipe):
            self.selector.unregister(pipe)

    def hear_signals(self, source: socket.socket) -> None:
        for number in source.recv(64):
            if number in SIGNALS:
                self.asked_to_stop = True
                name = signal.Signals(number).name
                kind = "cancelled" if self.cancelled() else "signal"
                self.stop(self.cause(kind, "%s was sent to the supervisor" % name), number)

    def hear_exit(self, fd: int) -> None:
        self.selector.unregister(fd)
        self.see_ranks()

    def meet_ranks(self) -> None:
        found = self.ranks.find(self.torchrun.pid)
        for rank in found:
            if rank.fd is not None:
                self.selector.register(rank.fd, selectors.EVENT_READ, self.hear_exit)
        if found:
            known = self.ranks.by_local_rank.values()
            self.journal.event("ranks", pids={str(rank.rank): rank.pid for rank in known})

    def see_ranks(self) -> None:
        now = time.monotonic()
        for rank in self.ranks.alive():
            if rank.look():
                self.rank_exited(rank)
            elif rank.stopped_for(now) > STOPPED_TOO_LONG:
                message = "stopped by a signal (SIGSTOP) for more than %d s" % STOPPED_TOO_LONG
                self.stop(self.cause("stopped", message, rank))

    def rank_exited(self, rank: Rank) -> None:
        self.logs.drain()
        if rank.exit_code is not None:
            self.tell_exit(rank)
        if rank.exit_code and self.reason is None:
            self.stop(self.cause("rank-failed", how_it_ended(rank.exit_code), rank))

    def tell_exit(self, rank: Rank) -> None:
        error = self.logs.error(rank.local_rank)
        code = rank.exit_code
        self.journal.event(
            "rank_exit",
            rank=rank.rank,
            local_rank=rank.local_rank,
            pid=rank.pid,
            exit_code=code,
            signal=signal_name(code),
            time=rank.exited,
            stopping=self.reason is not None,  # then it may be our own doing
            message=error["message"] if error else None,
            traceback=error["traceback"] if error else None,
            last_lines=self.logs.last_lines(rank.local_rank) if code else [],
        )

    # --- stopping ---

    def cause(self, kind: str, message: str, rank: Optional[Rank] = None) -> Reason:
        return {
            "kind": kind,
            "message": message,
            "node_rank": self.spec["node_rank"],
            "host": self.spec["host"],
            "rank": rank.rank if rank else None,
            "local_rank": rank.local_rank if rank else None,
            "exit_code": rank.exit_code if rank else None,
            "signal": signal_name(rank.exit_code) if rank else None,
            "time": rank.exited if rank and rank.exited else time.time(),
        }

    def stop(self, reason: Reason, number: int = signal.SIGTERM) -> None:
        """SIGTERM now, SIGKILL after the time that is given for this kind of reason."""
        if self.reason is not None:
            return
        self.reason = reason
        self.journal.event("stopping", reason=reason)
        stop_timeout = self.spec["stop_timeout"]
        grace = patience(stop_timeout)
        if reason["kind"] not in ("cancelled", "signal"):
            grace = min(grace, self.spec.get("failure_grace", 3.0))
        self.kill_at = time.monotonic() + grace
        if (
            not self.ranks.failed()
        ):  # else torchrun is ending them, and a signal would cut its report
            send(self.torchrun.pid, number)

    def press_on(self) -> None:
        """The end of patience: ranks first, so that torchrun can still tell of them."""
        now = time.monotonic()
        if self.kill_at is None or now < self.kill_at:
            return
        late = now > self.kill_at + TORCHRUN_LAST_WORDS
        for pid in descendants(os.getpid()):
            if late or pid != self.torchrun.pid:
                send(pid, signal.SIGKILL)

    def cancelled(self) -> bool:
        path = self.spec.get("cancel_file") or os.path.join(self.spec["dir"], "cancelled")
        return os.path.exists(path)

    # --- the end ---

    def could_not_start(self, error: OSError) -> int:
        reason = self.cause("start", "could not start torchrun: %s" % error)
        self.journal.say(reason["message"])
        self.journal.event("end", state="failed", exit_code=127, reason=reason)
        return 127

    def conclude(self) -> int:
        code = self.torchrun.exit_code()
        left = end_everything(self.torchrun.pid)
        self.meet_ends()
        self.logs.finish()
        self.torchrun.finish()
        if code and self.reason is None:
            self.reason = self.cause("torchrun", "torchrun %s" % how_it_ended(code))
        state = self.state(code)
        if left:
            self.journal.say("these processes could not be ended: %s" % left)
        self.journal.event("end", state=state, exit_code=code, reason=self.reason, left=left)
        self.journal.close()
        return {"succeeded": 0, "stopped": 143, "cancelled": 143}.get(state, 1)

    def meet_ends(self) -> None:
        """Exits that went by too fast to be read from the kernel: torchrun's summary has them."""
        told = {failure["local_rank"]: failure for failure in self.torchrun.failures()}
        for rank in self.ranks.by_local_rank.values():
            unread = rank.alive or rank.exit_code is None
            if rank.alive:
                rank.look()
            if unread:
                rank.exit_code = told.get(rank.local_rank, {}).get("exit_code", rank.exit_code)
                self.tell_exit(rank)

    def state(self, code: Optional[int]) -> str:
        if self.cancelled() and self.asked_to_stop:
            return "cancelled"
        if self.reason is None:
            return "succeeded" if code == 0 else "failed"
        kind, here = self.reason["kind"], self.reason["node_rank"] == self.spec["node_rank"]
        if kind in ("cancelled", "hung"):
            return str(kind)
        return "failed" if here and kind != "signal" else "stopped"


def signal_name(code: Optional[int]) -> Optional[str]:
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return "signal %d" % -code


def how_it_ended(code: int) -> str:
    name = signal_name(code)
    return "was killed by %s" % name if name else "exited with code %d" % code


def listen_for_signals() -> socket.socket:
    """A socket from which the numbers of signals can be read."""
    hear, tell = socket.socketpair()
    hear.setblocking(False)
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.detach(), warn_on_full_buffer=False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    return hear


def end_everything(torchrun_pid: int, patience: float = 10.0) -> List[int]:
    """SIGKILL for all that is left below us. Returns what even that did not end."""
    deadline = time.monotonic() + patience
    while True:
        left = [pid for pid in descendants(os.getpid()) if pid != torchrun_pid]
        for pid in left:
            send(pid, signal.SIGKILL)
        for pid in left:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # somebody else's child, or reaped
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def main() -> int:
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    return Supervisor(spec).run()


if __name__ == "__main__":
    sys.exit(main())
