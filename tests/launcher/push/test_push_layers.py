"""Which layers of an image a push sends, and when."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from registry_client import digest_of, push_manifest, upload

from launcher.engines.engine_info import ImageInfo
from launcher.errors import CommandFailed
from launcher.hosts import Host
from launcher.push.image import push_image as pushing
from launcher.push.image.archive import Archive
from launcher.push.push_progress import PushProgress
from launcher.push.transfer.fanout import Fanout
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console

HERE = ImageInfo("sha256:new", ("a", "b", "c", "d"), fingerprint="new")
OLD = ImageInfo("sha256:old", ("a", "b", "c"), fingerprint="old")
OTHER = ImageInfo("sha256:other", ("a", "x", "c", "d"), fingerprint="other")


class Store:
    """The images of a host that has listed images with these layers."""

    def __init__(self, listed: Sequence[Sequence[str]]) -> None:
        self.listed = listed

    def layers(self) -> list[list[str]]:
        return [list(layers) for layers in self.listed]

    def needs_diff_ids(self) -> bool:
        return False

    def tags(self, pattern: str) -> list[str]:
        return []

    def load_command(self) -> tuple[str, ...]:
        return ("load",)

    def save(self, name: str) -> Iterator[bytes]:
        raise AssertionError("the whole image is not needed")

    def verify(self, refs: object, scratch: object) -> ImageInfo:
        return HERE

    def tag(self, image_id: str, name: str) -> None: ...


@pytest.fixture
def firsts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the first layer of each transfer, none of which sends a byte."""
    firsts: list[int] = []

    def archives(*words: Any, **_: Any) -> contextlib.AbstractContextManager[Iterator[Archive]]:
        firsts.append(words[3])
        return contextlib.nullcontext(iter([Archive({}, None, ())]))

    monkeypatch.setattr(pushing, "layer_archives", archives)
    monkeypatch.setattr(Fanout, "send", lambda *_: {})
    return firsts


