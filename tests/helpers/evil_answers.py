"""The nonsense that an evil host answers, in pieces: bytes to send, or seconds to wait before the next.

SCRIPTS has what its commands print; DOCKER has what its Docker API answers. Standard library only: a
real sshd runs this file as its ForceCommand: `python3 evil_answers.py FILE`. The file has one key of each.
"""

from __future__ import annotations

import functools
import json
import os
import re
import select
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

Pieces = Iterator["bytes | float"]
FOREVER = 1e6  # seconds
SECTIONS = (
    "memory driver disk nvidia gpuowners xid holder cores user listening net interfaces".split()
)


def forever(*pieces: bytes | float) -> Callable[[], Pieces]:
    def answer() -> Pieces:
        while True:
            yield from pieces

    return answer


def once(*pieces: bytes | float) -> Callable[[], Pieces]:
    return lambda: iter(pieces)


# long texts for every parser: those of facts, GPUs, NUL-terminated lists and journals
LONG = b"".join(b"\n@@%s\n%s\n" % (name.encode(), b"a" * 40_000) for name in SECTIONS)
SCRIPTS: dict[str, Callable[[], Pieces]] = {
    "nothing": once(),
    "noise": once(bytes(range(256)) * 40),
    "long lines": once(LONG + b"\n@@end\n1\n" + b"x" * 1_000_000 + b"\n"),
    "many lines": once(b"a\n" * 2_000_000),
    "many rows": once(b"0 0 a\0" * 300_000),
    "deep": once(b"[" * 1_000_000),
    "deep event": once(b"1.5\t!\t" + b'{"kind":' * 200_000 + b"\n" + b"== 0/attempt-1\n" + b"[" * 99_999),
    "endless": forever(b"x\n" * 30_000),
    "endless line": forever(b"x" * 60_000),
    "dripping": forever(0.02, b"x"),
    "silent": once(FOREVER),
}  # fmt: skip

HONEST: dict[str, object] = {
    "/version": {"ApiVersion": "1.43", "Version": "28.2.2"},
    "/info": {"ServerVersion": "28.2.2", "Driver": "overlay2", "SecurityOptions": []},
    "/containers/json": [],
    "/volumes": {"Volumes": None},
}


def response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body


def document(value: object) -> Callable[[], Pieces]:
    return once(response(json.dumps(value).encode()))


@functools.cache
def bomb() -> bytes:
    """Return 300 MB of spaces in 300 kB. Its checksum, which comes last, is wrong."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first, again = (
        packer.compress(b" " * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
    )
    data = first + 299 * again + packer.flush()
    return response(data, "200 OK", "Content-Encoding: gzip")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
LABELS = {"io.ddpctl.run-id": "\ud800", "io.ddpctl.owner": "\ud800", "io.ddpctl.attempt": "x"}
DOCKER: dict[str, Callable[[], Pieces]] = {
    "null": document(None),
    "a number": document(7),
    "an empty object": document({}),
    "an empty list": document([]),
    "a list of nothing": document([None, 7, [], {"Id": 7}]),
    "odd labels": document([{"Id": "\ud800", "Names": 7, "Labels": LABELS, "State": {"Status": []}}]),
    "deep": once(response(b"[" * 500_000)),
    "many items": once(response(b"[" + b"{}," * 2_000_000 + b"{}]")),
    "not JSON": once(response(b"\xff{")),
    "a long refusal": once(response(b"x" * 4_000_000, "500 No")),
    "a redirect": once(response(b"", "307 Away", "Location: http://127.0.0.1:1/x")),
    "a gzip bomb": lambda: iter([bomb()]),
    "an endless body": lambda: (
        x for each in (once(HEAD + b"\r\n"), forever(b"[" * 60_000)) for x in each()
    ),
    "endless headers": lambda: (x for each in (once(HEAD), forever(b"a: b\r\n" * 9)) for x in each()),
    "endless continue": forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
    "dripping": lambda: (
        x for each in (once(HEAD + b"\r\n"), forever(0.02, b" ")) for x in each()
    ),
    "silent": once(FOREVER),
    "no HTTP": forever(bytes(range(256))),
}  # fmt: skip


def docker_answer(kind: str, request: bytes) -> Pieces:
    """Yield the pieces of the answer to one request. kind: a key of DOCKER, or "honest" (no containers)."""
    path = re.sub(rb"^/v[0-9.]+", b"", request.split(b" ")[1]).split(b"?")[0].decode()
    if path == "/version" or (kind == "honest" and path in HONEST):
        return document(HONEST[path])()
    return DOCKER[kind]() if kind in DOCKER else iter([response(b"{}", "404 Not Found")])


def whole_request(data: bytes) -> int:
    """Return the size of the first request in `data`, or 0 if it is incomplete."""
    end = data.find(b"\r\n\r\n") + 4
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", data[:end])
    size = end + (int(length[1]) if length else 0)
    return size if end > 3 and len(data) >= size else 0


def main(scripts: str, docker: str) -> None:
    hung_up = select.poll()
    hung_up.register(1, 0)  # reports only that nobody reads anymore

    def send(pieces: Pieces) -> None:
        for piece in pieces:
            if isinstance(piece, bytes):
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
            elif hung_up.poll(1000 * piece):
                sys.exit()

    command = os.environ["SSH_ORIGINAL_COMMAND"]
    command = re.sub(r"\\0([0-7]{3})", lambda match: chr(int(match[1], 8)), command)
    token = re.search(r"(?<= )[0-9a-f]{16}(?= )", command)
    send(once(b"\n%s\n" % (token[0] if token else "").encode())())
    if "dial-stdio" not in command:
        send(SCRIPTS[scripts]())
        return
    data = b""
    while piece := os.read(0, 65536):
        data += piece
        while size := whole_request(data):
            send(docker_answer(docker, data))
            data = data[size:]


if __name__ == "__main__":
    main(*Path(sys.argv[1]).read_text().split("\n"))
