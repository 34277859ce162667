"""Send the image to every host that lacks it or has a different one; verify each copy."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile

from ...engines.choose import images_of
from ...engines.engine_info import ImageInfo
from ...errors import CommandFailed, PushFailed
from ...hosts import Host
from ...own_folders import cache_home, read_cache, write_cache
from ...ssh.host_connection import HostConnection, connected
from ...ssh.many import try_each
from ..transfer.fanout import Fanout
from ..transfer.payload import Failures, Payload
from .archive import Archive, NoLayers, layer_archives, partial_ids, remove_stale_tags, with_tag

ALIASES = "images.json"  # cache file: host and id there -> id on this machine

Images = dict[HostConnection, ImageInfo]  # the image of each host that has it


def push_image(
    name: str,
    here: ImageInfo | None,
    there: Mapping[HostConnection, ImageInfo | None],
    fanout: Fanout,
    *,
    only_verify: bool = False,
) -> tuple[Images, Failures]:
    """Push the image; here=None: let hosts pull it. here, there: the image here and on each host.

    only_verify: send nothing, but verify that all hosts have the same image.
    """
    progress, wanted = fanout.progress, None if only_verify else here
    images: Images = {}
    for node, image in there.items():
        if image is not None and (wanted is None or as_here(image, node).same_as(wanted)):
            images[node] = image
            progress.hosts[node].image = "present"
            progress.hosts[node].layers_skipped += len(image.layers)
        elif image is not None:
            other = f"{name} is a different image there ({image.id[:19]})"
            progress.say(f"{node.name}: {other}; updating it")
    without = {node: image for node, image in there.items() if node not in images}
    done: Images = {}
    if only_verify:
        missing = PushFailed(f"does not have {name}", "run `ddpctl push HOSTS --image`")
        failures: Failures = {node: missing.on(node.name) for node in without}
    elif here is None:
        done, failures = try_each([*without], lambda node: _pull(node, name))
    else:
        with connected([Host(host="local")]) as [local]:
            done, failures = _Sending(name, here, local, fanout).run(without)
    for node in done:
        word = "pulled" if here is None else "updated" if there[node] else "sent"
        progress.hosts[node].image = word
    return images | done, failures


def differing(name: str, images: Images) -> Failures:
    """Return the hosts whose image differs from the first host's. A run needs one image everywhere."""
    first = next(iter(images), None)
    return {
        node: PushFailed(
            f"{name} is not the same image as on {first.name} ({image.id[:19]}, {images[first].id[:19]})",
            "remove it there and run `ddpctl push HOSTS --image`, or name the image by its digest",
            host=node.name,
        )
        for node, image in images.items()
        if first and not as_here(image, node).same_as(as_here(images[first], first))
    }


def _pull(node: HostConnection, name: str) -> ImageInfo:
    """Let the host pull an image that this machine does not have."""
    try:
        return images_of(node).pull(name)
    except CommandFailed as error:
        raise PushFailed(
            f"the image {name} is neither on this machine nor on the host, and the host cannot pull it "
            f"({error.what})",
            "build it here with `ddpctl image build`, or fix job.image",
            host=node.name,
        ) from None


