"""The image: somewhere, the same everywhere, and for the hosts' kind of processor."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.engines.images import Image
from launcher.hosts import Cluster
from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine, common

# What `uname -m` calls what images call otherwise.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def check_image(machines: Sequence[Machine], cluster: Cluster, here: Image | None) -> list[Finding]:
    """here: the image as this machine has it; push sends that to whoever lacks it."""
    if cluster.job.engine != "docker":
        return []
    name = cluster.job.image
    asked = [m for m in machines if m.docker is not None]
    there = [(m, m.docker.image) for m in asked if m.docker and m.docker.image]
    if here is None and asked and not there:
        what = f"image {name} is on no host and not on this machine"
        return [failure(asked[0].name, "image", what, f"docker build or docker pull {name} here")]
    found = []
    wanted = here.layers if here else common([image.layers for _, image in there] or [()])
    for machine, image in there:
        if image.layers == wanted:
            continue
        what = f"another image has the name {name} ({image.id.removeprefix('sha256:')[:12]})"
        if here is not None:
            found.append(
                warning(machine.name, "image", what, "`ddpctl push HOSTS --image` replaces it")
            )
        else:
            remedy = "have the right one here and `ddpctl push`, or remove the wrong one there"
            found.append(failure(machine.name, "image", f"{what} than on the other hosts", remedy))
    return found


def check_architecture(machine: Machine, here: Image | None) -> list[Finding]:
    if machine.facts is None:
        return []
    image = machine.docker.image if machine.docker and machine.docker.image else here
    cpu = machine.facts.kernel.split()[-1] if machine.facts.kernel else ""
    kind = _ARCHITECTURES.get(cpu, cpu)
    if image is None or not kind or not image.architecture or image.architecture == kind:
        return []
    what = f"the image is for {image.architecture}, the host is {kind}"
    return [failure(machine.name, "image", what, f"build the image for linux/{kind}")]
