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
import hashlib
import hmac
import ipaddress
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
from typing import Any, Dict, List, Optional, Tuple

Reason = Dict[str, Any]

TICK = 0.02  # seconds between looks at the logs while they grow
IDLE_TICK = 0.08  # the same while they do not
READ_SIZE = 1 << 20  # bytes taken from one log at a time
LONGEST_LINE = 16 << 20  # bytes; what is longer is cut, so that memory stays bounded
LAST_BYTES = 32768  # of a stream's end, kept as evidence
BALLAST = 1 << 20  # bytes of disk held back, so that a full disk leaves room for the last events
BEAT = 1.0  # seconds between two signs of life to a peer
SILENCE = 8.0  # seconds without one, or of a rank stopped by a signal, and it is lost
RECONNECT = 1.5  # seconds for a connection that broke to come back
SETTLE = 3.0  # seconds to wait, once this node has stopped, for the others' story
JOIN_GRACE = 10.0  # seconds from the start that node 0 stays to tell late nodes why all is over
TORCHRUN_LAST_WORDS = 1.5  # seconds for torchrun to end once its ranks are gone
TRACEBACK = re.compile(r"(\[rank\d+\]: )?Traceback \(most recent call last\)")
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
        os.makedirs(folder, exist_ok=True)

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

    def last_lines(self, local_rank: int) -> List[str]:
        """The end of the rank's stderr, or of its stdout when stderr is empty.

        From the last traceback on if there is one: a crash at exit may write a lot after it.
        """
        for stream in ("stderr", "stdout"):
            tail = self._tails.get((local_rank, stream))
            if tail and tail.last:
                lines = tail.last.decode(errors="replace").rstrip("\n").split("\n")
                starts = [n for n, line in enumerate(lines) if TRACEBACK.match(line)]
                return lines[starts[-1] :][:80] if starts else lines[-40:]
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
        if not os.listdir(self.folder):
            return
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
        self.last = (self.last + whole)[-LAST_BYTES:]


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

    def expected(self, log_folder: str) -> bool:
        """They are about to start: torchrun has made the place for their logs."""
        return not self.by_local_rank and bool(os.listdir(log_folder))

    def failed(self) -> List[Rank]:
        """The first to fail first."""
        failed = [rank for rank in self.by_local_rank.values() if rank.exit_code]
        return sorted(failed, key=lambda rank: rank.exited or 0.0)


# --- evidence ------------------------------------------------------------------------------------


class Resources:
    """What a process can run out of: the kernel's OOM kills here, and room on the disks."""

    def __init__(self, spec: Dict[str, Any]) -> None:
        self._disks = {
            "shm": "/dev/shm",
            "checkpoints": spec.get("checkpoint_dir"),
            "output": spec.get("output_dir"),
            "logs": spec["dir"],
        }
        self._groups = memory_groups()
        self._kills_before = self._kills()

    def oom_kills(self) -> int:
        """Since the start, in this container or session."""
        return self._kills() - self._kills_before

    def as_event(self) -> Dict[str, Any]:
        limit = self._number(("memory.max", "memory.limit_in_bytes"), "")
        return {
            "oom_kills": self.oom_kills(),
            "memory_limit": limit if 0 < limit < 1 << 60 else None,
            "free": {name: free_bytes(path) for name, path in self._disks.items() if path},
        }

    def _kills(self) -> int:
        return self._number(("memory.events", "memory.oom_control"), "oom_kill ")

    def _number(self, names: Tuple[str, ...], label: str) -> int:
        """The number after `label` in the first file of these that there is; 0 without one."""
        for path in (os.path.join(group, name) for group in self._groups for name in names):
            try:
                with open(path) as file:
                    lines = file.read().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.startswith(label) and line[len(label) :].isdigit():
                    return int(line[len(label) :])
        return 0


def memory_groups() -> List[str]:
    """Where this process's memory cgroup may be, version 2 and version 1."""
    groups = []
    try:
        with open("/proc/self/cgroup") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    for _, controllers, path in rows:
        if controllers in ("", "memory"):
            root = os.path.join("/sys/fs/cgroup", controllers)
            groups += [root + path, root]  # the second is right inside a container
    return groups


