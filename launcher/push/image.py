"""The image to the hosts: only where it differs, and seen to start there afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

from launcher.errors import DdpctlError, PushFailed
from launcher.hosts import Host
from launcher.push.host import HostState, Image, docker_says, parse_image
from launcher.push.send import Journey, Parcel, attempt
from launcher.push.sender import Sender
from launcher.remote.node import Node

PULL_TIMEOUT = 3600.0  # seconds
DOCKER_TIMEOUT = 120.0

# Prove that an image is whole: an engine may take one that lacks layers and only fail to start it.
# $1 what to start it by, $2 the tag it shall have
VERIFY = r"""
made=$(docker create --network none --entrypoint /bin/true "$1") || exit 1
docker rm -f "$made" >/dev/null
[ -z "$2" ] || docker tag "$1" "$2"
docker image inspect --format '{{json .}}' "$1"
"""


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
        if state.image is not None and (here is None or state.image.same_as(here)):
            found[node] = state.image
            journey.hosts[node].image = "present"
            journey.hosts[node].layers_skipped += len(state.image.layers)
        else:
            without.append(node)
    if not without:
        return found, {}
    if here is None:
        return _pull(name, found, without, journey)
    for node in without:
        old = states[node].image
        if old is not None:
            journey.say(f"{node.name}: {name} was another image there ({old.id[:19]}); updating it")
    failures = _send(name, here, without, sender, journey)
    arrived = [node for node in without if node not in failures]
    verified, wrong = attempt(arrived, partial(_verify, name=name, here=here))
    for node in verified:
        old = states[node].image
        journey.hosts[node].image = "updated" if old is not None else "sent"
    return {**found, **verified}, {**failures, **wrong}


def _send(
    name: str, here: Image, nodes: Sequence[Node], sender: Sender, journey: Journey
) -> dict[Node, DdpctlError]:
    """All layers in one stream, as the engine saves them."""
    launcher = Launcher()
    parcel = Parcel("image", ("docker", "load", "-q"), 0, partial(launcher.save, name))
    failures = sender.send(parcel, nodes)
    for node in nodes:
        if node not in failures:
            journey.hosts[node].layers_sent += len(here.layers)
    return failures


def _verify(node: Node, *, name: str, here: Image) -> Image:
    by_content = "@" in name or name.startswith("sha256:")
    ref = here.id if by_content else name
    done = node.run(["sh", "-c", VERIFY, "sh", ref, ""], timeout=DOCKER_TIMEOUT)
    if done.code != 0:
        raise docker_says(node.name, done.stderr.decode(errors="replace"))
    image = parse_image(json.loads(done.stdout.splitlines()[-1]))
    if not image.same_as(here):
        raise PushFailed(
            f"{node.name}: {name} there is not the image that was sent; somebody else may have "
            "tagged another one meanwhile: push again"
        )
    return image


def _pull(
    name: str, found: dict[Node, Image], without: Sequence[Node], journey: Journey
) -> tuple[dict[Node, Image], dict[Node, DdpctlError]]:
    """This machine does not have it: the hosts get it from its registry themselves."""
    pulled, failures = attempt(without, partial(_pull_on, name=name))
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
        if not image.same_as(first[1])
    }
