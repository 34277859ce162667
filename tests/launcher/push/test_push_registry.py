"""The registry on loopback, as another user of this machine could try to use it."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator

import pytest

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


def port(registry: Registry) -> int:
    return int(registry.repository.partition("/")[0].partition(":")[2])


def ask(registry: Registry, method: str, path: str, body: bytes = b"") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port(registry), timeout=5)
    connection.request(method, path, body)
    answer = connection.getresponse()
    if method != "HEAD":
        answer.read()
    return answer


def upload(registry: Registry, data: bytes, name: str = "") -> int:
    """The status of the last step of an upload as the engine does it."""
    begun = ask(registry, "POST", f"/v2/{name or registry.name}/blobs/uploads/")
    if begun.status != 202:
        return begun.status
    digest = digest_of(data)
    return ask(registry, "PUT", f"{begun.headers['Location']}?digest={digest}", data).status


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def push_manifest(registry: Registry, config: bytes, layer: bytes) -> None:
    rows = [{"digest": digest_of(layer), "size": len(layer)}]
    text = json.dumps({"config": {"digest": digest_of(config)}, "layers": rows}).encode()
    path = f"/v2/{registry.name}/manifests/push"
    assert ask(registry, "PUT", path, text).status == 201


def test_the_layers_and_the_configuration_of_the_image_are_accepted(registry: Registry) -> None:
    layer = gzip.compress(LAYER)
    assert upload(registry, layer) == 201
    assert upload(registry, CONFIG) == 201
    assert registry.pushed_image() is None
    push_manifest(registry, CONFIG, layer)
    pushed = registry.pushed_image()
    assert pushed is not None
    assert pushed[1] == CONFIG
    assert [blob.digest for blob in pushed[2]] == [digest_of(layer)]


def test_without_the_secret_nothing_can_be_read_or_sent(registry: Registry) -> None:
    data = gzip.compress(LAYER)
    assert upload(registry, data) == 201
    digest = digest_of(data)
    assert ask(registry, "HEAD", f"/v2/{registry.name}/blobs/{digest}").status == 200
    for name in ("ddpctl", "ddpctl/0", "x"):
        assert upload(registry, data, name) == 404
        assert ask(registry, "HEAD", f"/v2/{name}/blobs/{digest}").status == 404
        assert ask(registry, "PUT", f"/v2/{name}/manifests/push", b"{}").status == 404
    assert not registry.manifests
    other = Registry(registry.image, registry.wanted)
    other.close()
    assert other.name != registry.name


def test_a_blob_that_is_damaged_is_refused(registry: Registry) -> None:
    begun = ask(registry, "POST", f"/v2/{registry.name}/blobs/uploads/")
    where = f"{begun.headers['Location']}?digest={digest_of(b'other')}"
    assert ask(registry, "PUT", where, b"data").status == 400
    assert not registry.blobs
    assert not list(registry.folder.iterdir())


@pytest.mark.parametrize("config", [b'{"rootfs": {"diff_ids": []}}', b"{}", b"rubbish"])
def test_another_image_is_not_taken_for_the_wanted_one(registry: Registry, config: bytes) -> None:
    for blob in (b"another layer", config):
        assert upload(registry, blob) == 201
    push_manifest(registry, config, b"another layer")
    push_manifest(registry, b"config that was not sent", b"another layer")
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
        with socket.create_connection(("127.0.0.1", port(registry)), 5) as link:
            link.sendall(request % name)
            link.shutdown(socket.SHUT_WR)
            while link.recv(4096):
                pass
    assert upload(registry, CONFIG) == 201
    assert capfd.readouterr().err == ""


def test_idle_strangers_neither_pile_up_nor_keep_the_engine_out(registry: Registry) -> None:
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port(registry)), 5))
            for _ in range(MAX_STRANGERS + 20)
        ]
        assert idle[0].recv(1) == b""  # hung up on
        assert upload(registry, CONFIG) == 201
        threads = [each for each in threading.enumerate() if "process_request" in each.name]
        assert len(threads) <= MAX_STRANGERS + 20


def test_a_connection_that_has_shown_the_secret_is_kept(registry: Registry) -> None:
    engine = http.client.HTTPConnection("127.0.0.1", port(registry), timeout=5)
    path = f"/v2/{registry.name}/blobs/sha256:0"
    engine.request("HEAD", path)
    assert engine.getresponse().read() == b""
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_STRANGERS + 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port(registry)), 5))
        ask(registry, "GET", "/v2/")  # so the others have been accepted
        engine.request("HEAD", path)
        assert engine.getresponse().status == 404
