"""Check the container engine (reachable, recent, storage, linger) and the job's image.

The image must be available, identical everywhere and built for the hosts' processors.
"""

from __future__ import annotations

from collections.abc import Iterator

from .findings import Finding, failure, split, warning
from .inventory import Inventory, Machine, common

SLOW_STORAGE = ("vfs", "devicemapper")
# `uname -m` and images use different names for the same processors.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def check_docker(machine: Machine, _: Inventory) -> Iterator[Finding]:
    if machine.engine_error:
        what, remedy = split(machine.engine_error, machine.hosts[0].name)
        yield failure(machine.name, "docker", what, remedy)
    if machine.engine is None:
        return
    can = machine.engine.can
    if can.version and can.version < can.oldest:
        what = f"{can.product} {machine.engine.version} is too old"
        yield failure(machine.name, "docker", what, f"install {can.upgrade} or newer there")
    if machine.engine.storage in SLOW_STORAGE:
        what = f"{can.product} uses {machine.engine.storage} storage, which copies every layer"
        remedy = f"set overlay2 or fuse-overlayfs in {can.storage_file} there"
        yield warning(machine.name, "docker", what, remedy)


def check_rootless(machine: Machine, _: Inventory) -> Iterator[Finding]:
    """Check a rootless Podman's needs: subordinate ids, and processes that survive the logout."""
    if machine.engine is None or not machine.engine.can.needs_linger:
        return
    user = machine.facts.user
    if not machine.details.subuids:
        what = f"{user} has no ids in /etc/subuid, so Podman cannot unpack images"
        remedy = (
            f"run `sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}`, "
            "then `podman system migrate` there"
        )
        yield failure(machine.name, "docker", what, remedy)
    if not machine.details.lingers:
        what = f"Podman's containers end when {user} logs out, and so would the run"
        remedy = f"run `sudo loginctl enable-linger {user}` there"
        yield failure(machine.name, "docker", what, remedy)


def check_image(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check the image. A host may lack it, because `push` sends this machine's image."""
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
    what = f"{name} is a different image there ({image.id.removeprefix('sha256:')[:12]})"
    if seen.here:
        yield warning(machine.name, "image", what, "replace it with `ddpctl push HOSTS --image`")
    else:
        remedy = f"remove it there, or get the right {name} on this machine and run `ddpctl push`"
        yield failure(machine.name, "image", what, remedy)


def check_architecture(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    image = (machine.engine.image if machine.engine else None) or seen.here
    cpu = machine.facts.kernel.split()[-1] if machine.facts.kernel else ""
    kind = _ARCHITECTURES.get(cpu, cpu)
    if image and kind and image.architecture and image.architecture != kind:
        what = f"the image is built for {image.architecture}, but the host is {kind}"
        yield failure(machine.name, "image", what, f"build the image for linux/{kind}")


CHECKS = (check_docker, check_rootless, check_image, check_architecture)
