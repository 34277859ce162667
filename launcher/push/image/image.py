"""The image to the hosts: only where it differs, and seen to start there afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

from launcher.errors import DdpctlError, PushFailed
from launcher.hosts import Host
from launcher.push.host import HostState, Image, docker_says, parse_image
from launcher.push.image.alias import remember, same
from launcher.push.image.layers import LOAD, Layers, NoLayers, partial_ids, sweep, tagged
from launcher.push.transfer.send import Journey, Parcel
from launcher.push.transfer.sender import Sender
from launcher.ssh.many import try_each
from launcher.ssh.node import Node

PULL_TIMEOUT = 3600.0  # seconds
DOCKER_TIMEOUT = 120.0
PATIENCE = 1.5  # seconds to see whether there is little to send

# Prove that an image is whole: an engine may take one that lacks layers and only fail to start it.
# $1 what to start it by; the others: images that were made on the way
VERIFY = r"""
made=$(docker create --network none --entrypoint /bin/true "$1") || exit 1
docker rm -f "$made" >/dev/null
docker image inspect --format '{{json .}}' "$1" || exit 1
shift
[ $# -eq 0 ] || docker rmi "$@" >/dev/null 2>&1
exit 0
"""

HAVE = "docker image ls -aq --no-trunc | sort -u | " + (
    "xargs -r docker image inspect --format '{{json .RootFS.Layers}}'"
)


class Launcher:
    """The engine of this machine, where the image usually was built."""

    def __init__(self) -> None:
        self.node = Node(Host(host="local"))

    def image(self, name: str) -> Image | None:
        """None when it is not here; nor is it where there is no Docker."""
        done = self.node.run(
            ["docker", "image", "inspect", "--format", "{{json .}}", name], timeout=DOCKER_TIMEOUT
        )
        return parse_image(json.loads(done.stdout)) if done.code == 0 else None

    def save(self, name: str) -> Iterator[bytes]:
        stream = self.node.open(["docker", "save", name], stdin=False)
        try:
            while chunk := stream.read():
                yield chunk
            if stream.wait(DOCKER_TIMEOUT) != 0:
                raise PushFailed(f"this machine: docker save {name}: {stream.stderr_tail()}")
        finally:
            stream.close()


def push_image(
    name: str,
    here: Image | None,
    states: dict[Node, HostState],
    sender: Sender,
    journey: Journey,
) -> tuple[dict[Node, Image], dict[Node, DdpctlError]]:
    """What each host starts the image by, and the hosts that do not have it, with the reason."""
    found: dict[Node, Image] = {}
    without: list[Node] = []
    for node, state in states.items():
        if state.image is not None and (here is None or same(state.image, here)):
            found[node] = state.image
            journey.hosts[node].image = "present"
            journey.hosts[node].layers_skipped += len(state.image.layers)
        else:
            without.append(node)
    if here is None:
        return _pull(name, found, without, journey)
    if not without:
        return found, {}
    for node in without:
        old = states[node].image
        if old is not None:
            journey.say(f"{node.name}: {name} was another image there ({old.id[:19]}); updating it")
    sending = _Sending(name, here, sender, journey)
    verified, failures = sending.run(without)
    for node in verified:
        old = states[node].image
        journey.hosts[node].image = "updated" if old is not None else "sent"
    return {**found, **verified}, failures


class _Sending:
    """From the engine of this machine to hosts that have another image, or none."""

    def __init__(self, name: str, here: Image, sender: Sender, journey: Journey) -> None:
        self.name, self.here = name, here
        self.sender, self.journey = sender, journey
        self.local = Launcher()
        self.refs = [name] if tagged(name) else [here.id]
        self.made = partial_ids(here)  # images without a name that layers come as

    def run(self, nodes: Sequence[Node]) -> tuple[dict[Node, Image], dict[Node, DdpctlError]]:
        there, failures = try_each(nodes, self._layers_there)
        if there:
            failures |= self._send(list(there), min(there.values()))
        images, wrong = try_each([node for node in there if node not in failures], self._verify)
        for error in wrong.values():
            self.journey.say(f"{error}; all of its layers are sent there now")
        failures |= self._save(list(wrong))
        again = [node for node in wrong if node not in failures]
        mended, broken = try_each(again, self._verify)
        return {**images, **mended}, {**failures, **broken}

    def _layers_there(self, node: Node) -> int:
        """How many of the first layers a host has: only those can be left out."""
        done = node.script(HAVE, timeout=DOCKER_TIMEOUT)
        if done.code != 0:
            raise docker_says(node.name, done.stderr.decode(errors="replace"))
        images = [json.loads(line) or [] for line in done.stdout.splitlines()]
        return max((_common(self.here.layers, layers) for layers in images), default=0)

    def _send(self, nodes: Sequence[Node], first: int) -> dict[Node, DdpctlError]:
        sweep(self.local.node)
        layers = Layers(self.local.node, self.name, self.here, first)
        try:
            failures = self.sender.send_all(
                self._parcels(layers), nodes, layers.total(patience=PATIENCE)
            )
        except NoLayers as error:
            self.journey.say(f"{self.name}: sent whole, not by layers: {error}")
            return self._save(nodes)
        finally:
            layers.close()
        for node in nodes:
            if node not in failures:
                self.journey.hosts[node].layers_sent += len(self.here.layers) - first
                self.journey.hosts[node].layers_skipped += first
        return failures

    def _parcels(self, layers: Layers) -> Iterator[Parcel]:
        for archive in layers.archives():
            if archive.whole:
                self.refs += [ref for ref in archive.image_ids if not tagged(self.name)]
            else:
                self.made.update(archive.image_ids)
            yield archive.parcel()

    def _save(self, nodes: Sequence[Node]) -> dict[Node, DdpctlError]:
        """All layers in one stream, as the engine saves them."""
        if not nodes:
            return {}
        parcel = Parcel("image", LOAD, 0, partial(self.local.save, self.name))
        failures = self.sender.send(parcel, nodes)
        for node in nodes:
            if node not in failures:
                self.journey.hosts[node].layers_sent = len(self.here.layers)
                self.journey.hosts[node].layers_skipped = 0
        return failures

    def _verify(self, node: Node) -> Image:
        said = ""
        for ref in self.refs:
            done = node.script(VERIFY, ref, *sorted(self.made), timeout=DOCKER_TIMEOUT)
            if done.code == 0:
                return self._expected(node, parse_image(json.loads(done.stdout.splitlines()[0])))
            said = done.stderr.decode(errors="replace")
        raise docker_says(node.name, said)

    def _expected(self, node: Node, image: Image) -> Image:
        if not image.layers:
            remember(image, self.here)
        elif not same(image, self.here):
            raise PushFailed(
                f"{node.name}: {self.name} there is not the image that was sent; somebody else "
                "may have tagged another one meanwhile"
            )
        return image


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _pull(
    name: str, found: dict[Node, Image], without: Sequence[Node], journey: Journey
) -> tuple[dict[Node, Image], dict[Node, DdpctlError]]:
    """This machine does not have it: the hosts get it from its registry themselves."""
    pulled, failures = try_each(without, partial(_pull_on, name=name))
    for node in pulled:
        journey.hosts[node].image = "pulled"
    images = {**found, **pulled}
    return images, {**failures, **_odd_ones(name, images)}


def _pull_on(node: Node, *, name: str) -> Image:
    done = node.run(["docker", "pull", "-q", name], timeout=PULL_TIMEOUT)
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.code}"]
        raise PushFailed(
            f"{node.name}: the image {name} is neither on this machine nor on the host, and the "
            f"host cannot pull it ({said[-1]}); build it here (`docker build -t {name} .`) or mend "
            "job.image"
        )
    seen = node.run(
        ["docker", "image", "inspect", "--format", "{{json .}}", name], timeout=DOCKER_TIMEOUT
    )
    if seen.code != 0:
        raise docker_says(node.name, seen.stderr.decode(errors="replace"))
    return parse_image(json.loads(seen.stdout))


def _odd_ones(name: str, images: dict[Node, Image]) -> dict[Node, DdpctlError]:
    """All nodes run the same bits or none runs."""
    first = next(iter(images.items()), None)
    if first is None:
        return {}
    return {
        node: PushFailed(
            f"{node.name}: {name} is another image there than on {first[0].name} "
            f"({image.id[:19]}, {first[1].id[:19]}); remove it on one of them, or name the image "
            "by its digest"
        )
        for node, image in images.items()
        if not same(image, first[1])
    }
