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
from ..transfer.payload import Failures, Payload, without
from .archive import Archive, NoLayers, layer_archives, partial_ids, remove_stale_tags

ALIASES = "images.json"  # cache file: a host and an image's id on it -> the id on this machine

Images = dict[HostConnection, ImageInfo]  # the image of each host that has it


def push_image(
    name: str,
    here: ImageInfo | None,
    there: Mapping[HostConnection, ImageInfo | None],
    fanout: Fanout,
    *,
    only_verify: bool = False,
) -> tuple[Images, Failures]:
    """Push the image. Return the image of each host that has it now, and the errors of the others.

    here: the image on this machine; if None, the hosts pull it. there: each host's image, or None.
    only_verify: send nothing, but verify that all hosts have the same image.
    """
    progress, wanted = fanout.progress, None if only_verify else here
    images: Images = {}
    for connection, image in there.items():
        if image is not None and (wanted is None or as_here(image, connection).same_as(wanted)):
            images[connection] = image
            report = progress.hosts[connection]
            if report.image is None:  # otherwise, an earlier try has sent it
                report.image = "present"
                report.layers_skipped += len(image.layers)
        elif image is not None:
            other = f"has a different {name} ({image.id[:19]})"
            progress.say(f"{connection.name}: {other}; updating it")
    lacking = {connection: there[connection] for connection in without(there, images)}
    done: Images = {}
    if only_verify:
        missing = PushFailed(f"does not have {name}", "run `ddpctl push HOSTS --image`")
        failures: Failures = {connection: missing.on(connection.name) for connection in lacking}
    elif here is None:
        done, failures = try_each([*lacking], lambda connection: _pull(connection, name))
    else:
        with connected([Host(host="local")]) as [local]:
            done, failures = _Sending(name, here, local, fanout).run(lacking)
    for connection in done:
        word = "pulled" if here is None else "updated" if there[connection] else "sent"
        progress.hosts[connection].image = word
    return images | done, failures


def differing(name: str, images: Images) -> Failures:
    """Return an error for each host whose image differs from the first host's."""
    first = next(iter(images), None)
    return {
        connection: PushFailed(
            f"{name} is not the same image as on {first.name} "
            f"({image.id[:19]} instead of {images[first].id[:19]})",
            f"remove it from {connection.name} and run `ddpctl push HOSTS --image`, or name the "
            "image by its digest",
            host=connection.name,
        )
        for connection, image in images.items()
        if first and not as_here(image, connection).same_as(as_here(images[first], first))
    }


def _pull(connection: HostConnection, name: str) -> ImageInfo:
    """Let the host pull an image that this machine does not have. Return the image."""
    try:
        return images_of(connection).pull(name)
    except CommandFailed as error:
        raise PushFailed(
            f"the image {name} is neither on this machine nor on the host, and the host cannot "
            f"pull it ({error.what})",
            f"fix job.image, or run `docker pull {name}` or `ddpctl image build` on this machine",
            host=connection.name,
        ) from None


