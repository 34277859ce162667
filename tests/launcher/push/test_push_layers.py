"""Which layers of an image a push sends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from launcher.engines.engine_info import ImageInfo
from launcher.hosts import Host
from launcher.push.image import push_image as pushing
from launcher.push.image.archive import Archive
from launcher.push.push_progress import PushProgress
from launcher.push.transfer.fanout import Fanout
from launcher.ssh.node import Node
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


@pytest.fixture
def first_sent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """first_sent(image, [layers]): the number of the first layer that the host gets."""
    firsts: list[int] = []

    def archives(*words: Any, **_: Any) -> contextlib.AbstractContextManager[list[Archive]]:
        firsts.append(words[3])
        return contextlib.nullcontext([Archive({}, None, ())])

    monkeypatch.setattr(pushing, "layer_archives", archives)
    monkeypatch.setattr(Fanout, "send", lambda *_: {})

    def push(different: ImageInfo | None, listed: Sequence[Sequence[str]]) -> int:
        node = Node(Host("gpu1"))
        store: Any = Store(listed)
        monkeypatch.setattr(pushing, "images_of", lambda *_: store)
        progress = PushProgress([node], Console(quiet=True))
        hosts, fanout = {node: different}, Fanout({}, progress)
        images, failures = pushing.push_image("i", HERE, hosts, fanout)
        assert (images, failures) == ({node: HERE}, {})
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
