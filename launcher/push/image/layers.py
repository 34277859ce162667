"""Layers of an image as archives that `docker load` takes though the layers below are not in them.

Each is an OCI layout and a `docker save` archive at once, as engines from 20.10 on, with either image
store, need one or the other. One archive a layer: a push that is cut goes on at the next layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.errors import DdpctlError, PushFailed
from launcher.push.files import tarstream
from launcher.push.host import Image
from launcher.push.transfer.send import Parcel
from launcher.ssh.node import Node

if TYPE_CHECKING:
    from launcher.push.image.registry import Blob

TAG = "push"  # of the image in ddpctl's registry on loopback
LOAD = ("docker", "load", "-q")
PUSH_TIMEOUT = 3600.0  # seconds
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class NoLayers(PushFailed):
    """The local engine does not hand out single layers; `docker save` is the other way."""


@dataclass(frozen=True)
class Archive:
    """A load: small files, then one layer or none. `image_ids`: what engines may call the result."""

    files: dict[bytes, bytes]
    layer: Blob | None
    image_ids: tuple[str, ...]
    whole: bool

    @property
    def size(self) -> int:
        layer = [self.layer.size] if self.layer else []
        return tarstream.plain_size([*(len(text) for text in self.files.values()), *layer])

    def chunks(self) -> Iterator[bytes]:
        yield b"".join(tarstream.member(name, text) for name, text in self.files.items())
        if self.layer is not None:
            yield tarstream.plain_header(_blob(self.layer.digest), self.layer.size)
            with self.layer.file.open("rb") as stream:
                while block := stream.read(tarstream.CHUNK):
                    yield block
            yield tarstream.padding(self.layer.size)
        yield tarstream.END

    def parcel(self) -> Parcel:
        return Parcel("image", LOAD, self.size, self.chunks)


class Layers:
    """The layers from number `first` on of an image of the local engine."""

    def __init__(self, local: Node, name: str, image: Image, first: int) -> None:
        self._local, self._name, self._image, self._first = local, name, image, first
        self._layers = image.layers
        from launcher.push.image.registry import Registry

        self._registry = Registry(frozenset(image.layers[first:]))
        self._over: PushFailed | None = None
        self._done = threading.Event()
        threading.Thread(target=self._push, daemon=True).start()

    def close(self) -> None:
        if not self._done.is_set():
            self._untag()
        self._registry.close()

    def total(self, patience: float) -> int | None:
        """Bytes of all of them; None when the engine is still at it after `patience` seconds."""
        if not self._done.wait(patience):
            return None
        return sum(blob.size for blob in self._registry.blobs.values())

    def archives(self) -> Iterator[Archive]:
        """One a layer, as the engine gives them, and at last the image itself. NoLayers."""
        for number in range(self._first, len(self._layers) - 1):
            blob = self._blob(self._layers[number])
            yield _partial(self._layers[: number + 1], blob, self._image.architecture)
        last = self._blob(self._layers[-1]) if self._first < len(self._layers) else None
        self._done.wait(PUSH_TIMEOUT)
        found = self._registry.finish(self._layers)
        if found is None:
            raise self._over or NoLayers("the local engine did not push a manifest")
        yield _whole(self._name, *found, layer=last)

    def _blob(self, diff_id: str) -> Blob:
        registry = self._registry
        with registry.news:
            while diff_id not in registry.by_diff_id:
                if self._done.is_set():
                    registry.finish(self._layers)
                    if diff_id in registry.by_diff_id:
                        break
                    raise self._over or NoLayers(f"the local engine did not push {diff_id[:19]}")
                registry.news.wait(1.0)
            return registry.by_diff_id[diff_id]

    def _push(self) -> None:
        tag = f"{self._registry.repository}:{TAG}"
        try:
            for argv in (["tag", self._name, tag], ["push", "-q", tag]):
                done = self._local.run(["docker", *argv], timeout=PUSH_TIMEOUT)
                if done.code != 0:
                    raise NoLayers(done.stderr.decode(errors="replace").strip()[-300:])
        except PushFailed as error:
            self._over = error
        finally:
            self._untag()
            with self._registry.news:
                self._done.set()
                self._registry.news.notify_all()

    def _untag(self) -> None:
        """Also early, as the command may end before this thread does; twice is no harm."""
        _remove(self._local, f"{self._registry.repository}:{TAG}")


def sweep(local: Node) -> None:
    """Takes away the names by which pushes that were killed have left images in the local engine.

    A push that still goes on is known by its registry, which listens on the port in the name. An image
    without another name stays while a container of it is kept.
    """
    look = ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]
    with contextlib.suppress(DdpctlError):  # without an engine there is nothing of it either
        done = local.run([*look, "--filter", "reference=localhost:*/ddpctl"], timeout=60.0)
        for name in done.stdout.decode(errors="replace").split():
            port = re.fullmatch(rf"localhost:(\d+)/ddpctl:{TAG}", name)
            if port is not None and not _listens(int(port[1])):
                _remove(local, name)


def _remove(local: Node, name: str) -> None:
    """The name, not what it stands for under other names."""
    with contextlib.suppress(DdpctlError):
        local.run(["docker", "rmi", "--no-prune", name], timeout=60.0)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _partial(layers: tuple[str, ...], blob: Blob, architecture: str) -> Archive:
    """An image without a name that holds the layers so far, of which only the last is in it."""
    config = _partial_config(layers, architecture)
    # the names of the layers below matter to no engine that has them, only their number does
    rows = [_descriptor(LAYER, diff_id, 1) for diff_id in layers[:-1]]
    rows.append(_descriptor(LAYER, blob.digest, blob.size))
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, _digest(config), len(config)),
            "layers": rows,
        }
    )
    return _archive(manifest, config, None, blob, whole=False)


def _partial_config(layers: tuple[str, ...], architecture: str) -> bytes:
    return _json({"architecture": architecture, "os": "linux", "rootfs": _rootfs(layers)})


def partial_ids(image: Image) -> set[str]:
    """What engines call the partial images of `image`, also those that a cut push has left."""
    ends = range(1, len(image.layers))
    return {_digest(_partial_config(image.layers[:end], image.architecture)) for end in ends}


def _whole(name: str, manifest: bytes, config: bytes, *, layer: Blob | None) -> Archive:
    return _archive(manifest, config, tagged(name), layer, whole=True)


def _archive(
    manifest: bytes, config: bytes, name: str | None, layer: Blob | None, *, whole: bool
) -> Archive:
    parsed = json.loads(manifest)
    row = _descriptor(parsed.get("mediaType", MANIFEST), _digest(manifest), len(manifest))
    if name is not None:
        row["annotations"] = {
            "io.containerd.image.name": qualified(name),
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        }
    layers = [_blob(layer["digest"]).decode() for layer in parsed["layers"]]
    saved = [
        {
            "Config": _blob(_digest(config)).decode(),
            "RepoTags": [name] if name else None,
            "Layers": layers,
        }
    ]
    files = {
        b"oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        b"index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [row]}),
        b"manifest.json": _json(saved),
        _blob(_digest(config)): config,
        _blob(_digest(manifest)): manifest,
    }
    return Archive(files, layer, (_digest(config), _digest(manifest)), whole)


def tagged(name: str) -> str | None:
    """`name` with its tag; None for a digest or an id, which name content and not a tag."""
    if "@" in name or name.startswith("sha256:"):
        return None
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def qualified(name: str) -> str:
    """As containerd has it: with the registry, and `library/` where Docker Hub would."""
    first, slash, _ = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    if "." in first or ":" in first or first == "localhost":
        return name
    return f"docker.io/{name}"


def _rootfs(layers: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "layers", "diff_ids": list(layers)}


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _blob(digest: str) -> bytes:
    return f"blobs/sha256/{digest.partition(':')[2]}".encode()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"
