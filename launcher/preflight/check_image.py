"""The image: it exists somewhere, is the same everywhere, and fits the hosts' processors."""

from __future__ import annotations

from collections.abc import Iterator

from .findings import Finding, failure, warning
from .inventory import Inventory
from .machine import Machine, common

# `uname -m` and images name the same processors differently.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def check_image(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """`push` sends this machine's image to every host that lacks it, so a host may lack it."""
    if machine.engine is None:
        return
    name, image = seen.cluster.job.image, machine.engine.image
    engines = [m for m in seen.machines if m.engine]
    there = [m.engine.image for m in engines if m.engine and m.engine.image]
    if not there and seen.here is None and machine is engines[0]:
        what = f"image {name} is neither on any host nor on this machine"
        remedy = f"run docker build or docker pull {name} on this machine"
        yield failure(machine.name, "image", what, remedy)
    if image is None:
        return
    wanted = seen.here.layers if seen.here else common([other.layers for other in there])
    if image.layers == wanted:
        return
    what = f"a different image is named {name} there ({image.id.removeprefix('sha256:')[:12]})"
    if seen.here:
        yield warning(machine.name, "image", what, "replace it with `ddpctl push HOSTS --image`")
    else:
        remedy = f"remove it there, or have the right {name} on this machine and run `ddpctl push`"
        yield failure(machine.name, "image", what, remedy)


def check_architecture(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    image = (machine.engine.image if machine.engine else None) or seen.here
    cpu = machine.facts.kernel.split()[-1] if machine.facts.kernel else ""
    kind = _ARCHITECTURES.get(cpu, cpu)
    if image and kind and image.architecture and image.architecture != kind:
        what = f"the image is built for {image.architecture}, the host is {kind}"
        yield failure(machine.name, "image", what, f"build the image for linux/{kind}")


CHECKS = (check_image, check_architecture)