class _Sending:
    """Sends the image from this machine to hosts that have a different one or none."""

    def __init__(self, name: str, here: ImageInfo, local: HostConnection, fanout: Fanout) -> None:
        self.name, self.here, self.local = name, here, images_of(local)
        self.fanout, self.progress = fanout, fanout.progress
        self.load = lambda node: images_of(node).load_command()
        self.refs = [here.id]
        self.partial = partial_ids(here)

    def run(self, hosts: Mapping[HostConnection, ImageInfo | None]) -> tuple[Images, Failures]:
        """Send the image to `hosts`, which maps each host to its image of that name or to None.

        Return the image of each host that has it now, and the errors of the others.
        """
        there, failures = try_each(
            [*hosts], lambda connection: self._layers_there(connection, hosts[connection])
        )
        for by_diff_id in (False, True):
            alike = {
                connection: count
                for connection, (count, needs) in there.items()
                if needs == by_diff_id
            }
            if alike:
                failures |= self._send_layers(list(alike), min(alike.values()), by_diff_id)
        verified, broken = try_each(without(there, failures), self._verify)
        for error in broken.values():
            self.progress.say(f"{error}; sending the whole image again")
        failures |= self._send_whole(list(broken))
        again, still_broken = try_each(without(broken, failures), self._verify)
        for connection, image in (verified | again).items():
            if not image.layers:
                remember(image, connection, self.here)
        return verified | again, failures | still_broken

    def _layers_there(
        self, connection: HostConnection, different: ImageInfo | None
    ) -> tuple[int, bool]:
        """Return the number of lowest layers that a host has, and whether it needs diff ids.

        Only the lowest layers can be left out of an archive. different: the host's image of that
        name. It may be missing from the store's list: containerd omits an image if the compressed
        form of one of its layers is missing, as it is after `docker load`.
        """
        store = images_of(connection)
        rows = [*store.layers(), different.layers if different else ()]
        pairs = [zip(self.here.layers, row, strict=False) for row in rows]
        common = [[*takewhile(lambda pair: pair[0] == pair[1], row)] for row in pairs]
        return max(map(len, common)), store.needs_diff_ids()

    def _send_layers(
        self, connections: Sequence[HostConnection], first: int, by_diff_id: bool
    ) -> Failures:
        remove_stale_tags(self.local)
        export = layer_archives(
            self.local, self.name, self.here, first, self.progress, by_diff_id=by_diff_id
        )
        try:
            with export as archives:
                return self._fan_out(map(self._payload, archives), connections, first)
        except NoLayers as error:
            self.progress.say(
                f"{self.name}: sending the whole image instead of single layers: {error}"
            )
        return self._send_whole(connections)

    def _payload(self, archive: Archive) -> Payload:
        if archive.partial:
            self.partial.update(archive.image_ids)
        else:
            self.refs += archive.image_ids
        size = archive.layer.size if archive.layer else 0
        return Payload("image", self.load, size, archive.chunks)

    def _send_whole(self, connections: Sequence[HostConnection]) -> Failures:
        """Send the whole image, as the engine saves it. Return the errors of failed hosts."""
        if not connections:
            return {}
        self.refs.append(self.name)  # unlike the archives of layers, this one names the image
        whole = Payload("image", self.load, None, partial(self.local.save, self.name))
        return self._fan_out([whole], connections, 0)

    def _fan_out(
        self, payloads: Iterable[Payload], connections: Sequence[HostConnection], first: int
    ) -> Failures:
        """Send the layers from number `first` on. Return the errors of failed hosts."""
        failures = self.fanout.send("image", payloads, connections, None)
        for connection in without(connections, failures):
            self.progress.hosts[connection].layers_sent = len(self.here.layers) - first
            self.progress.hosts[connection].layers_skipped = first
        return failures

    def _verify(self, connection: HostConnection) -> ImageInfo:
        """Verify the image that a host has loaded, give it its name, and return it."""
        store = images_of(connection)
        image = store.verify(self.refs, self.partial)
        if image.layers and not image.same_as(self.here):
            raise PushFailed(
                f"{self.name} is not the image that was sent; another user may have moved the tag "
                "in the meantime",
                "push again",
                host=connection.name,
            )
        if name := with_tag(self.name):
            store.tag(image.id, name)
        return image


def with_tag(name: str) -> str | None:
    """Return `name` with its tag (default: latest), or None if it is an id or has a digest."""
    if "@" in name or name.startswith("sha256:"):
        return None
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def as_here(image: ImageInfo, connection: HostConnection) -> ImageInfo:
    """Return a host's image with its id on this machine, if an earlier push cached that id."""
    known = read_cache(cache_home() / ALIASES).get(_key(image, connection))
    return dataclasses.replace(image, id=known) if isinstance(known, str) else image


def remember(there: ImageInfo, connection: HostConnection, here: ImageInfo) -> None:
    """Cache the id that a host's engine gave to an image that was pushed and verified.

    containerd's store may list an image without its layers if the store already had some of them
    with another compression. Only the id then identifies the image. Losing this cache costs one
    more push. The host itself reports its engine's id, so the id is trusted for that host only.
    """
    known = read_cache(cache_home() / ALIASES)
    if there.id != here.id and known.get(_key(there, connection)) != here.id:
        write_cache(cache_home() / ALIASES, json.dumps({**known, _key(there, connection): here.id}))


def _key(image: ImageInfo, connection: HostConnection) -> str:
    return " ".join(map(str, (*connection.host.account, image.id)))
