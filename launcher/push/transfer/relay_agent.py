"""Runs on a host during a push: receives payloads from an earlier host and passes them on.

Standard library only, Python 3.8 or later. Its source is sent over SSH, and nothing is installed.
It ends when its standard input closes. Orders arrive on standard input, one JSON object per line.
`op` is the name of a method:

    hello    certificate, key: those of this push; address: where other hosts reach this one
    open     id, argv, upstreams [[address, port], ...]: a payload and the command that reads it
    receive  id, at, n: n bytes of the payload, starting at offset `at`, follow this line
    take     id, upstreams: continue reading from these hosts
    end      id, size, sha256: those of the whole payload
    close    id: no host needs this payload anymore; give up on it unless it is complete

Events go to standard output, one JSON array [event, id, count, text] per line: `ready` (count:
port), `have` (count: bytes received so far, text: bytes passed to the command), `starved` (no host
left to read from; count: bytes received so far, text: why), `done` (count: exit code, text: stderr)
and `failed` (text: why).

Hosts connect over mutual TLS. The reader sends a line {id, at} and receives frames: a 4-byte
length, then the bytes. Length 0 means "nothing new yet"; END ends the payload. The command gets the
last bytes only after the payload's digest has been verified, so a damaged payload never becomes a
complete tree.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO, Dict, List, Optional, Tuple

FRAME = 256 * 1024
SEGMENT = 32 << 20  # bytes per file of the spool
KEEP = 256 << 20  # bytes kept behind the slowest reader for hosts that connect later
DISK_SHARE = 0.25  # fraction of the free disk space to spend on slow readers
MAX_AHEAD = 1 << 30  # maximum bytes waiting for a slow command
HELD_BACK = 64 * 1024  # bytes withheld from the command until the digest is verified
REPORT_INTERVAL = 0.25  # seconds
KEEPALIVE = 1.0  # seconds without data until a host sends an empty frame
SILENCE_TIMEOUT = 5.0  # seconds until a silent host counts as lost
CONNECT_TIMEOUT = 4.0  # seconds
MAX_STRANGERS = 64  # connections that have not yet presented the certificate
RETRY = 0.05  # seconds to wait after a connection could not be accepted
END = 0xFFFFFFFF

Upstreams = List[Tuple[str, int]]  # addresses and ports


class Spool:
    """A stream on disk that is read while it grows. Its files have no names, so none is left behind."""

    def __init__(self, folder: str) -> None:
        self.folder, self.size = folder, 0
        self.segments: Dict[int, Any] = {}

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            number, at = divmod(self.size, SEGMENT)
            if number not in self.segments:
                self.segments[number] = tempfile.TemporaryFile(dir=self.folder)
            done = os.pwrite(self.segments[number].fileno(), view[: SEGMENT - at], at)
            self.size += done
            view = view[done:]

    def read(self, at: int, count: int) -> Optional[bytes]:
        """Return up to `count` bytes from `at` on; None if they were discarded."""
        number, offset = divmod(at, SEGMENT)
        segment = self.segments.get(number)
        if segment is None:
            return None
        return os.pread(segment.fileno(), min(count, SEGMENT - offset, self.size - at), offset)

    def forget(self, before: int) -> None:
        for number in [n for n in self.segments if (n + 1) * SEGMENT <= before]:
            self.segments.pop(number).close()


class RelayedPayload:
    """One payload on this host: received, spooled, passed on, and read by a command."""

    def __init__(self, agent: Agent, id: str, argv: List[str], upstreams: Upstreams) -> None:
        self.agent, self.id, self.argv, self.upstreams = agent, id, argv, upstreams
        self.spool = Spool(agent.folder)
        self.changed = threading.Condition()
        self.version = 0  # incremented when the upstreams change
        self.size: Optional[int] = None
        self.sha256 = ""
        self.hash = hashlib.sha256()
        self.consumed = 0  # bytes passed to the command
        self.readers: Dict[int, int] = {}  # bytes passed to each host that reads from this one
        self.complete = self.failed = False

    @property
    def have(self) -> int:
        return self.spool.size

    @property
    def over(self) -> bool:
        return self.failed or self.complete

    def receive(self, at: int, data: bytes) -> None:
        """Store the bytes that are new. Ignore data that would leave a gap before it."""
        with self.changed:
            self.changed.wait_for(lambda: self.failed or self.have - self.consumed <= MAX_AHEAD)
            data = data[max(self.have - at, 0) :]
            if self.failed or at > self.have or not data:
                return
            try:
                self.spool.write(data)
            except OSError as error:
                self.fail("%s: %s" % (self.agent.folder, error.strerror))
                return
            self.hash.update(data)
            slowest = min([self.consumed, self.have, *list(self.readers.values())])
            kept = max(slowest - KEEP, self.have - self.agent.room)
            self.spool.forget(min(kept, self.consumed))
            self.check()

    def end(self, size: int, sha256: str) -> None:
        with self.changed:
            self.size, self.sha256 = size, sha256
            self.check()

    def check(self) -> None:
        if self.size is not None and self.have >= self.size and not self.complete:
            if self.have == self.size and self.hash.hexdigest() == self.sha256:
                self.complete = True
            else:
                self.fail("damaged in transit")
        self.changed.notify_all()

    def fail(self, why: str) -> None:
        with self.changed:
            self.failed = not self.complete
            self.agent.emit("failed", id=self.id, text=why)
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.failed = not self.complete
            self.spool.forget(self.have + SEGMENT)
            self.changed.notify_all()

    def take(self, upstreams: Upstreams) -> None:
        with self.changed:
            self.upstreams, self.version = upstreams, self.version + 1
            self.changed.notify_all()

    # from the upstream hosts

    def pull(self) -> None:
        while not self.over:
            version, why = self.version, "no host left to read from"
            for address, port in list(self.upstreams):
                try:
                    self.pull_from(address, port, version)
                except (OSError, ValueError) as error:
                    why = "%s:%d: %s" % (address, port, error)
                if self.over or self.version != version:
                    break
            else:
                self.agent.emit("starved", self.id, self.have, why)
                with self.changed:
                    while self.version == version and not self.over:
                        self.changed.wait()

    def pull_from(self, address: str, port: int, version: int) -> None:
        raw = socket.create_connection((address, port), CONNECT_TIMEOUT)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self.agent.client_side.wrap_socket(raw) as link:
            link.settimeout(SILENCE_TIMEOUT)
            link.sendall(json.dumps({"id": self.id, "at": self.have}).encode() + b"\n")
            stream = link.makefile("rb", FRAME)
            while self.version == version and not self.over:
                (length,) = struct.unpack(">I", exactly(stream, 4))
                if length == END:
                    with self.changed:  # the launcher's digest may still be on its way
                        self.changed.wait_for(lambda: self.over, SILENCE_TIMEOUT)
                    return
                if length > FRAME:
                    raise ValueError("it is not a relay of this push")
                if length:
                    self.receive(self.have, exactly(stream, length))

    # to the downstream hosts

    def serve(self, link: ssl.SSLSocket, at: int) -> None:
        try:
            while not self.failed:
                self.readers[id(link)] = at
                with self.changed:
                    if at >= self.have and not self.complete:
                        self.changed.wait(KEEPALIVE)
                    data = self.spool.read(at, FRAME) if at < self.have else b""
                if data is None:
                    return  # discarded
                if not data and self.complete:
                    link.sendall(struct.pack(">I", END))
                    return
                link.sendall(struct.pack(">I", len(data)) + data)
                at += len(data)
        finally:
            self.readers.pop(id(link), None)

    # to the command

    def run_command(self) -> None:
        with tempfile.TemporaryFile(dir=self.agent.folder) as stderr:
            pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
            command = subprocess.Popen(self.argv, stdin=pipe, stdout=nowhere, stderr=stderr)
            try:
                assert command.stdin is not None
                with command.stdin:
                    self.write_to(command.stdin)
            except OSError:
                pass  # the command stopped reading; its exit code and stderr show why
            if self.failed:
                command.kill()
            code = command.wait()
            stderr.seek(0)
            text = stderr.read()[-4000:].decode(errors="replace").strip()
        with self.changed:
            self.consumed = 1 << 62  # the command is done; downstream hosts may not be
            self.changed.notify_all()
        self.agent.emit("done", self.id, code, text)

    def write_to(self, pipe: Any) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.over or self.have - self.consumed > HELD_BACK)
                end = self.have if self.complete else self.have - HELD_BACK
                if self.failed or self.consumed >= end:
                    return
                data = self.spool.read(self.consumed, min(FRAME, end - self.consumed)) or b""
            pipe.write(data)
            with self.changed:
                self.consumed += len(data)
                self.changed.notify_all()


class Agent:
    def __init__(self) -> None:
        self.folder = os.path.expanduser("~/.ddpctl/spool")
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self.room = MAX_AHEAD + KEEP + int(shutil.disk_usage(self.folder).free * DISK_SHARE)
        self.payloads: Dict[str, RelayedPayload] = {}
        self.strangers: Dict[socket.socket, None] = {}  # oldest first
        self.queue: "queue.SimpleQueue[RelayedPayload]" = queue.SimpleQueue()
        self.changed = threading.Condition()
        self.writing = threading.Lock()

    def emit(self, event: str, id: str = "", count: int = 0, text: str = "") -> None:
        with self.writing:
            sys.stdout.buffer.write(json.dumps([event, id, count, text]).encode() + b"\n")
            sys.stdout.buffer.flush()

    def run(self, orders: BinaryIO) -> None:
        for line in iter(orders.readline, b""):
            order = json.loads(line)
            op = order.pop("op")
            if op == "receive":
                order["data"] = orders.read(order.pop("n"))
            one_payload = op not in ("hello", "open")
            getattr(self.payloads[order.pop("id")] if one_payload else self, op)(**order)

    def hello(self, certificate: str, key: str, address: str) -> None:
        self.client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.client_side.check_hostname = False
        self.server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile(dir=self.folder) as file:  # OpenSSL needs a file
            file.write((certificate + key).encode())
            file.flush()
            for side in (self.client_side, self.server_side):
                side.verify_mode = ssl.CERT_REQUIRED
                side.load_verify_locations(cadata=certificate)
                side.load_cert_chain(file.name)
        listener = listen(address)
        start(self.accept, listener)
        start(self.run_commands)
        start(self.report)
        self.emit("ready", count=listener.getsockname()[1])

    def open(self, id: str, argv: List[str], upstreams: Upstreams) -> None:
        payload = RelayedPayload(self, id, argv, upstreams)
        with self.changed:
            self.payloads[id] = payload
            self.changed.notify_all()
        self.queue.put(payload)
        start(payload.pull)

    def run_commands(self) -> None:
        """Run the commands one after the other, in the order in which the payloads were opened."""
        while True:
            payload = self.queue.get()
            try:
                payload.run_command()
            except OSError as error:
                payload.fail(str(error))

    def report(self) -> None:
        reported: Dict[str, Tuple[int, int]] = {}
        while True:
            time.sleep(REPORT_INTERVAL)
            for payload in list(self.payloads.values()):
                state = payload.have, payload.consumed
                if not payload.over or state != reported.get(payload.id):
                    self.emit("have", payload.id, state[0], str(state[1]))
                    reported[payload.id] = state

    def accept(self, listener: socket.socket) -> None:
        """Answer each connection in its own thread.

        If too many have not yet presented the certificate, drop the oldest of them.
        """
        while True:
            try:
                link = self.server_side.wrap_socket(
                    listener.accept()[0], server_side=True, do_handshake_on_connect=False
                )
                self.strangers[link] = None
                if len(self.strangers) > MAX_STRANGERS:
                    oldest = next(iter(self.strangers))
                    del self.strangers[oldest]
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # its thread then closes it
                start(self.answer, link)
            except (OSError, KeyError, RuntimeError):  # the host is gone, or a limit was reached
                time.sleep(RETRY)

    def answer(self, link: ssl.SSLSocket) -> None:
        try:
            with link:
                link.settimeout(SILENCE_TIMEOUT)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link.do_handshake()
                self.strangers.pop(link, None)
                request = json.loads(link.makefile("rb").readline(4096))
                name, at = request["id"], request["at"]
                if type(at) is not int or at < 0:
                    raise ValueError("not an offset")
                with self.changed:  # the launcher's `open` order may still be on its way
                    self.changed.wait_for(
                        lambda: name in self.payloads, SILENCE_TIMEOUT - KEEPALIVE
                    )
                    payload = self.payloads[name]
                link.settimeout(None)
                payload.serve(link, at)
        except (OSError, ValueError, KeyError):
            pass  # the host is gone, or not part of this push
        finally:
            self.strangers.pop(link, None)


def exactly(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size)
    if len(data) < size:
        raise ValueError("the connection closed early")
    return data


def listen(address: str) -> socket.socket:
    """Listen on the address that other hosts use, or on all addresses if it is not ours (NAT)."""
    for where in (address, "::", "0.0.0.0"):
        family = socket.AF_INET6 if ":" in where else socket.AF_INET
        both = where == "::" and socket.has_dualstack_ipv6()
        try:
            return socket.create_server((where, 0), family=family, backlog=128, dualstack_ipv6=both)
        except OSError as error:
            reason = error
    raise reason


def start(act: Any, *arguments: Any) -> None:
    threading.Thread(target=act, args=arguments, daemon=True).start()


if __name__ == "__main__":
    try:
        Agent().run(sys.stdin.buffer)
    finally:
        os._exit(0)
