"""Runs on a host while a push lasts: takes parcels from the host before it and hands them on.

Standard library only, Python 3.8 or later; its text comes over SSH and nothing is installed. It lives
as long as its standard input. There it is told what to do, one JSON object a line:

    hello  cert: the one-time certificate and key that all hosts of this push share
    open   id, argv, size, upstreams [[address, port], ...]: a parcel and the command that reads it
    feed   id, at, n: n bytes of the parcel, from offset `at` on, follow the line
    from   id, upstreams: where to go on from
    end    id, size, sha256: what the parcel had to be
    drop   id
    close  id: every host has it

On standard output it says `ready` (port), `have` (bytes so far, by parcel), `starved` (nobody to take
the parcel from: feed it), `done` (code, said) and `failed` (why).

Hosts talk over mutual TLS: a line {id, at}, then frames of a 4-byte length and bytes. Length 0 means
"nothing new, still here"; the last frame has length END. The command is given the last bytes only once
the digest is right, so that damage never ends as a whole tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

FRAME = 256 * 1024
SEGMENT = 32 << 20  # bytes in one file of the spool
KEEP = 256 << 20  # bytes kept behind the slowest reader, for hosts that come later
ROOM = 0.25  # of the free disk, that slow readers may take
AHEAD = 1 << 30  # bytes that may wait for a slow command
HELD = 64 * 1024  # bytes that the command gets only when the digest is right
TICK = 0.25  # seconds between reports
ALIVE = 1.0  # seconds after which a host that has nothing to send says so
STALL = 5.0  # seconds of silence after which a host counts as gone
CONNECT = 4.0
END = 0xFFFFFFFF


class Spool:
    """A stream on disk that is read while it grows, in nameless files, so none is ever left."""

    def __init__(self, folder: str) -> None:
        self.folder, self.size, self.first = folder, 0, 0
        self.segments: Dict[int, Any] = {}

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            number, at = divmod(self.size, SEGMENT)
            if number not in self.segments:
                self.segments[number] = tempfile.TemporaryFile(dir=self.folder)
            part = view[: SEGMENT - at]
            done = os.pwrite(self.segments[number].fileno(), part, at)
            self.size += done
            view = view[done:]

    def read(self, at: int, count: int) -> Optional[bytes]:
        """Bytes from `at` on; None when they are kept no longer."""
        number, offset = divmod(at, SEGMENT)
        segment = self.segments.get(number)
        if segment is None:
            return None
        count = min(count, SEGMENT - offset, self.size - at)
        return os.pread(segment.fileno(), count, offset)

    def forget(self, before: int) -> None:
        while (self.first + 1) * SEGMENT <= before:
            segment = self.segments.pop(self.first, None)
            if segment is not None:
                segment.close()
            self.first += 1

    def close(self) -> None:
        for segment in self.segments.values():
            segment.close()
        self.segments = {}


class Parcel:
    def __init__(self, agent: Agent, order: Dict[str, Any]) -> None:
        self.agent, self.id, self.argv = agent, str(order["id"]), order["argv"]
        self.spool = Spool(agent.folder)
        self.changed = threading.Condition()
        self.upstreams: List[Tuple[str, int]] = order["upstreams"]
        self.version = 0
        self.total: Optional[int] = None
        self.digest = ""
        self.hash = hashlib.sha256()
        self.used = 0  # bytes that the command has had
        self.readers: Dict[int, int] = {}  # bytes that hosts which take it from here have had
        self.whole = self.over = False

    @property
    def have(self) -> int:
        return self.spool.size

    def take(self, at: int, data: bytes) -> None:
        """Bytes that came. Those that are here already, and those beyond a gap, do not count."""
        with self.changed:
            while self.have - self.used > AHEAD and not self.over:
                self.changed.wait(ALIVE)
            if self.over or at != self.have:
                return
            try:
                self.spool.write(data)
            except OSError as error:
                self.fail("%s: %s" % (self.agent.folder, error.strerror))
                return
            self.hash.update(data)
            slowest = min([self.used, self.have, *list(self.readers.values())])
            kept = max(slowest - KEEP, self.have - self.agent.room)
            self.spool.forget(min(kept, self.used))
            self.check()
            self.changed.notify_all()

    def end(self, total: int, digest: str) -> None:
        with self.changed:
            self.total, self.digest = total, digest
            self.check()
            self.changed.notify_all()

    def check(self) -> None:
        if self.total is None or self.have < self.total or self.whole:
            return
        if self.have == self.total and self.hash.hexdigest() == self.digest:
            self.whole = True
        else:
            self.fail("damaged")

    def fail(self, why: str) -> None:
        with self.changed:
            if not self.over:
                self.over = True
                self.agent.say(ev="failed", id=self.id, why=why)
            self.changed.notify_all()

    def go_on_from(self, upstreams: List[Tuple[str, int]]) -> None:
        with self.changed:
            self.upstreams, self.version = upstreams, self.version + 1
            self.changed.notify_all()

    # from the hosts before this one

    def pull(self) -> None:
        while not (self.whole or self.over):
            version, why = self.version, "no host before it"
            for address, port in list(self.upstreams):
                try:
                    self.pull_from(address, port, version)
                except (OSError, ValueError) as error:
                    why = "%s:%d: %s" % (address, port, error)
                if self.whole or self.over or self.version != version:
                    break
            else:
                self.agent.say(ev="starved", id=self.id, have=self.have, why=why)
                with self.changed:
                    while self.version == version and not (self.whole or self.over):
                        self.changed.wait(ALIVE)

    def pull_from(self, address: str, port: int, version: int) -> None:
        raw = socket.create_connection((address, port), CONNECT)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.agent.client_side.wrap_socket(raw) as link:
            link.settimeout(STALL)
            link.sendall(json.dumps({"id": self.id, "at": self.have}).encode() + b"\n")
            stream = link.makefile("rb", FRAME)
            while self.version == version and not (self.whole or self.over):
                head = stream.read(4)
                if len(head) < 4:
                    raise ValueError("it stopped")
                (length,) = struct.unpack(">I", head)
                if length == END:
                    with self.changed:  # the launcher's word on the digest is on its way
                        self.changed.wait_for(lambda: self.whole or self.over, STALL)
                    return
                if length > FRAME:
                    raise ValueError("it does not speak this protocol")
                data = stream.read(length)
                if len(data) < length:
                    raise ValueError("it stopped")
                if data:
                    self.take(self.have, data)

    # to the hosts after this one

    def serve(self, link: ssl.SSLSocket, at: int) -> None:
        self.readers[id(link)] = at
        try:
            self.serve_from(link, at)
        finally:
            del self.readers[id(link)]

    def serve_from(self, link: ssl.SSLSocket, at: int) -> None:
        while not (self.over and not self.whole):
            with self.changed:
                if at >= self.have and not self.whole:
                    self.changed.wait(ALIVE)
                data = self.spool.read(at, FRAME) if at < self.have else b""
            if data is None:
                return  # no longer kept here
            if not data and self.whole:
                link.sendall(struct.pack(">I", END))
                return
            link.sendall(struct.pack(">I", len(data)) + data)
            at += len(data)
            self.readers[id(link)] = at

    # to the command

    def consume(self) -> None:
        said = tempfile.TemporaryFile(dir=self.agent.folder)
        command = subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            assert command.stdin is not None
            with command.stdin:
                self.give(command.stdin)
        except OSError:
            pass  # it reads no more: its exit code and last words say why
        if self.over and not self.whole:
            command.kill()
        code = command.wait()
        said.seek(0)
        words = said.read()[-4000:].decode(errors="replace").strip()
        with self.changed:
            self.used = 1 << 62  # the command wants nothing more; the hosts after this one may
            self.changed.notify_all()
        self.agent.say(ev="done", id=self.id, code=code, said=words)

    def give(self, pipe: Any) -> None:
        while True:
            with self.changed:
                while not (self.whole or self.over or self.have - self.used > HELD):
                    self.changed.wait()
                if self.over and not self.whole:
                    return
                end = self.have if self.whole else self.have - HELD
                if self.used >= end:
                    return
                data = self.spool.read(self.used, min(FRAME, end - self.used)) or b""
            pipe.write(data)
            with self.changed:
                self.used += len(data)
                self.changed.notify_all()


class Agent:
    def __init__(self) -> None:
        self.folder = os.path.expanduser("~/.ddpctl/spool")
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.room = AHEAD + KEEP + int(shutil.disk_usage(self.folder).free * ROOM)
        self.parcels: Dict[str, Parcel] = {}
        self.queue: List[Parcel] = []
        self.news = threading.Condition()
        self.voice = threading.Lock()

    def say(self, **words: Any) -> None:
        with self.voice:
            sys.stdout.buffer.write(json.dumps(words).encode() + b"\n")
            sys.stdout.buffer.flush()

    def run(self, orders: BinaryIO) -> None:
        for line in iter(orders.readline, b""):
            order = json.loads(line)
            if order["op"] == "feed":
                data = orders.read(order["n"])
                self.parcels[order["id"]].take(order["at"], data)
            else:
                getattr(self, "on_" + order["op"])(order)

    def on_hello(self, order: Dict[str, Any]) -> None:
        self.client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client_side.check_hostname = False
        self.server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for side in (self.client_side, self.server_side):
            side.verify_mode = ssl.CERT_REQUIRED
            side.load_verify_locations(cadata=order["cert"])
            load_pair(side, order["cert"] + order["key"], self.folder)
        listener = listen()
        start(self.accept, listener)
        start(self.work)
        start(self.tell)
        self.say(ev="ready", port=listener.getsockname()[1])

    def on_open(self, order: Dict[str, Any]) -> None:
        parcel = Parcel(self, order)
        with self.news:
            self.parcels[parcel.id] = parcel
            self.queue.append(parcel)
            self.news.notify_all()
        start(parcel.pull)

    def on_from(self, order: Dict[str, Any]) -> None:
        self.parcels[order["id"]].go_on_from(order["upstreams"])

    def on_end(self, order: Dict[str, Any]) -> None:
        self.parcels[order["id"]].end(order["size"], order["sha256"])

    def on_drop(self, order: Dict[str, Any]) -> None:
        self.parcels[order["id"]].fail("dropped")

    def on_close(self, order: Dict[str, Any]) -> None:
        parcel = self.parcels[order["id"]]
        with parcel.changed:
            parcel.spool.close()

    def work(self) -> None:
        """The commands one after the other, in the order in which the parcels were opened."""
        while True:
            with self.news:
                while not self.queue:
                    self.news.wait()
                parcel = self.queue.pop(0)
            try:
                parcel.consume()
            except OSError as error:
                parcel.fail(str(error))

    def tell(self) -> None:
        last: Dict[str, int] = {}
        while True:
            threading.Event().wait(TICK)
            now = {parcel.id: parcel.have for parcel in list(self.parcels.values())}
            if now != last or not all(p.whole or p.over for p in list(self.parcels.values())):
                self.say(ev="have", have=now)
                last = now

    def accept(self, listener: socket.socket) -> None:
        while True:
            start(self.answer, listener.accept()[0])

    def answer(self, raw: socket.socket) -> None:
        try:
            raw.settimeout(STALL)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.server_side.wrap_socket(raw, server_side=True) as link:
                wish = json.loads(link.makefile("rb").readline(4096))
                parcel = self.known(link, wish["id"])
                if parcel is not None:
                    link.settimeout(None)
                    parcel.serve(link, wish["at"])
        except (OSError, ValueError, KeyError):
            raw.close()  # that host has gone, or is none of ours

    def known(self, link: ssl.SSLSocket, name: str) -> Optional[Parcel]:
        """A host may ask before this one has been told of the parcel."""
        for _ in range(int(STALL / ALIVE)):
            with self.news:
                if name not in self.parcels:
                    self.news.wait(ALIVE)
                if name in self.parcels:
                    return self.parcels[name]
            link.sendall(struct.pack(">I", 0))
        return None


def load_pair(side: ssl.SSLContext, text: str, folder: str) -> None:
    """OpenSSL wants a file: one that nobody else can read, for as long as it takes."""
    number, path = tempfile.mkstemp(dir=folder)
    try:
        os.write(number, text.encode())
        side.load_cert_chain(path)
    finally:
        os.close(number)
        os.unlink(path)


def listen() -> socket.socket:
    family = socket.AF_INET6 if os.path.exists("/proc/net/if_inet6") else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", 0))
    except OSError:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("", 0))
    listener.listen(64)
    return listener


def start(act: Any, *arguments: Any) -> None:
    threading.Thread(target=act, args=arguments, daemon=True).start()


if __name__ == "__main__":
    try:
        Agent().run(sys.stdin.buffer)
    finally:
        os._exit(0)