def free_bytes(path: str) -> Optional[int]:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


# --- the gang ------------------------------------------------------------------------------------


class Refused(Exception):
    """The other end does not know the run's token, or speaks something else."""


class Link:
    """One connection between two supervisors: JSON lines, each with the HMAC of the run's token.

    The token never travels. Both ends say a nonce first, so that nothing recorded can be replayed.
    """

    def __init__(self, sock: socket.socket, token: str, listening: bool) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.opened = self.heard = time.monotonic()
        self.node_rank = None  # type: Optional[int]  # of the other end, once it has proved itself
        self._token = token.encode()
        self._listening = listening
        self._nonce = os.urandom(16).hex().encode()
        self._key = None  # type: Optional[bytes]
        self._sent = self._received = 0
        self._out = self._nonce + b"\n"
        self._in = b""
        self.flush()

    @property
    def ready(self) -> bool:
        return self._key is not None

    def send(self, message: Dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        self._out += self._seal(text, self._sent, self._listening) + b" " + text + b"\n"
        self._sent += 1
        self.flush()

    def flush(self) -> None:
        """Raises OSError when the connection is broken."""
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out) :]
        except BlockingIOError:
            if len(self._out) > READ_SIZE:
                raise ConnectionAbortedError("the peer takes nothing any more") from None

    def receive(self) -> List[Dict[str, Any]]:
        """Raises OSError when the connection is broken or closed, Refused when it is a stranger's."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed")
        *lines, self._in = (self._in + data).split(b"\n")
        if len(self._in) > 65536:
            raise Refused("a line without an end")
        if lines and self._key is None:
            self._agree(lines.pop(0))
        return [self._open(line) for line in lines]

    def close(self) -> None:
        self.sock.close()

    def _agree(self, other: bytes) -> None:
        nonces = (self._nonce, other) if self._listening else (other, self._nonce)
        self._key = hmac.new(self._token, b"ddpctl" + b"".join(nonces), hashlib.sha256).digest()

    def _open(self, line: bytes) -> Dict[str, Any]:
        seal, _, text = line.partition(b" ")
        if not hmac.compare_digest(seal, self._seal(text, self._received, not self._listening)):
            raise Refused("its token is not this run's")
        self._received += 1
        self.heard = time.monotonic()
        message = json.loads(text.decode())
        assert isinstance(message, dict)
        return message

    def _seal(self, text: bytes, count: int, from_listener: bool) -> bytes:
        assert self._key is not None
        head = b"%d %d " % (count, from_listener)
        return hmac.new(self._key, head + text, hashlib.sha256).hexdigest().encode()


class Gang:
    """All supervisors of the attempt, a star around node 0. States are told, not commands: each node
    says how it is, node 0 says what follows for all. So a message that is lost does no harm."""

    def __init__(self, spec: Dict[str, Any], journal: Journal, selector: Any) -> None:
        self.spec, self.journal, self.selector = spec, journal, selector
        self.me = spec["node_rank"]  # type: int
        self.began = self.turned = time.monotonic()
        self.silence = spec.get("peer_timeout", SILENCE)  # type: float
        self.verdict = None  # type: Optional[Reason]  # why all must stop
        self.over = False  # all nodes are done, or have stopped
        self.offset = 0.0  # seconds to add to this node's clock to have node 0's
        self._beat_at = 0.0
        self._told = None  # type: Optional[Tuple[Any, ...]]  # the last status sent, less its numbers

    def turn(self, status: Dict[str, Any]) -> None:
        """One look at everything. `status` is this node's own."""
        now = time.monotonic()
        if now - self.turned > 2 * BEAT:  # this process slept, not the peers
            self.forgive(now)
        self.turned = now
        told = (status["phase"], status["reason"] is not None, status["alive"])
        if told != self._told or now >= self._beat_at:
            self._told, self._beat_at = told, now + BEAT
            self.beat(status, now)
        self.judge(status, now)

    def beat(self, status: Dict[str, Any], now: float) -> None:
        raise NotImplementedError

    def judge(self, status: Dict[str, Any], now: float) -> None:
        raise NotImplementedError

    def forgive(self, now: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def listen_to(self, link: Link) -> None:
        self.selector.register(link.sock, selectors.EVENT_READ, lambda _: self.hear(link))

    def drop(self, link: Link) -> None:
        try:
            self.selector.unregister(link.sock)
        except (KeyError, ValueError):
            pass
        link.close()

    def hear(self, link: Link) -> None:
        raise NotImplementedError

    def lost(self, node_rank: int, how: str) -> Reason:
        host = self.spec["hosts"][node_rank]
        message = "node %d (%s) %s" % (node_rank, host, how)
        self.journal.event("peer_lost", node_rank=node_rank, host=host, message=message)
        return reason("peer-lost", message, node_rank, host, time.time() + self.offset)


class Member(Gang):
    """A node other than 0: tells node 0 how it is, hears what follows."""

    def __init__(self, spec: Dict[str, Any], journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self._link = None  # type: Optional[Link]
        self._socket = None  # type: Optional[socket.socket]  # connecting
        self._try_at = 0.0
        self._tried_at = 0.0
        self._lost_at = None  # type: Optional[float]
        self._joined = False
        self._best_round_trip = float("inf")

    def beat(self, status: Dict[str, Any], now: float) -> None:
        if self._link and self._link.ready:
            try:
                self._link.send(dict(status, node_rank=self.me, sent=time.time()))
            except OSError:
                self._broke()

    def judge(self, status: Dict[str, Any], now: float) -> None:
        if self.over:
            return
        lost = None  # type: Optional[Reason]
        if self._link is None:
            self._connect(now)
            lost = self._not_found(now)
        elif now - self._link.heard > self.silence:
            lost = self.lost(0, "was not heard for %d s" % self.silence)
        if lost:
            self.over = True  # as far as this node will ever know
            self.verdict = self.verdict or status["reason"] or lost

    def _not_found(self, now: float) -> Optional[Reason]:
        if self._joined:
            if now - (self._lost_at or now) <= RECONNECT:
                return None
            return self.lost(0, "closed the connection and did not come back")
        patience = self.spec.get("start_timeout", 60.0)
        if now - self.began <= patience:
            return None
        host = self.spec["hosts"][self.me]
        message = "could not join node 0 (%s) within %d s" % (self.spec["hosts"][0], patience)
        return reason("never-joined", message, self.me, host, time.time())

    def forgive(self, now: float) -> None:
        if self._link:
            self._link.heard = now
        if self._lost_at:
            self._lost_at = now

    def hear(self, link: Link) -> None:
        try:
            was_ready = link.ready
            messages = link.receive()
            if link.ready and not was_ready:
                self._told = None  # so that the next turn introduces this node
        except Refused as error:
            self.journal.event("refused", message=str(error))
            self._broke()
            return
        except OSError:
            self._broke()
            return
        for message in messages:
            self._joined, self._lost_at = True, None
            self._set_clock(message)
            self.verdict = message["stop"] or self.verdict
            self.over = message["over"]

    def close(self) -> None:
        if self._link:
            self.drop(self._link)
        self._link = None

    def _set_clock(self, message: Dict[str, Any]) -> None:
        """As NTP does: node 0 read its clock in the middle of the shortest round trip."""
        now = time.time()
        round_trip = now - message["echo"]
        if 0 <= round_trip < self._best_round_trip:
            self._best_round_trip = round_trip
            self.offset = message["now"] - (message["echo"] + now) / 2
            self.journal.event("clock", offset=self.offset, error=round_trip / 2)

    def _connect(self, now: float) -> None:
        if self._socket and now - self._tried_at > SETTLE:
            self._give_up()
        if self._socket or now < self._try_at:
            return
        self._tried_at, self._try_at = now, now + 0.2
        try:
            where = (self.spec["master_addr"], self.spec["control_port"])
            family, kind, _, _, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind)
            self._socket.setblocking(False)
            self._socket.connect_ex(address)
            self.selector.register(self._socket, selectors.EVENT_WRITE, self._connected)
        except OSError:
            self._give_up()

    def _connected(self, sock: socket.socket) -> None:
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.selector.unregister(sock)
        self._socket = None
        try:
            if failed:
                raise OSError(failed, os.strerror(failed))
            self._link = Link(sock, self.spec["token"], listening=False)
            self.listen_to(self._link)
        except OSError:
            sock.close()
            self._link = None

    def _give_up(self) -> None:
        if self._socket:
            try:
                self.selector.unregister(self._socket)
            except (KeyError, ValueError):
                pass
            self._socket.close()
        self._socket = None

    def _broke(self) -> None:
        self.close()
        self._lost_at = self._lost_at or time.monotonic()


class Hub(Gang):
    """Node 0: hears how everyone is, and says what follows."""

    def __init__(self, spec: Dict[str, Any], journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self._strangers = []  # type: List[Link]
        self._links = {}  # type: Dict[int, Link]
        self._status = {}  # type: Dict[int, Dict[str, Any]]
        self._lost_at = {}  # type: Dict[int, float]
        self._port_taken = None  # type: Optional[OSError]
        self._server = None  # type: Optional[socket.socket]
        self._bind_again_at = 0.0
        self._first_exit_at = None  # type: Optional[float]

    @property
    def others(self) -> List[int]:
        return [node_rank for node_rank in range(self.spec["nnodes"]) if node_rank != self.me]

    def beat(self, status: Dict[str, Any], now: float) -> None:
        self._status[self.me] = status
        for node_rank in list(self._links):
            self._answer(node_rank)

    def judge(self, status: Dict[str, Any], now: float) -> None:
        self._status[self.me] = status
        self._open_door(now)
        self._forget_strangers(now)
        before = (self.verdict, self.over)
        if self.verdict is None:
            self.verdict = self._find_verdict(now)
        gone = [n for n in self.others if n in self._lost_at or n not in self._status]
        ended = [n for n, told in self._status.items() if told["phase"] in ("done", "stopped")]
        waiting_for_late = now - self.began < JOIN_GRACE
        present = [n for n in range(self.spec["nnodes"]) if n in self._status]
        everybody = len(present) == self.spec["nnodes"]
        if set(ended) | (set(gone) if self.verdict else set()) >= set(range(self.spec["nnodes"])):
            self.over = everybody or not waiting_for_late
        if before != (self.verdict, self.over):
            self.beat(status, now)

    def forgive(self, now: float) -> None:
        for link in self._links.values():
            link.heard = now
        self._lost_at = dict.fromkeys(self._lost_at, now)

    def hear(self, link: Link) -> None:
        try:
            messages = link.receive()
        except Refused as error:
            self.journal.event("refused", message=str(error))
            self._broke(link)
            return
        except OSError:
            self._broke(link)
            return
        for message in messages:
            self._take(link, message)

    def close(self) -> None:
        """Lets everyone read the last word before the connections go."""
        deadline = time.monotonic() + 1.0
        while self._links and self.over and time.monotonic() < deadline:
            for key, _ in self.selector.select(0.05):
                if isinstance(key.fileobj, socket.socket):
                    key.data(key.fileobj)
        for link in [*self._links.values(), *self._strangers]:
            self.drop(link)
        if self._server:
            self.selector.unregister(self._server)
            self._server.close()
            self._server = None

    # --- what follows ---

    def _find_verdict(self, now: float) -> Optional[Reason]:
        reasons = [told["reason"] for told in self._status.values() if told["reason"]]
        if reasons:
            return earliest(reasons)
        return (
            self._missing(now) or self._out_of_sight(now) or self._early_exit(now) or self._hung()
        )

    def _missing(self, now: float) -> Optional[Reason]:
        patience = self.spec.get("start_timeout", 60.0)
        if self._port_taken and now - self.began > SETTLE:
            message = "the supervisors' port %d: %s" % (self.spec["control_port"], self._port_taken)
            return reason("control-port", message, self.me, self.spec["host"], time.time())
        late = [n for n in self.others if n not in self._status]
        if not late or now - self.began < patience:
            return None
        names = ", ".join("node %d (%s)" % (n, self.spec["hosts"][n]) for n in late)
        message = "%s did not join within %d s" % (names, patience)
        host = self.spec["hosts"][late[0]]
        return reason("never-joined", message, late[0], host, time.time())

    def _out_of_sight(self, now: float) -> Optional[Reason]:
        for node_rank, told in self._status.items():
            link = self._links.get(node_rank)
            if node_rank == self.me or told["phase"] == "stopped":
                continue
            if link is None and now - self._lost_at.setdefault(node_rank, now) > RECONNECT:
                return self.lost(node_rank, "closed the connection and did not come back")
            if link is not None and now - link.heard > self.silence:
                self._lost_at[node_rank] = now
                return self.lost(node_rank, "was not heard for %d s" % self.silence)
        return None

    def _early_exit(self, now: float) -> Optional[Reason]:
        """Ranks that ended well while others stand still: they wait for what never comes."""
        patience = self.spec.get("early_exit_timeout", 10.0)
        exits = [told["early"] for told in self._status.values() if told["early"]]
        if not exits or patience is None or not any(t["alive"] for t in self._status.values()):
            self._first_exit_at = None
            return None
        self._first_exit_at = self._first_exit_at or now
        stuck = min(told["stuck"] for told in self._status.values() if told["alive"])
        if now - self._first_exit_at < patience or stuck < patience:
            return None
        return earliest(exits)

    def _hung(self) -> Optional[Reason]:
        patience = self.spec.get("hang_timeout")
        told = list(self._status.values())
        if not patience or not any(t["alive"] for t in told):
            return None
        ages = [t["progress_age"] for t in told if t["progress_age"] is not None]
        age = min(ages or [t["log_age"] for t in told])
        if age < patience:
            return None
        message = "no progress for %d s" % age
        return reason("hung", message, self.me, self.spec["host"], time.time())

    # --- connections ---

    def _open_door(self, now: float) -> None:
        if self._server or not self.others or now < self._bind_again_at:
            return
        try:
            self._server = listening_socket(self.spec)
        except OSError as error:
            self._port_taken = error
            self._bind_again_at = now + 0.2
            return
        self._port_taken = None
        self.selector.register(self._server, selectors.EVENT_READ, self._welcome)

    def _welcome(self, server: socket.socket) -> None:
        try:
            sock, _ = server.accept()
            link = Link(sock, self.spec["token"], listening=True)
        except OSError:
            return
        self._strangers.append(link)
        self.listen_to(link)

    def _take(self, link: Link, message: Dict[str, Any]) -> None:
        node_rank = int(message["node_rank"])
        if link.node_rank is None:
            link.node_rank = node_rank
            self._strangers = [other for other in self._strangers if other is not link]
            if node_rank in self._links:
                self.drop(self._links[node_rank])
            if node_rank not in self._status:
                self.journal.event(
                    "joined", node_rank=node_rank, host=self.spec["hosts"][node_rank]
                )
            self._links[node_rank] = link
        self._lost_at.pop(node_rank, None)
        self._status[node_rank] = message
        self._answer(node_rank)

    def _answer(self, node_rank: int) -> None:
        link = self._links[node_rank]
        echo = self._status[node_rank]["sent"]
        try:
            link.send({"echo": echo, "now": time.time(), "stop": self.verdict, "over": self.over})
        except OSError:
            self._broke(link)

    def _broke(self, link: Link) -> None:
        self.drop(link)
        self._strangers = [other for other in self._strangers if other is not link]
        if link.node_rank is not None and self._links.get(link.node_rank) is link:
            del self._links[link.node_rank]
            self._lost_at[link.node_rank] = time.monotonic()

    def _forget_strangers(self, now: float) -> None:
        for link in [other for other in self._strangers if now - other.opened > SETTLE]:
            self._broke(link)


def earliest(reasons: List[Reason]) -> Reason:
    return min(reasons, key=lambda why: float(why["time"]))


def listening_socket(spec: Dict[str, Any]) -> socket.socket:
    """On node 0's own address when it is known as a number, else on all of them."""
    address = spec.get("internal_ip") or spec["master_addr"]
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError:
        address, family = "", socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, spec["control_port"]))
        server.listen(128)
        server.setblocking(False)
    except OSError:
        server.close()
        raise
    return server


