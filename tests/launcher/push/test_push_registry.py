"""The registry on loopback, as another user of this machine could try to use it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import os
import socket
import threading
from collections.abc import Iterator

import pytest
from registry_client import ask, digest_of, port, push_manifest, upload

from launcher.engines.engine_info import ImageInfo
from launcher.push.image.registry import MAX_STRANGERS, Registry

LAYER = b"a layer"
DIFF_ID = f"sha256:{hashlib.sha256(LAYER).hexdigest()}"
CONFIG = json.dumps({"rootfs": {"diff_ids": [DIFF_ID]}}).encode()


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry(ImageInfo("sha256:1", (DIFF_ID,)), [DIFF_ID])
    yield registry
    registry.close()


def test_the_layers_and_the_configuration_of_the_image_are_accepted(registry: Registry) -> None:
    layer = gzip.compress(LAYER)
    assert upload(registry.repository, layer) == 201
    assert registry.layers[DIFF_ID].digest == digest_of(layer)  # before the manifest
    assert upload(registry.repository, CONFIG) == 201
    assert registry.pushed_image() is None
    push_manifest(registry.repository, CONFIG, layer)
    pushed = registry.pushed_image()
    assert pushed is not None
    assert pushed[1] == CONFIG
    assert registry.layers[DIFF_ID].digest == digest_of(layer)


def test_layers_have_no_names_so_a_killed_push_leaves_none(registry: Registry) -> None:
    layer = gzip.compress(LAYER)
    assert upload(registry.repository, layer) == 201
    assert sorted(path.name for path in registry.cache.iterdir()) == ["registry-port"]
    for _ in range(2):  # each host reads all of it
        assert b"".join(registry.layers[DIFF_ID].blocks()) == layer
    registry.close()
    assert registry.received == 0


def test_the_engine_may_start_an_upload_while_the_registry_is_closed(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = http.client.HTTPConnection("localhost", port(registry.repository))
    engine.request("POST", f"/v2/{registry.name}/blobs/uploads/")
    assert engine.getresponse().read() == b""

    def truncate(file: int, size: int) -> None:
        engine.request("POST", f"/v2/{registry.name}/blobs/uploads/")
        assert engine.getresponse().read() == b""
        os.ftruncate(file, size)

    with monkeypatch.context() as slow_disk:
        slow_disk.setattr(os, "truncate", truncate)
        registry.close()
    assert len(registry.uploads) == 2
    engine.close()


def test_a_layer_whose_compression_is_unknown_is_known_by_the_manifest(registry: Registry) -> None:
    layer = b"\x28\xb5\x2f\xfd zstd"
    for blob in (layer, CONFIG):
        assert upload(registry.repository, blob) == 201
    assert DIFF_ID not in registry.layers
    push_manifest(registry.repository, CONFIG, layer)
    assert registry.pushed_image()
    assert registry.layers[DIFF_ID].digest == digest_of(layer)


def test_without_the_secret_nothing_can_be_read_or_sent(registry: Registry) -> None:
    data = gzip.compress(LAYER)
    assert upload(registry.repository, data) == 201
    digest = digest_of(data)
    assert ask(registry.repository, "HEAD", f"/v2/{registry.name}/blobs/{digest}").status == 200
    for name in ("ddpctl", "ddpctl/0", "x"):
        assert upload(f"localhost:{port(registry.repository)}/{name}", data) == 404
        assert ask(registry.repository, "HEAD", f"/v2/{name}/blobs/{digest}").status == 404
        assert ask(registry.repository, "PUT", f"/v2/{name}/manifests/push", b"{}").status == 404
    assert not registry.manifests
    other = Registry(registry.image, registry.wanted)
    other.close()
    assert other.name != registry.name


def test_a_blob_that_is_damaged_is_refused(registry: Registry) -> None:
    begun = ask(registry.repository, "POST", f"/v2/{registry.name}/blobs/uploads/")
    where = f"{begun.headers['Location']}?digest={digest_of(b'other')}"
    assert ask(registry.repository, "PUT", where, b"data").status == 400
    assert not registry.blobs


@pytest.mark.parametrize("config", [b'{"rootfs": {"diff_ids": []}}', b"{}", b"rubbish"])
def test_another_image_is_not_taken_for_the_wanted_one(registry: Registry, config: bytes) -> None:
    for blob in (b"another layer", config):
        assert upload(registry.repository, blob) == 201
    push_manifest(registry.repository, config, b"another layer")
    push_manifest(registry.repository, b"config that was not sent", b"another layer")
    assert registry.pushed_image() is None


def test_nonsense_is_answered_without_a_traceback(
    registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    name = registry.name.encode()
    for request in (
        b"PUT /v2/%s/blobs/uploads/../../x HTTP/1.1\r\n\r\n",
        b"PATCH /v2/%s/blobs/uploads/tmpnone HTTP/1.1\r\nContent-Length: no\r\n\r\n",
        b"PUT /v2/%s/manifests/push HTTP/1.1\r\nContent-Length: 3\r\n\r\n{{{",
        b"POST /v2/%s/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"\x16\x03\x01 %s\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port(registry.repository)), 5) as link:
            link.sendall(request % name)
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
    assert upload(registry.repository, CONFIG) == 201
    assert capfd.readouterr().err == ""


def test_idle_strangers_neither_pile_up_nor_keep_the_engine_out(registry: Registry) -> None:
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port(registry.repository)), 5)
            )
            for _ in range(MAX_STRANGERS + 20)
        ]
        assert idle[0].recv(1) == b""  # hung up on
        assert upload(registry.repository, CONFIG) == 201
        threads = [each for each in threading.enumerate() if "process_request" in each.name]
        assert len(threads) <= MAX_STRANGERS + 20


def test_a_connection_that_has_shown_the_secret_is_kept(registry: Registry) -> None:
    engine = http.client.HTTPConnection("127.0.0.1", port(registry.repository), timeout=5)
    path = f"/v2/{registry.name}/blobs/sha256:0"
    engine.request("HEAD", path)
    assert engine.getresponse().read() == b""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_STRANGERS + 20):
            stack.enter_context(
                socket.create_connection(("127.0.0.1", port(registry.repository)), 5)
            )
        ask(registry.repository, "GET", "/v2/")  # so the others have been accepted
        engine.request("HEAD", path)
        assert engine.getresponse().status == 404
