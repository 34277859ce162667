"""A registry on loopback that takes an image's layers out of the local engine, compressed.

The engine pushes only the layers that are asked for, and remembers the compressed digest of what it
has pushed before: after a change, a push compresses only the change. Layers are kept for one push;
which compressed digest belongs to which layer is kept in the cache.

Other users of this machine can connect, so the repository's name holds a secret and nothing but the
image is accepted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import socket
import tempfile
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from ...engines.engine_info import ImageInfo
from ...state import cache_home, make_folder, write_cache
from .archive import Blob, digest_of

BLOCK = 1 << 20  # bytes
MAX_DOCUMENT = 4 << 20  # bytes in a manifest or a configuration: what registries allow


class Registry:
    """wanted: the layers (diff ids) to receive. For the others, the engine gets the answer that they
    are here."""

    def __init__(self, image: ImageInfo, wanted: frozenset[str]) -> None:
        self.image, self.wanted = image, wanted
        cache = cache_home()
        self.folder = Path(tempfile.mkdtemp(prefix="layers.", dir=make_folder(cache)))
        self.blobs: dict[str, Blob] = {}
        self.by_diff_id: dict[str, Blob] = {}
        self.manifests: list[bytes] = []
        self.changed = threading.Condition()
        self.name = f"ddpctl/{secrets.token_hex(16)}"
        self._index_file = cache / "layers.json"
        self._index = _read_index(self._index_file)
        self._server = _server(self, cache / "registry-port")
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def repository(self) -> str:
        return f"localhost:{self._server.server_address[1]}/{self.name}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def size_of(self, digest: str) -> int | None:
        """The size to tell the engine; None to make it send the blob."""
        if digest in self.blobs:
            return self.blobs[digest].size
        known = self._index.get(digest)
        if known is None or known["diff_id"] in self.wanted:
            return None
        return int(known["size"])

    def add_blob(self, digest: str, file: Path) -> bool:
        """False if the file does not match its digest, or is not part of the image. zstd is accepted
        unread: only what the manifest lists is used."""
        with file.open("rb") as stream:
            if f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}" != digest:
                return False
        diff_id = _diff_id(file)
        blob = Blob(digest, file, file.stat().st_size)
        if diff_id not in self.image.layers and not _is_zstd(file) and self._config(blob) is None:
            return False
        with self.changed:
            self.blobs[digest] = blob
            if diff_id is not None:
                self.by_diff_id[diff_id] = blob
            self.changed.notify_all()
        return True

    def finish(self) -> tuple[bytes, bytes] | None:
        """Manifest and configuration of the image, once the engine has pushed all of it."""
        for text in self.manifests:
            manifest = json.loads(text)
            blob = self.blobs.get((manifest.get("config") or {}).get("digest", ""))
            config = self._config(blob) if blob else None
            if config is not None:
                self._learn(manifest["layers"])
                return text, config
        return None

    def _config(self, blob: Blob) -> bytes | None:
        """The blob's content if it is the configuration of this push's image."""
        if blob.size > MAX_DOCUMENT:
            return None
        text = blob.file.read_bytes()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if tuple(json.loads(text)["rootfs"]["diff_ids"]) == self.image.layers:
                return text
        return None

    def _learn(self, rows: list[dict[str, Any]]) -> None:
        with self.changed:
            for diff_id, row in zip(self.image.layers, rows, strict=True):
                self._index[row["digest"]] = {"diff_id": diff_id, "size": row["size"]}
                if row["digest"] in self.blobs:
                    self.by_diff_id[diff_id] = self.blobs[row["digest"]]
            self.changed.notify_all()
        write_cache(self._index_file, json.dumps(self._index))


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that speaks nonsense or hangs up; the engine reports its own failures


def _server(registry: Registry, port_file: Path) -> ThreadingHTTPServer:
    """On the port of the last push if it is free: the engine reuses layers within one registry."""

    class Handler(_Handler):
        pass

    Handler.registry = registry
    try:
        return _Server(("127.0.0.1", int(port_file.read_text())), Handler)
    except (OSError, ValueError, OverflowError):
        server = _Server(("127.0.0.1", 0), Handler)
    write_cache(port_file, str(server.server_address[1]))
    return server


class _Handler(BaseHTTPRequestHandler):
    """As much of the distribution API as a push needs."""

    registry: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def parse_request(self) -> bool:
        """Refuses requests for anything but this push's repository."""
        if not super().parse_request():
            return False
        if self.path in ("/v2/", "/v2") or self.path.startswith(f"/v2/{self.registry.name}/"):
            return True
        self.close_connection = True
        self._answer(404)
        return False

    def do_GET(self) -> None:
        self._answer(200 if self.path in ("/v2/", "/v2") else 404)

    def do_HEAD(self) -> None:
        digest = self.path.rpartition("/blobs/")[2]
        size = self.registry.size_of(digest)
        if size is None:
            self._answer(404)
        else:
            self._answer(200, {"Docker-Content-Digest": digest}, size)

    def do_POST(self) -> None:
        """Begins an upload, unless the engine asks to reuse a blob that counts as here."""
        for _ in self._body():
            pass
        mounted = self._query("mount")
        if self.registry.size_of(mounted) is not None:
            self._answer(201, {"Docker-Content-Digest": mounted, "Location": self.path})
            return
        with tempfile.NamedTemporaryFile(dir=self.registry.folder, delete=False) as file:
            name = Path(file.name).name
        base = urlsplit(self.path).path.rstrip("/")
        self._answer(202, {"Location": f"{base}/{name}", "Range": "0-0"})

    def do_PATCH(self) -> None:
        end = self._append()
        self._answer(202, {"Location": self.path, "Range": f"0-{max(end - 1, 0)}"})

    def do_PUT(self) -> None:
        if "/manifests/" in self.path:
            self._put_manifest()
            return
        self._append()
        digest = self._query("digest")
        if self.registry.add_blob(digest, self._file()):
            self._answer(201, {"Docker-Content-Digest": digest, "Location": self.path})
        else:
            self._file().unlink()
            self._answer(400)

    def _put_manifest(self) -> None:
        text = b""
        for block in self._body():
            text += block
            if len(text) > MAX_DOCUMENT:
                raise ValueError("too large")
        if isinstance(json.loads(text), dict):
            self.registry.manifests.append(text)
            self._answer(201, {"Docker-Content-Digest": digest_of(text)})
        else:
            self._answer(400)

    def _query(self, key: str) -> str:
        return parse_qs(urlsplit(self.path).query).get(key, [""])[0]

    def _file(self) -> Path:
        name = urlsplit(self.path).path.rpartition("/")[2]
        if not re.fullmatch(r"tmp\w+", name):
            raise ValueError("no such upload")
        return self.registry.folder / name

    def _append(self) -> int:
        with self._file().open("r+b") as file:
            file.seek(0, 2)
            for block in self._body():
                file.write(block)
            return file.tell()

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
    """The digest of a layer without compression; None if it is not gzip."""
    digest, gzip = hashlib.sha256(), zlib.decompressobj(31)
    with file.open("rb") as stream:
        try:
            for block in _blocks(stream):
                digest.update(gzip.decompress(block))
        except zlib.error:
            return None
    return f"sha256:{digest.hexdigest()}" if gzip.eof else None


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    while block := stream.read(BLOCK):
        yield block


def _is_zstd(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"\x28\xb5\x2f\xfd"


def _read_index(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
