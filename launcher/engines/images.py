"""Container images on one host's engine: inspect, save, push, pull, verify."""

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import docker.errors
from requests.exceptions import RequestException

from ..errors import CommandFailed, DdpctlError
from ..ssh.node import Node
from ..ssh.script_files import load_script
from .command import engine_command, unavailable
from .docker_client import LOOK_AT_DOCKER, docker_of
from .engine_info import ImageInfo, parse_image
from .status import array

LIST_LAYERS = load_script(__file__, "list_layers.sh")
TRANSFER_TIMEOUT = 3600  # seconds to pull an image, or between two progress messages of a push
LIST_TIMEOUT = 120.0  # seconds


def inspect(node: Node, name: str) -> ImageInfo | None:
    """Return the image's facts, or None if it is missing."""
    api: Any = docker_of(node)
    with api.explained("inspect the image"):
        try:
            return parse_image(api.inspect_image(name))
        except docker.errors.NotFound:
            return None


def layers_of_images(node: Node) -> list[list[str]]:
    """Return the layers (diff ids) of every image on the machine."""
    done = node.script(LIST_LAYERS, timeout=LIST_TIMEOUT)
    if done.code != 0:
        raise unavailable(node.name, done.stderr.decode(errors="replace"))
    found = []
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found.append([str(layer) for layer in array(json.loads(line))])
    return found


def verify(node: Node, refs: Sequence[str], scratch: Collection[str]) -> ImageInfo:
    """Check that an image is complete, delete the `scratch` images, and return its facts.

    An engine may load an image that lacks layers and fail only when it creates a container. So this
    creates and removes one. refs: names or ids of the image; the first that works is used.
    """
    api = docker_of(node)
    with api.explained():
        for ref in refs:
            try:
                made = api.create_container(
                    ref, entrypoint=["/bin/true"], host_config={"NetworkMode": "none"}
                )
                break
            except docker.errors.APIError:
                if ref == refs[-1]:
                    raise
        api.remove_container(made["Id"], force=True)
        image = inspect(node, ref)
        if image is None:
            raise CommandFailed(f"the image {ref} is gone", "push again", host=node.name)
        for found in set(api.images(all=True, quiet=True)) & set(scratch):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_image(found)
    return image


def pull(node: Node, name: str) -> ImageInfo:
    """Make the host pull the image with the host's own credentials. Raises CommandFailed."""
    done = node.run(engine_command("pull", "-q", name), timeout=TRANSFER_TIMEOUT)
    if done.code != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommandFailed(lines[-1] if lines else f"exit {done.code}", host=node.name)
    image = inspect(node, name)
    if image is None:
        raise CommandFailed(f"{name} is missing although the pull succeeded", host=node.name)
    return image


def needs_diff_ids(node: Node) -> bool:
    """Return whether an image archive must refer to omitted layers by diff id."""
    api = docker_of(node)
    with api.explained():
        return not api.can.knows_compressed_layers


def load_command(node: Node) -> tuple[str, ...]:
    """Return a command for the host that loads an image archive from stdin."""
    return (*engine_command("load", "-q"),)


def save(node: Node, name: str) -> Iterator[bytes]:
    """Yield the image archive, as from `docker save`."""
    api = docker_of(node)
    with api.explained():
        yield from api.get_image(name)


def push_to(node: Node, name: str, repository: str, tag: str) -> None:
    """Tag an image as `repository:tag` and push it. `untag` removes the tag."""
    api = docker_of(node)
    api.timeout = TRANSFER_TIMEOUT
    with api.explained():
        if not api.can.pushes_without_tls:
            raise CommandFailed(
                f"{api.can.product} pushes only to registries with TLS", host=node.name
            )
        api.tag(name, repository, tag)
        for message in api.push(repository, tag, stream=True, decode=True, auth_config={}):
            if "error" in message:
                raise CommandFailed(str(message["error"]), LOOK_AT_DOCKER, host=node.name)


def untag(node: Node, name: str) -> None:
    """Remove one name of an image, which stays if it has another name. Ignores errors."""
    with contextlib.suppress(DdpctlError, RequestException):
        docker_of(node).remove_image(name, noprune=True)


def tags(node: Node, pattern: str) -> list[str]:
    """Return the image names that match a `reference` filter; [] if the engine does not answer."""
    with contextlib.suppress(DdpctlError, RequestException):
        found = docker_of(node).images(filters={"reference": pattern})
        return [tag for image in found for tag in image.get("RepoTags") or ()]
    return []
