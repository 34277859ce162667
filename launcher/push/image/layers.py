"""Export the layers of a local image, one archive per layer.

So the push after an interrupted one sends only the layers that are still missing.
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from ...engines.base import ImageStore
from ...engines.engine_info import ImageInfo
from ...errors import DdpctlError, PushFailed
from .archive import Archive, partial_archive, whole_archive
from .registry import Registry

TAG = "push"  # tag of the image in our local registry


class NoLayers(PushFailed):
    """The local engine does not export single layers, but can save the whole image."""


@contextmanager
def layer_archives(
    local: ImageStore,
    name: str,
    image: ImageInfo,
    first: int,
    arrived: Callable[[int], None],
    *,
    by_diff_id: bool,
) -> Iterator[list[Archive]]:
    """Have the local engine push the layers from number `first` on to our registry.

    Yields an archive per layer, to be read before this ends. The last one is the named image.
    arrived: is called with the number of layers that have. by_diff_id: see `whole_archive`.
    Raises NoLayers.
    """
    with closing(Registry(image, image.layers[first:], arrived)) as registry:
        try:
            local.push_to(name, registry.repository, TAG)
        except DdpctlError as error:
            raise NoLayers(str(error)) from None
        finally:
            local.untag(f"{registry.repository}:{TAG}")
        pushed = registry.pushed_image()
        if pushed is None:
            raise NoLayers("the local engine did not push all of it")
        manifest, config, layers = pushed
        lower = [
            partial_archive(image, number, layer)
            for number, layer in enumerate(layers[:-1], first + 1)
        ]
        top = layers[-1] if layers else None
        yield [*lower, whole_archive(name, manifest, config, top, by_diff_id=by_diff_id)]


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
