"""A registry on loopback that takes an image's layers out of the local engine, compressed.

`docker push` to it sends only layers that are asked for, and at once: the engine remembers the
compressed digest of what it has pushed before, so the next push of an image costs what has changed.
Layers are kept for the push only; what is remembered is which digest is which layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import socket
import tempfile
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from launcher.state import cache_home

BLOCK = 1 << 20


@dataclass(frozen=True)
class Blob:
    digest: str  # sha256:...
    file: Path
    size: int  # bytes


class Registry:
    """wanted: the diffIDs of the layers that shall come; the engine is told that others are here."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self.wanted = wanted
        cache = cache_home()
        cache.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix="layers.", dir=cache))
        self.blobs: dict[str, Blob] = {}
        self.by_diff_id: dict[str, Blob] = {}
        self.manifests: list[bytes] = []
        self.news = threading.Condition()
        self._index_file = cache / "layers.json"
        self._index = _read_json(self._index_file)
        self._server = _server(self, cache / "registry-port")
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def repository(self) -> str:
        """The same from push to push, as far as its port is free: the engine remembers by name."""
        return f"localhost:{self._server.server_address[1]}/ddpctl"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def has(self, digest: str) -> int | None:
        """The size that the engine is told, None to make it send the blob."""
        if digest in self.blobs:
            return self.blobs[digest].size
        known = self._index.get(digest)
        if known is None or known["diff_id"] in self.wanted:
            return None
        return int(known["size"])

    def arrived(self, blob: Blob) -> None:
        diff_id = _diff_id(blob.file)
        with self.news:
            self.blobs[blob.digest] = blob
            if diff_id is not None:
                self.by_diff_id[diff_id] = blob
            self.news.notify_all()

    def finish(self, layers: tuple[str, ...]) -> tuple[bytes, bytes] | None:
        """Manifest and config of the image with these layers, once the engine has pushed all."""
        for text in self.manifests:
            manifest = json.loads(text)
            blob = self.blobs.get((manifest.get("config") or {}).get("digest", ""))
            if blob is None:
                continue
            config = blob.file.read_bytes()
            if tuple(json.loads(config)["rootfs"]["diff_ids"]) == layers:
                self._learn(layers, manifest["layers"])
                return text, config
        return None

    def _learn(self, layers: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
        with self.news:
            for diff_id, row in zip(layers, rows, strict=True):
                self._index[row["digest"]] = {"diff_id": diff_id, "size": row["size"]}
                if row["digest"] in self.blobs:
                    self.by_diff_id[diff_id] = self.blobs[row["digest"]]
            self.news.notify_all()
        with contextlib.suppress(OSError):
            draft = self.folder / "index"
            draft.write_text(json.dumps(self._index))
            draft.replace(self._index_file)


def _server(registry: Registry, memory: Path) -> ThreadingHTTPServer:
    """On the port of last time if it is free."""

    class Handler(_Handler):
        kept = registry

    try:
        return ThreadingHTTPServer(("127.0.0.1", int(memory.read_text())), Handler)
    except (OSError, ValueError, OverflowError):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with contextlib.suppress(OSError):
        memory.write_text(str(server.server_address[1]))
    return server


class _Handler(BaseHTTPRequestHandler):
    """As much of the distribution API as a push needs."""

    kept: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._answer(200 if self.path in ("/v2/", "/v2") else 404)

    def do_HEAD(self) -> None:
        digest = self.path.rpartition("/blobs/")[2]
        size = self.kept.has(digest) if "/blobs/" in self.path else None
        if size is None:
            self._answer(404)
        else:
            self._answer(200, {"Docker-Content-Digest": digest}, size)

    def do_POST(self) -> None:
        self._drop_body()
        with tempfile.NamedTemporaryFile(dir=self.kept.folder, delete=False) as file:
            name = Path(file.name).name
        base = urlsplit(self.path).path.rstrip("/")
        self._answer(202, {"Location": f"{base}/{name}", "Range": "0-0"})

    def do_PATCH(self) -> None:
        with self._file().open("ab") as file:
            for block in self._body():
                file.write(block)
            end = file.tell()
        self._answer(202, {"Location": self.path, "Range": f"0-{max(end - 1, 0)}"})

    def do_PUT(self) -> None:
        if "/manifests/" in self.path:
            text = b"".join(self._body())
            self.kept.manifests.append(text)
            self._answer(201, {"Docker-Content-Digest": _sha256_of(text)})
            return
        with self._file().open("ab") as file:
            for block in self._body():
                file.write(block)
        digest = parse_qs(urlsplit(self.path).query).get("digest", [""])[0]
        with self._file().open("rb") as file:
            right = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() == digest
        if not right:
            self._answer(400)
            return
        self.kept.arrived(Blob(digest, self._file(), self._file().stat().st_size))
        self._answer(201, {"Docker-Content-Digest": digest, "Location": self.path})

    def _file(self) -> Path:
        name = urlsplit(self.path).path.rpartition("/")[2]
        if not re.fullmatch(r"tmp\w+", name):
            raise ValueError("no such upload")
        return self.kept.folder / name

    def _drop_body(self) -> None:
        for _ in self._body():
            pass

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield from _exactly(self.rfile, size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            yield from _exactly(self.rfile, int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, headers: dict[str, str] | None = None, size: int = 0) -> None:
        self.send_response(code)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()


def _exactly(stream: Any, size: int) -> Iterator[bytes]:
    while size:
        block = stream.read(min(size, BLOCK))
        if not block:
            raise ConnectionError("the engine stopped in the middle")
        size -= len(block)
        yield block


def _diff_id(file: Path) -> str | None:
    """The digest of a layer uncompressed; None where the standard library cannot tell."""
    digest, undo = hashlib.sha256(), zlib.decompressobj(31)
    with file.open("rb") as stream:
        if stream.read(2) != b"\x1f\x8b":
            return None
        stream.seek(0)
        try:
            for block in _blocks(stream):
                digest.update(undo.decompress(block))
        except zlib.error:
            return None
    return f"sha256:{digest.hexdigest()}" if undo.eof else None


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(BLOCK):
        yield block


def _sha256_of(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found
