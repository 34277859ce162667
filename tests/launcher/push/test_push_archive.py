"""The archive that completes an image on a host that has its lower layers."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.push.image.archive import Archive, whole_archive
from launcher.push.image.registry import Blob

DIFF_IDS = [f"sha256:{digit * 64}" for digit in "123"]
COMPRESSED = [f"sha256:{digit * 64}" for digit in "abc"]
CONFIG = json.dumps({"rootfs": {"diff_ids": DIFF_IDS}}).encode()
MANIFEST = json.dumps(
    {"config": {}, "layers": [{"digest": digest, "size": 9} for digest in COMPRESSED]}
).encode()


def layers_of(archive: Archive) -> list[str]:
    """The layers that the image's manifest names, found as an engine finds it."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.chunks()))) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        [row] = json.loads(read("index.json"))["manifests"]
        manifest = read(f"blobs/sha256/{row['digest'].removeprefix('sha256:')}")
        assert row["digest"] == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        return [layer["digest"] for layer in json.loads(manifest)["layers"]]


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Blob]:
    (tmp_path / "layer").write_bytes(b"nine byte")
    with (tmp_path / "layer").open("rb") as file:
        yield Blob(COMPRESSED[2], file, 9)


def test_docker_gets_the_manifest_as_it_is(top: Blob) -> None:
    assert layers_of(whole_archive(MANIFEST, CONFIG, top)) == COMPRESSED


def test_podman_gets_the_layers_that_are_not_in_the_archive_by_their_diff_ids(top: Blob) -> None:
    archive = whole_archive(MANIFEST, CONFIG, top, by_diff_id=True)
    assert layers_of(archive) == [*DIFF_IDS[:2], COMPRESSED[2]]
    assert layers_of(whole_archive(MANIFEST, CONFIG, None, by_diff_id=True)) == DIFF_IDS