class _Sending:
    """Sends the image from this machine to hosts that have a different one or none."""

    def __init__(self, name: str, here: ImageInfo, local: HostConnection, fanout: Fanout) -> None:
        self.name, self.here, self.local = name, here, images_of(local)
        self.fanout, self.progress = fanout, fanout.progress
        self.load = lambda node: images_of(node).load_command()
        self.refs = [name] if with_tag(name) else [here.id]
        self.partial = partial_ids(here)

    def run(self, hosts: Mapping[HostConnection, ImageInfo | None]) -> tuple[Images, Failures]:
        """Send to `hosts`, which have these images of that name, or none."""
        there, failures = try_each([*hosts], lambda node: self._layers_there(node, hosts[node]))
        for by_diff_id in (False, True):
            alike = {node: count for node, (count, needs) in there.items() if needs == by_diff_id}
            if alike:
                failures |= self._send_layers(list(alike), min(alike.values()), by_diff_id)
        verified, broken = try_each([node for node in there if node not in failures], self._verify)
        for error in broken.values():
            self.progress.say(f"{error}; sending the whole image again")
        failures |= self._send_whole(list(broken))
        again, still_broken = try_each([n for n in broken if n not in failures], self._verify)
        for node, image in (verified | again).items():
            if not image.layers:
                remember(image, node, self.here)
        return verified | again, failures | still_broken

    def _layers_there(self, node: HostConnection, different: ImageInfo | None) -> tuple[int, bool]:
        """Return how many of the lowest layers a host has, and whether its archives need diff ids.

        Only the lowest layers can be left out of an archive. different: the host's image of that
        name. containerd's store does not list that image if it lacks the compressed form of a layer,
        as it does for layers that came by `docker load`.
        """
        store = images_of(node)
        rows = [*store.layers(), different.layers if different else ()]
        pairs = [zip(self.here.layers, row, strict=False) for row in rows]
        common = [[*takewhile(lambda pair: pair[0] == pair[1], row)] for row in pairs]
        return max(map(len, common)), store.needs_diff_ids()

    def _send_layers(
        self, nodes: Sequence[HostConnection], first: int, by_diff_id: bool
    ) -> Failures:
        remove_stale_tags(self.local)
        export = layer_archives(
            self.local, self.name, self.here, first, self.progress, by_diff_id=by_diff_id
        )
        try:
            with export as archives:
                return self._fan_out(map(self._payload, archives), nodes, first)
        except NoLayers as error:
            self.progress.say(
                f"{self.name}: sending the whole image instead of single layers: {error}"
            )
        return self._send_whole(nodes)

    def _payload(self, archive: Archive) -> Payload:
        if archive.partial:
            self.partial.update(archive.image_ids)
        elif not with_tag(self.name):
            self.refs += archive.image_ids
        size = archive.layer.size if archive.layer else 0
        return Payload("image", self.load, size, archive.chunks)

    def _send_whole(self, nodes: Sequence[HostConnection]) -> Failures:
        """Send all layers in one stream, as the engine saves them."""
        whole = Payload("image", self.load, None, partial(self.local.save, self.name))
        return self._fan_out([whole], nodes, 0) if nodes else {}

    def _fan_out(
        self, payloads: Iterable[Payload], nodes: Sequence[HostConnection], first: int
    ) -> Failures:
        """Send the payloads, which contain the layers from number `first` on. Return the failed hosts."""
        failures = self.fanout.send("image", payloads, nodes, None)
        for node in nodes:
            if node not in failures:
                self.progress.hosts[node].layers_sent = len(self.here.layers) - first
                self.progress.hosts[node].layers_skipped = first
        return failures

    def _verify(self, node: HostConnection) -> ImageInfo:
        image = images_of(node).verify(self.refs, self.partial)
        if image.layers and not image.same_as(self.here):
            raise PushFailed(
                f"{self.name} is not the image that was sent; another user may have moved the tag "
                "in the meantime",
                "push again",
                host=node.name,
            )
        return image


def as_here(image: ImageInfo, node: HostConnection) -> ImageInfo:
    """Return a host's image with this machine's id of it, if an earlier push cached that."""
    known = read_cache(cache_home() / ALIASES).get(_key(image, node))
    return dataclasses.replace(image, id=known) if isinstance(known, str) else image


def remember(there: ImageInfo, node: HostConnection, here: ImageInfo) -> None:
    """Cache the host engine's id of an image that was pushed and verified there.

    containerd's store may list an image without its layers, if it already had some of them with
    another compression. Then only the id identifies the image. Losing this cache costs one more
    push. A host names that id, so it counts for that host only.
    """
    known = read_cache(cache_home() / ALIASES)
    if there.id != here.id and known.get(_key(there, node)) != here.id:
        write_cache(cache_home() / ALIASES, json.dumps({**known, _key(there, node): here.id}))


def _key(image: ImageInfo, node: HostConnection) -> str:
    return " ".join(map(str, (*node.host.account, image.id)))