def reason(
    kind: str,
    message: str,
    node_rank: int,
    host: str,
    when: float,
    rank: Optional[Rank] = None,
) -> Reason:
    """Why a gang stops: where it began, and when by node 0's clock."""
    return {
        "kind": kind,
        "message": message,
        "node_rank": node_rank,
        "host": host,
        "rank": rank.rank if rank else None,
        "local_rank": rank.local_rank if rank else None,
        "exit_code": rank.exit_code if rank else None,
        "signal": signal_name(rank.exit_code) if rank else None,
        "time": when,
    }


# --- signs of life -------------------------------------------------------------------------------


class Activity:
    """Whether the ranks of this node get anywhere: by their output, their I/O, the trainer's files."""

    LITTLE = 65536  # bytes a second of reading and writing that say nothing
    BUSY = 0.5  # cores; a rank that waits in NCCL is busy too, so being busy only earns patience
    BUSY_PATIENCE = 6.0

    def __init__(self, output_dir: Optional[str]) -> None:
        self._files = [
            os.path.join(output_dir or "/nonexistent", name)
            for name in ("metrics.jsonl", "status.json")
        ]
        self._began = time.time()
        self._output_at = self._looked_at = time.monotonic()
        self._before = {}  # type: Dict[int, Tuple[int, float]]  # pid -> (bytes, CPU seconds)
        self.stuck = 0.0  # seconds for which no rank did anything that can be seen from outside

    def output(self) -> None:
        self._output_at, self.stuck = time.monotonic(), 0.0

    def look(self, ranks: List[Rank]) -> None:
        """Once a second is enough."""
        now = time.monotonic()
        past = now - self._looked_at
        if past < 1.0:
            return
        self._looked_at = now
        moved, cores = 0, 0.0
        for rank in ranks:
            used = usage(rank.pid)
            before = self._before.get(rank.pid, used)
            self._before[rank.pid] = used
            moved += used[0] - before[0]
            cores = max(cores, (used[1] - before[1]) / past)
        if moved > self.LITTLE * past:
            self.stuck = 0.0
        else:
            self.stuck += past / (self.BUSY_PATIENCE if cores > self.BUSY else 1.0)

    def log_age(self) -> float:
        return time.monotonic() - self._output_at

    def progress_age(self) -> Optional[float]:
        """Seconds since the trainer wrote down progress; None if it has not, in this attempt."""
        times = [os.stat(path).st_mtime for path in self._files if os.path.exists(path)]
        newest = max(times, default=0.0)
        return max(0.0, time.time() - newest) if newest >= self._began else None