@pytest.fixture
def first_sent(firsts: list[int], monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """first_sent(image, [layers]): the number of the first layer that the host gets."""

    def push(different: ImageInfo | None, listed: Sequence[Sequence[str]]) -> int:
        connection = HostConnection(Host("gpu1"))
        store: Any = Store(listed)
        monkeypatch.setattr(pushing, "images_of", lambda *_: store)
        progress = PushProgress([connection], Console(quiet=True))
        hosts, fanout = {connection: different}, Fanout({}, progress)
        images, failures = pushing.push_image("i", HERE, hosts, fanout)
        assert (images, failures) == ({connection: HERE}, {})
        return firsts.pop()

    return push


@pytest.mark.parametrize(
    ("different", "listed", "first"),
    [
        (None, [], 0),
        (None, [["x"], ["a", "b"], ["a"]], 2),
        (OTHER, [OTHER.layers], 1),
        (OLD, [OLD.layers], 3),
        (OLD, [], 3),  # as containerd's store lists it if layers came by `docker load`
        (OTHER, [["a", "b"]], 2),
    ],
)
def test_a_host_gets_the_layers_above_the_lowest_ones_that_it_has(
    first_sent: Callable[..., int],
    different: ImageInfo | None,
    listed: list[list[str]],
    first: int,
) -> None:
    assert first_sent(different, listed) == first


@pytest.mark.usefixtures("firsts")
@pytest.mark.parametrize(("name", "tags"), [("i", ["i:latest"]), ("sha256:1", [])])
def test_the_name_moves_to_the_image_once_it_is_verified(
    monkeypatch: pytest.MonkeyPatch, name: str, tags: list[str]
) -> None:
    """Until then it keeps the layers that the old image and this one share."""
    did: list[str] = []

    class Named(Store):
        def verify(self, refs: object, scratch: object) -> ImageInfo:
            did.append("verify")
            return HERE

        def tag(self, image_id: str, name: str) -> None:
            assert image_id == HERE.id
            did.append(name)

    monkeypatch.setattr(pushing, "images_of", lambda *_: Named([OLD.layers]))
    connection = HostConnection(Host("gpu1"))
    fanout = Fanout({}, PushProgress([connection], Console(quiet=True)))
    pushing.push_image(name, HERE, {connection: OLD}, fanout)
    assert did == ["verify", *tags]


@pytest.mark.usefixtures("firsts")
def test_images_that_hosts_list_without_layers_are_all_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = [HostConnection(Host(f"gpu{number}")) for number in range(8)]
    at_once = threading.Barrier(len(connections))

    class Bare(Store):
        def verify(self, refs: object, scratch: object) -> ImageInfo:
            at_once.wait(10)
            return ImageInfo("sha256:there", ())

    monkeypatch.setattr(pushing, "images_of", lambda *_: Bare([]))
    fanout = Fanout({}, PushProgress(connections, Console(quiet=True)))
    images, failures = pushing.push_image("i", HERE, dict.fromkeys(connections), fanout)
    assert ([*images], failures) == (connections, {})
    assert all(
        pushing.as_here(images[connection], connection).same_as(HERE) for connection in connections
    )


LAYERS = [b"lowest", b"middle", b"highest"]
COMPRESSED = [gzip.compress(layer) for layer in LAYERS]
PUSHED = ImageInfo("sha256:pushed", tuple(map(digest_of, LAYERS)), fingerprint="pushed")
CONFIG = json.dumps({"rootfs": {"diff_ids": PUSHED.layers}}).encode()


class PushingStore(Store):
    """An engine that pushes LAYERS, each after `before` was called with its number."""

    def __init__(self, before: Callable[[int], None]) -> None:
        super().__init__([])
        self.before = before
        self.removed: list[str] = []

    def push_to(self, name: str, repository: str, tag: str) -> None:
        for number, layer in enumerate(COMPRESSED):
            self.before(number)
            assert upload(repository, layer) == 201
        assert upload(repository, CONFIG) == 201
        push_manifest(repository, CONFIG, *COMPRESSED)

    def untag(self, name: str) -> None:
        self.removed.append(name)

    def save(self, name: str) -> Iterator[bytes]:
        yield b"the whole image"

    def verify(self, refs: object, scratch: object) -> ImageInfo:
        return PUSHED


class LoadingHost(HostConnection):
    """A host that loads image archives. first_arrived: it has read the first layer."""

    def __init__(self) -> None:
        super().__init__(Host("gpu1"))
        self.archives: list[bytes] = []
        self.first_arrived = threading.Event()

    def open(self, *_: Any, **__: Any) -> Any:
        self.archives.append(b"")
        return self

    def write(self, data: bytes, timeout: float) -> None:
        self.archives[-1] += data
        if COMPRESSED[0] in data:
            self.first_arrived.set()

    def close_stdin(self) -> None: ...
    def close(self) -> None: ...

    def read(self, *, timeout: float) -> bytes:
        return b""

    def wait(self, timeout: float) -> int:
        return 0


@pytest.fixture
def send(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[LoadingHost, PushingStore], PushProgress]:
    """send(host, store): push the image of this machine's engine to the host."""

    def push(host: LoadingHost, store: PushingStore) -> PushProgress:
        monkeypatch.setattr(pushing, "images_of", lambda *_: store)
        progress = PushProgress([host], Console(quiet=True))
        fanout = Fanout({}, progress)
        images, failures = pushing.push_image("i", PUSHED, {host: None}, fanout)
        assert (images, failures) == ({host: PUSHED}, {})
        assert store.removed and all("/ddpctl/" in name for name in store.removed)
        return progress

    return push


def test_a_layer_is_sent_while_the_engine_compresses_the_next_one(
    send: Callable[[LoadingHost, PushingStore], PushProgress],
) -> None:
    host, overlapped = LoadingHost(), []

    def before(number: int) -> None:
        if number == len(LAYERS) - 1:
            overlapped.append(host.first_arrived.wait(30))

    report = send(host, PushingStore(before)).hosts[host]
    assert overlapped == [True]
    assert (report.layers_sent, report.layers_skipped) == (3, 0)
    for layer, archive in zip(COMPRESSED, host.archives, strict=True):
        assert [each for each in COMPRESSED if each in archive] == [layer]


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_an_engine_that_fails_half_way_makes_the_push_send_the_whole_image(
    send: Callable[[LoadingHost, PushingStore], PushProgress], sent: int
) -> None:
    host = LoadingHost()

    def before(number: int) -> None:
        if number == sent:
            assert not sent or host.first_arrived.wait(30)
            raise CommandFailed("Docker refused: no space left", "make room")

    progress = send(host, PushingStore(before))
    [notice] = progress.report.notices
    assert (
        "sending the whole image instead of single layers: Docker refused: no space left" in notice
    )
    assert host.archives[-1] == b"the whole image"
    assert sum(layer in b"".join(host.archives) for layer in COMPRESSED) == sent
