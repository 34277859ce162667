"""Archives of a local image, each with at most one layer, for an engine that has all lower layers.

With such archives, a push sends only the missing layers, even after an interrupted push.

Each archive is both an OCI layout and a `docker save` archive. An engine (Docker 20.10 or later)
needs one or the other, depending on its version and image store.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.filesize import decimal

from ...engines.engine_info import ImageInfo
from ...errors import DdpctlError, PushFailed
from ...ssh.background import in_background
from ..files import tar
from ..push_progress import PushProgress
from .registry import Blob, Registry, digest_of

if TYPE_CHECKING:
    from ...engines.image_store import ImageStore

LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TAG = "push"  # tag of the image in our local registry
TICK = 0.2  # seconds


class NoLayers(PushFailed):
    """Raised if the local engine does not export single layers. It can still save whole images."""


@dataclass(frozen=True)
class Archive:
    """The contents of an image archive: small files, then at most one layer.

    image_ids: ids that an engine may give the loaded image. partial: whether the image has only the
    lower layers.
    """

    files: dict[str, bytes]
    layer: Blob | None
    image_ids: tuple[str, ...]
    partial: bool = False

    def chunks(self) -> Iterator[bytes]:
        members = [tar.small_file(name, text) for name, text in self.files.items()]
        if self.layer:
            info = tar.file_info(_blob(self.layer.digest), self.layer.size)
            members.append((info, self.layer.blocks()))
        return tar.archive(members)


@contextmanager
def layer_archives(
    local: ImageStore,
    name: str,
    image: ImageInfo,
    first: int,
    progress: PushProgress,
    *,
    by_diff_id: bool,
) -> Iterator[Iterator[Archive]]:
    """Context manager: have the local engine push layers to our registry, from number `first` on.

    Yields an iterator of archives, one per layer, which waits until the engine has pushed the next
    layer and raises NoLayers if the engine fails. The last archive contains the image. All archives
    can be read until the context ends. by_diff_id: see `whole_archive`.
    """
    missing = image.layers[first:]

    def push() -> tuple[bytes, bytes]:
        try:
            local.push_to(name, registry.repository, TAG)
        except DdpctlError as error:
            raise NoLayers(str(error)) from None
        pushed = registry.pushed_image()
        if pushed is None:
            raise NoLayers("the local engine did not push all layers")
        progress.update("image", total=sum(blob.size for blob in registry.blobs.values()))
        return pushed

    def archives() -> Iterator[Archive]:
        pushing = in_background(push)

        def wait_for(number: int) -> None:
            size = decimal(registry.received)
            doing = f"compressing layer {number} of {len(missing)} ({size} compressed so far)"
            progress.update("image", doing=doing if missing else "waiting for the local engine")
            if wait([pushing], TICK).done:
                pushing.result()  # raises NoLayers

        for number, diff_id in enumerate(missing[:-1], 1):
            while diff_id not in registry.layers:
                wait_for(number)
            progress.update("image", doing="")
            yield partial_archive(image, first + number, registry.layers[diff_id])
        while not pushing.done():  # the manifest comes last
            wait_for(len(missing))
        manifest, config = pushing.result()
        progress.update("image", doing="")
        top = registry.layers[missing[-1]] if missing else None
        yield whole_archive(manifest, config, top, by_diff_id=by_diff_id)

    with closing(Registry(image, missing)) as registry:
        try:
            yield archives()
        finally:
            local.untag(f"{registry.repository}:{TAG}")


def remove_stale_tags(local: ImageStore) -> None:
    """Remove image names that killed pushes left behind in the local engine.

    A name is still in use if a push's registry listens on the port in that name.
    """
    for name in local.tags("localhost:*/ddpctl/*"):
        if port := re.fullmatch(rf"localhost:(\d+)/ddpctl/\w+:{TAG}", name):
            try:
                socket.create_connection(("127.0.0.1", int(port[1])), 1.0).close()
            except OSError:
                local.untag(name)


def partial_archive(image: ImageInfo, count: int, layer: Blob) -> Archive:
    """Return an archive of an image that has the first `count` layers.

    The archive contains only the last of these layers.
    """
    config = _partial_config(image, count)
    rows = [*_lower(image.layers[: count - 1]), _descriptor(LAYER, layer.digest, layer.size)]
    described = _descriptor(CONFIG, digest_of(config), len(config))
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": rows}
    return replace(_archive(_json(manifest), config, layer), partial=True)


def whole_archive(
    manifest: bytes, config: bytes, layer: Blob | None, *, by_diff_id: bool = False
) -> Archive:
    """Return an archive of the image itself.

    The archive does not name the image, so the host's older image keeps the name until the new one
    is loaded. If the name moved earlier, containerd would delete layers that both images share.

    layer: the image's last layer, the only one in the archive; None if the engine has all layers.
    by_diff_id: refer to the other layers by diff id, for an engine that does not know their
    compressed digests.
    """
    if by_diff_id:
        parsed = json.loads(manifest)
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
        rows = _lower(diff_ids[:-1] if layer else diff_ids)
        manifest = _json({**parsed, "layers": rows + parsed["layers"][len(rows) :]})
    return _archive(manifest, config, layer)


def partial_ids(image: ImageInfo) -> set[str]:
    """Return the ids that partial images of `image` may have, including those of interrupted pushes."""
    return {digest_of(_partial_config(image, count)) for count in range(1, len(image.layers))}


def _archive(manifest: bytes, config: bytes, layer: Blob | None) -> Archive:
    parsed = json.loads(manifest)
    row = _descriptor(parsed.get("mediaType", MANIFEST), digest_of(manifest), len(manifest))
    saved = {
        "Config": _blob(digest_of(config)),
        "RepoTags": None,
        "Layers": [_blob(row["digest"]) for row in parsed["layers"]],
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [row]}),
        "manifest.json": _json([saved]),
        _blob(digest_of(config)): config,
        _blob(digest_of(manifest)): manifest,
    }
    return Archive(files, layer, (digest_of(config), digest_of(manifest)))


def _partial_config(image: ImageInfo, count: int) -> bytes:
    rootfs = {"type": "layers", "diff_ids": list(image.layers[:count])}
    architecture = image.architecture or "amd64"
    return _json({"architecture": architecture, "os": "linux", "rootfs": rootfs})


def _lower(diff_ids: Sequence[str]) -> list[dict[str, object]]:
    """Describe layers that the engine already has. It only needs to know how many there are."""
    return [_descriptor(LAYER, diff_id, 1) for diff_id in diff_ids]


def _descriptor(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