def usage(pid: int) -> Tuple[int, float]:
    """(bytes read and written, CPU seconds) of a process so far."""
    moved = 0
    try:
        with open("/proc/%d/io" % pid) as file:
            moved = sum(int(line.split()[1]) for line in list(file)[:2])  # rchar, wchar
    except OSError:
        pass  # not ours to see
    stat = proc_stat(pid)
    ticks = int(stat[11]) + int(stat[12]) if stat else 0
    return moved, ticks / os.sysconf("SC_CLK_TCK")


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
        self.gang = (Member if spec["node_rank"] else Hub)(spec, self.journal, self.selector)  # type: Gang
        self.activity = Activity(spec.get("output_dir"))
        self.resources = Resources(spec)
        self.phase = "running"  # then done: torchrun ended well; or stopped
        self.early = None  # type: Optional[Reason]  # the first rank that ended well, if one did
        self.ended_at = 0.0  # time.monotonic() of torchrun's end
        self.reason = None  # type: Optional[Reason]  # why this node stops
        self.kill_at = None  # type: Optional[float]  # time.monotonic() of SIGKILL
        self.alone_since = None  # type: Optional[float]  # since when torchrun has no rank left
        self.asked_to_stop = False
        self.left = []  # type: List[int]  # processes that nothing could end

    def run(self) -> int:
        adopt_orphans()
        self.journal.event("start", pid=os.getpid(), argv=self.spec["argv"], host=self.spec["host"])
        self.start()
        while not self.finished():
            self.hear(
                TICK if self.read_logs() or self.ranks.expected(self.logs.folder) else IDLE_TICK
            )
            self.meet_ranks()
            self.see_ranks()
            self.see_torchrun()
            self.gang.turn(self.status())
            self.heed_gang()
            self.press_on()
        return self.conclude()

    # --- what happens ---

    def start(self) -> None:
        self.selector.register(self.signals, selectors.EVENT_READ, self.hear_signals)
        try:
            self.torchrun.start(self.logs.folder)
        except OSError as error:
            self.stop(self.cause("start", "could not start torchrun: %s" % error))
            self.phase, self.ended_at = "stopped", time.monotonic()
            return
        for pipe in self.torchrun.pipes():
            self.selector.register(pipe, selectors.EVENT_READ, self.hear_torchrun)

    def hear(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            key.data(key.fileobj)

    def read_logs(self) -> int:
        size = self.logs.poll()
        if size:
            self.activity.output()
        return size

    def hear_torchrun(self, pipe: int) -> None:
        if not self.torchrun.read(pipe):
            self.selector.unregister(pipe)

    def hear_signals(self, source: socket.socket) -> None:
        for number in source.recv(64):
            if number in SIGNALS:
                self.asked_to_stop = True
                name = signal.Signals(number).name
                kind = "cancelled" if self.cancelled() else "signal"
                self.stop(self.cause(kind, "its supervisor was sent %s" % name), number)

    def hear_exit(self, fd: int) -> None:
        self.selector.unregister(fd)
        self.see_ranks()

    def meet_ranks(self) -> None:
        found = self.ranks.find(self.torchrun.pid)
        for rank in found:
            if rank.fd is not None:
                self.selector.register(rank.fd, selectors.EVENT_READ, self.hear_exit)
        if found:
            self.activity.output()
            known = self.ranks.by_local_rank.values()
            self.journal.event("ranks", pids={str(rank.rank): rank.pid for rank in known})

    def see_ranks(self) -> None:
        now = time.monotonic()
        alive = self.ranks.alive()
        for rank in alive:
            if rank.look():
                self.rank_exited(rank)
            elif rank.stopped_for(now) > self.gang.silence:
                message = "has been stopped (SIGSTOP) for more than %d s" % self.gang.silence
                self.stop(self.cause("stopped", message, rank))
        self.activity.look(alive)

    def rank_exited(self, rank: Rank) -> None:
        self.logs.drain()
        if rank.exit_code is not None:
            self.tell_exit(rank)
        if rank.exit_code and self.reason is None:
            self.stop(self.cause("rank-failed", how_it_ended(rank.exit_code), rank))
        elif rank.exit_code == 0 and self.early is None:
            message = "exited with code 0 while other ranks still ran"
            self.early = self.cause("early-exit", message, rank)

    def see_torchrun(self) -> None:
        """The end of torchrun is the end of everything that it started."""
        code = self.torchrun.exit_code()
        if code is None or self.phase != "running":
            return
        self.left = end_everything(self.torchrun.pid)
        self.meet_ends()
        self.logs.finish()
        self.torchrun.finish()
        for rank in self.ranks.failed()[:1]:
            self.stop(self.cause("rank-failed", how_it_ended(rank.exit_code), rank))
        if code and self.reason is None:
            last = self.torchrun.last.decode(errors="replace").rstrip("\n").split("\n")
            why = self.cause("torchrun", "torchrun %s" % how_it_ended(code))
            self.stop(dict(why, exit_code=code, signal=signal_name(code), last_lines=last[-60:]))
        if self.reason and self.resources.oom_kills():
            self.journal.event("evidence", **self.resources.as_event())
        self.phase = "stopped" if self.reason else "done"
        self.ended_at = time.monotonic()

    def status(self) -> Dict[str, Any]:
        return {
            "phase": self.phase,
            "reason": self.reason,
            "alive": len(self.ranks.alive()),
            "early": self.early,
            "stuck": self.activity.stuck,
            "log_age": self.activity.log_age(),
            "progress_age": self.activity.progress_age() if self.spec.get("hang_timeout") else None,
        }

    def heed_gang(self) -> None:
        if self.gang.verdict is None:
            return
        self.stop(self.gang.verdict)
        if self.phase == "done":
            self.phase = "stopped"

    def finished(self) -> bool:
        if self.phase == "running":
            return False
        settled = self.phase == "stopped" and time.monotonic() - self.ended_at > self.settle_time()
        return self.gang.over or settled

    def settle_time(self) -> float:
        """Node 0 stays a little, so that a node that starts late hears why all is over."""
        late = self.gang.began + JOIN_GRACE - self.ended_at if self.spec["node_rank"] == 0 else 0.0
        return max(SETTLE, late)

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
        """A reason that began on this node."""
        when = (rank.exited if rank else None) or time.time()
        host = self.spec["host"]
        return reason(kind, message, self.spec["node_rank"], host, when + self.gang.offset, rank)

    def stop(self, why: Reason, number: int = signal.SIGTERM) -> None:
        """SIGTERM now, SIGKILL after the time that is given for this kind of reason."""
        if self.reason is not None:
            return
        self.reason = why
        self.journal.event("stopping", reason=why)
        self.journal.event("evidence", **self.resources.as_event())
        stop_timeout = self.spec["stop_timeout"]
        grace = patience(stop_timeout)
        if why["kind"] not in ("cancelled", "signal"):
            grace = min(grace, self.spec.get("failure_grace", 3.0))
        self.kill_at = time.monotonic() + grace
        if (
            not self.ranks.failed()
        ):  # else torchrun is ending them, and a signal would cut its report
            send(self.torchrun.pid, number)

    def press_on(self) -> None:
        """The end of patience: with the ranks first, so that torchrun can still tell of them."""
        if self.kill_at is None or self.phase != "running":
            return
        now = time.monotonic()
        if self.ranks.alive() and now < self.kill_at:
            return
        self.alone_since = self.alone_since or now
        late = now - self.alone_since > TORCHRUN_LAST_WORDS
        for pid in descendants(os.getpid()):
            if late or (pid != self.torchrun.pid and now > self.kill_at):
                send(pid, signal.SIGKILL)

    def cancelled(self) -> bool:
        path = self.spec.get("cancel_file") or os.path.join(self.spec["dir"], "cancelled")
        return os.path.exists(path)

    # --- the end ---

    def conclude(self) -> int:
        code = self.torchrun.exit_code() if self.torchrun.pid else 127
        final = self.gang.verdict or self.reason
        state = self.state(code, final)
        self.gang.close()
        if self.left:
            self.journal.say("these processes could not be ended: %s" % self.left)
        self.journal.event("end", state=state, exit_code=code, reason=final, left=self.left)
        self.journal.close()
        return {"succeeded": 0, "stopped": 143, "cancelled": 143}.get(state, code or 1)

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

    def state(self, code: Optional[int], final: Optional[Reason]) -> str:
        if self.cancelled() and (self.asked_to_stop or (final and final["kind"] == "cancelled")):
            return "cancelled"
        if final is None:
            return "succeeded" if code == 0 else "failed"
        if final["kind"] in ("cancelled", "hung"):
            return str(final["kind"])
        if self.reason and self.reason["node_rank"] == self.spec["node_rank"]:
            return "stopped" if self.reason["kind"] in ("signal", "peer-lost") else "failed"
        return "stopped"


def signal_name(code: Optional[int]) -> Optional[str]:
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return "signal %d" % -code


def how_it_ended(code: Optional[int]) -> str:
    name = signal_name(code)
    return "was killed by %s" % name if name else "exited with code %s" % code


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
