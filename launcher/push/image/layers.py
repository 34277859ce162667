"""The layers of a local image, one archive per layer.

So the push after an interrupted one sends only the layers that are still missing.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from ...engines.base import ImageStore
from ...engines.engine_info import ImageInfo
from ...errors import DdpctlError, PushFailed
from .archive import Archive, partial_archive, whole_archive
from .registry import Registry

TAG = "push"  # tag of the image in our local registry


class NoLayers(PushFailed):
    """The local engine does not export single layers, but can save the whole image."""


class Layers:
    """The layers from number `first` on, received by our registry. by_diff_id: see `whole_archive`."""

    def __init__(
        self, local: ImageStore, name: str, image: ImageInfo, first: int, by_diff_id: bool = False
    ) -> None:
        self._local, self._name, self._image, self._first = local, name, image, first
        self._by_diff_id = by_diff_id
        self._registry = Registry(image, frozenset(image.layers[first:]))
        self._documents: Future[tuple[bytes, bytes]] = Future()  # manifest and configuration
        threading.Thread(target=self._push, daemon=True).start()

    def close(self) -> None:
        if not self._documents.done():
            self._untag()  # here too: this process may end before the thread does
        self._registry.close()

    def size(self) -> int | None:
        """Return the total bytes; None while the engine has not pushed all layers."""
        blobs = self._registry.blobs.values()
        return sum(blob.size for blob in blobs) if self._documents.done() else None

    def archives(self, doing: Callable[[str], None]) -> Iterator[Archive]:
        """Yield an archive per layer, as it arrives. The last one is the named image. Raises NoLayers.

        doing: is called with what the local engine is doing whenever it makes this wait, then with "".
        """
        layer, missing = None, self._image.layers[self._first :]
        for number, diff_id in enumerate(missing, 1):
            arriving = self._registry.layers[diff_id]
            if not arriving.done():
                doing(f"compressing layer {number} of {len(missing)}")
            layer = arriving.result()
            if number < len(missing):
                yield partial_archive(self._image, self._first + number, layer)
        if not self._documents.done():  # it may no longer know the digests of the lower layers
            doing("waiting for the engine here")
        documents = self._documents.result()
        doing("")
        yield whole_archive(self._name, *documents, layer, by_diff_id=self._by_diff_id)

    def _push(self) -> None:
        documents, why = None, "the local engine did not push all of it"
        try:
            self._local.push_to(self._name, self._registry.repository, TAG)
            documents = self._registry.finish()
        except DdpctlError as error:
            why = str(error)
        finally:
            self._untag()
            for layer in self._registry.layers.values():
                if not layer.done():
                    layer.set_exception(NoLayers(why))
            if documents:
                self._documents.set_result(documents)
            else:
                self._documents.set_exception(NoLayers(why))

    def _untag(self) -> None:
        self._local.untag(f"{self._registry.repository}:{TAG}")


def remove_stale_tags(local: ImageStore) -> None:
    """Remove names that killed pushes have left in the local engine.

    A name is in use while a push's registry listens on the port in it.
    """
    for name in local.tags("localhost:*/ddpctl/*"):
        if port := re.fullmatch(rf"localhost:(\d+)/ddpctl/\w+:{TAG}", name):
            try:
                socket.create_connection(("127.0.0.1", int(port[1])), 1.0).close()
            except OSError:
                local.untag(name)
