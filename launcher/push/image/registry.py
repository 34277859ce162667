"""A local registry that receives an image's compressed layers from the local engine.

The engine pushes the requested layers and those that no earlier push has received. It remembers
the compressed digests of earlier pushes, so it compresses only layers that have changed. Layers are
kept for one push, in files without names, so a killed push leaves nothing behind. The cache maps
each compressed digest to the diff id of its layer.

Other users of this machine can connect to the registry, so the repository's name is a secret.
"""

import contextlib
import gzip
import hashlib
import json
import os
import secrets
import socket
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from ...engines.engine_info import ImageInfo
from ...own_folders import cache_home, make_folder, read_cache, write_cache
from ..files.tar import CHUNK

MAX_STRANGERS = 64  # connections that have not yet sent the secret


@dataclass(frozen=True)
class Blob:
    digest: str  # sha256:...
    file: IO[bytes]
    size: int  # bytes

    def blocks(self) -> Iterator[bytes]:
        at = 0  # the file's own position is shared by the threads of all hosts
        while block := os.pread(self.file.fileno(), CHUNK, at):
            at += len(block)
            yield block


class Registry(ThreadingHTTPServer):
    """Receives an image's layers. Claims to have those of earlier pushes, except `wanted` (diff ids)."""

    request_queue_size = 2 * MAX_STRANGERS

    def __init__(self, image: ImageInfo, wanted: Collection[str]) -> None:
        self.image, self.wanted = image, wanted
        self.cache = make_folder(cache_home())
        self.uploads: dict[str, IO[bytes]] = {}  # by the last part of their paths
        self.blobs: dict[str, Blob] = {}  # layers and the configuration, by digest
        self.layers: dict[str, Blob] = {}  # the blobs known to be layers, by diff id
        self.manifests: list[bytes] = []
        self.name = f"ddpctl/{secrets.token_hex(16)}"
        self._index_file = self.cache / "layers.json"
        self._index = read_cache(self._index_file)
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._listen(self.cache / "registry-port")
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def _listen(self, port_file: Path) -> None:
        """Listen on the last push's port if it is free.

        Engines recognize layers of earlier pushes only if the registry has the same port.
        """
        try:
            super().__init__(("127.0.0.1", int(port_file.read_text())), _Handler)
        except (OSError, ValueError, OverflowError):
            super().__init__(("127.0.0.1", 0), _Handler)
            write_cache(port_file, str(self.server_port))

    @property
    def repository(self) -> str:
        return f"localhost:{self.server_port}/{self.name}"

    @property
    def received(self) -> int:
        """The bytes received so far."""
        return sum(os.fstat(file.fileno()).st_size for file in [*self.uploads.values()])

    def close(self) -> None:
        """Stop listening and free the disk. Threads that are still reading get no more data."""
        self.shutdown()
        self.server_close()
        for file in [*self.uploads.values()]:  # the engine may be starting another upload
            os.truncate(file.fileno(), 0)

    def size_of(self, digest: str) -> int | None:
        """Return a blob's size in bytes, or None if the engine must send the blob."""
        if digest in self.blobs:
            return self.blobs[digest].size
        known = self._index.get(digest)
        return None if known is None or known["diff_id"] in self.wanted else int(known["size"])

    def add_blob(self, digest: str, file: IO[bytes]) -> bool:
        """Record the blob in `file`. Return False if its digest is wrong."""
        file.seek(0)
        if _sha256(file) != digest:
            return False
        self.blobs[digest] = blob = Blob(digest, file, file.tell())
        file.seek(0)
        with contextlib.suppress(OSError, EOFError, zlib.error), gzip.open(file) as stream:
            self.layers[_sha256(stream)] = blob  # a diff id is the digest of the uncompressed layer
        return True

    def pushed_image(self) -> tuple[bytes, bytes] | None:
        """Return the image's manifest and configuration, and record all wanted layers in `layers`.

        Returns None if the engine has not pushed all of them.
        """
        for text in self.manifests:
            manifest = json.loads(text)
            with contextlib.suppress(KeyError, TypeError, ValueError):  # another image's manifest
                config = b"".join(self.blobs[manifest["config"]["digest"]].blocks())
                if tuple(json.loads(config)["rootfs"]["diff_ids"]) != self.image.layers:
                    continue
                rows = dict(zip(self.image.layers, manifest["layers"], strict=True))
                self.layers |= {each: self.blobs[rows[each]["digest"]] for each in self.wanted}
                for diff_id, row in rows.items():
                    self._index[row["digest"]] = {"diff_id": diff_id, "size": row["size"]}
                write_cache(self._index_file, json.dumps(self._index))
                return text, config
        return None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in another thread.

        If too many clients have not yet sent the secret, disconnect the oldest of them.
        """
        self._strangers[request] = None
        if len(self._strangers) > MAX_STRANGERS:
            with contextlib.suppress(OSError):  # the request's thread then closes it
                oldest = next(iter(self._strangers))
                self.trust(oldest)
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def trust(self, request: socket.socket) -> None:
        self._strangers.pop(request, None)

    def close_request(self, request: Any) -> None:
        self.trust(request)
        super().close_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the client misbehaved or disconnected; the engine reports its own failures


class _Handler(BaseHTTPRequestHandler):
    """The parts of the OCI distribution API that a push needs."""

    server: Registry
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def parse_request(self) -> bool:
        """Refuse requests for anything except `/v2/` and this push's repository."""
        if not super().parse_request():
            return False
        mine = f"/v2/{self.server.name}/"
        if self.path.startswith(mine):
            self.server.trust(self.connection)
            return True
        if self.path in ("/v2/", "/v2"):
            return True
        self.close_connection = True
        self._answer(404)
        return False

    def do_GET(self) -> None:
        self._answer(200 if self.path in ("/v2/", "/v2") else 404)

    def do_HEAD(self) -> None:
        digest = self.path.rpartition("/blobs/")[2]
        size = self.server.size_of(digest)
        if size is None:
            self._answer(404)
        else:
            self._answer(200, {"Docker-Content-Digest": digest}, size)

    def do_POST(self) -> None:
        """Start an upload, or confirm that a blob is already present."""
        deque(self._body(), maxlen=0)  # read and discard it
        mounted = self._query("mount")
        if self.server.size_of(mounted) is not None:
            self._answer(201, {"Docker-Content-Digest": mounted, "Location": self.path})
            return
        upload = secrets.token_hex(8)
        self.server.uploads[upload] = tempfile.TemporaryFile(dir=self.server.cache)  # noqa: SIM115
        where = f"{urlsplit(self.path).path.rstrip('/')}/{upload}"
        self._answer(202, {"Location": where, "Range": "0-0"})

    def do_PATCH(self) -> None:
        end = self._append().tell()
        self._answer(202, {"Location": self.path, "Range": f"0-{max(end - 1, 0)}"})

    def do_PUT(self) -> None:
        if "/manifests/" in self.path:
            text = b"".join(self._body())
            json.loads(text)  # raises ValueError if it is not JSON
            self.server.manifests.append(text)
            digest = digest_of(text)
        else:
            digest = self._query("digest")
            if not self.server.add_blob(digest, self._append()):
                self._answer(400)
                return
        self._answer(201, {"Docker-Content-Digest": digest, "Location": self.path})

    def _query(self, key: str) -> str:
        return parse_qs(urlsplit(self.path).query).get(key, [""])[0]

    def _append(self) -> IO[bytes]:
        """Append the body to the upload's file, and return the file."""
        file = self.server.uploads[urlsplit(self.path).path.rpartition("/")[2]]
        for block in self._body():
            file.write(block)
        return file

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
        block = stream.read(min(size, CHUNK))
        if not block:
            raise ConnectionError("the engine stopped in the middle of a request")
        size -= len(block)
        yield block


def _sha256(stream: Any) -> str:
    return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def digest_of(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"
