"""Image archives with a single layer, for an engine that has the layers below.

Each is both an OCI layout and a `docker save` archive. Engines need one or the other; which one
depends on their version (from 20.10 on) and image store.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...engines.engine_info import ImageInfo
from ..files import tar

LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True)
class Blob:
    digest: str  # sha256:...
    file: Path
    size: int  # bytes

    def blocks(self) -> Iterator[bytes]:
        with self.file.open("rb") as stream:
            yield from iter(partial(stream.read, tar.CHUNK), b"")


@dataclass(frozen=True)
class Archive:
    """Small files, then at most one layer. image_ids: ids that an engine may give the loaded image."""

    files: dict[str, bytes]
    layer: Blob | None
    image_ids: tuple[str, ...]
    partial: bool  # an unnamed image of the lower layers only

    @property
    def size(self) -> int:
        layer = [self.layer.size] if self.layer else []
        return tar.size_of([*(len(text) for text in self.files.values()), *layer])

    def chunks(self) -> Iterator[bytes]:
        members = [tar.small_file(name, text) for name, text in self.files.items()]
        if self.layer:
            info = tar.file_info(_blob(self.layer.digest), self.layer.size)
            members.append((info, self.layer.blocks()))
        return tar.archive(members)


def partial_archive(image: ImageInfo, count: int, layer: Blob) -> Archive:
    """Return an unnamed image of the first `count` layers. The archive contains only the last one."""
    config = _partial_config(image, count)
    rows = [*_lower(image.layers[: count - 1]), _descriptor(LAYER, layer.digest, layer.size)]
    described = _descriptor(CONFIG, digest_of(config), len(config))
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": rows}
    return _archive(None, _json(manifest), config, layer, partial=True)


def whole_archive(
    name: str, manifest: bytes, config: bytes, layer: Blob | None, *, by_diff_id: bool = False
) -> Archive:
    """Return the image itself. The archive contains only `layer`, its last one, if given.

    by_diff_id: refer to the other layers by diff id, for an engine that does not know their
    compressed digests.
    """
    if by_diff_id:
        parsed = json.loads(manifest)
        diff_ids = json.loads(config)["rootfs"]["diff_ids"]
        rows = _lower(diff_ids[:-1] if layer else diff_ids)
        manifest = _json({**parsed, "layers": rows + parsed["layers"][len(rows) :]})
    return _archive(with_tag(name), manifest, config, layer, partial=False)


def partial_ids(image: ImageInfo) -> set[str]:
    """Return the possible ids of `image`'s partial images, including those of an interrupted push."""
    return {digest_of(_partial_config(image, count)) for count in range(1, len(image.layers))}


def with_tag(name: str) -> str | None:
    """Return `name` with its tag (default: latest), or None if it is an id or has a digest."""
    if "@" in name or name.startswith("sha256:"):
        return None
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def qualified(name: str) -> str:
    """Return the name as containerd stores it: with the registry, and Docker Hub's `library/`."""
    first, slash, _ = name.partition("/")
    if slash and (first == "localhost" or re.search("[.:]", first)):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def digest_of(text: bytes) -> str:
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _archive(
    name: str | None, manifest: bytes, config: bytes, layer: Blob | None, *, partial: bool
) -> Archive:
    parsed = json.loads(manifest)
    row = _descriptor(parsed.get("mediaType", MANIFEST), digest_of(manifest), len(manifest))
    if name is not None:
        row["annotations"] = {
            "io.containerd.image.name": qualified(name),
            "org.opencontainers.image.ref.name": name.rpartition(":")[2],
        }
    saved = {
        "Config": _blob(digest_of(config)),
        "RepoTags": [name] if name else None,
        "Layers": [_blob(row["digest"]) for row in parsed["layers"]],
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [row]}),
        "manifest.json": _json([saved]),
        _blob(digest_of(config)): config,
        _blob(digest_of(manifest)): manifest,
    }
    return Archive(files, layer, (digest_of(config), digest_of(manifest)), partial)


def _partial_config(image: ImageInfo, count: int) -> bytes:
    rootfs = {"type": "layers", "diff_ids": list(image.layers[:count])}
    architecture = image.architecture or "amd64"
    return _json({"architecture": architecture, "os": "linux", "rootfs": rootfs})


def _lower(diff_ids: Sequence[str]) -> list[dict[str, object]]:
    """Describe layers that the engine already has. It needs to know only how many there are."""
    return [_descriptor(LAYER, diff_id, 1) for diff_id in diff_ids]


def _descriptor(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.partition(':')[2]}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
