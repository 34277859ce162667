"""Container images of one machine's Docker Engine: inspect, save, push, pull, verify."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import docker.errors
import requests.exceptions

from launcher.engines.docker_client import docker_of, unavailable
from launcher.engines.engine_info import image_info
from launcher.errors import CommandFailed, DdpctlError
from launcher.ssh.node import Node

TRANSFER_TIMEOUT = 3600  # seconds to pull an image, or between two progress messages of a push
LIST_TIMEOUT = 120.0  # seconds

LIST_LAYERS = "docker image ls -aq --no-trunc | sort -u | " + (
    "xargs -r docker image inspect --format '{{json .RootFS.Layers}}'"
)


@dataclass(frozen=True)
class Image:
    """One image as its engine reports it.

    Engines with different image stores give the same image different ids. `layers` (the diff ids)
    and `fingerprint` (layers and configuration) are the same on all of them.
    """

    id: str
    layers: tuple[str, ...] = ()
    repo_digests: tuple[str, ...] = ()
    fingerprint: str = ""
    architecture: str = ""
    size: int = 0  # bytes
    env: Mapping[str, str] = field(default_factory=dict)

    def same_as(self, other: Image) -> bool:
        return (
            self.id == other.id
            or (bool(self.layers) and self.fingerprint == other.fingerprint)
            or bool(set(self.repo_digests) & set(other.repo_digests))
        )


def parse_image(inspected: Mapping[str, Any]) -> Image:
    """From the answer to `docker image inspect` or the API's /images/NAME/json."""
    config = inspected.get("Config") or {}
    layers = tuple((inspected.get("RootFS") or {}).get("Layers") or ())
    architecture = str(inspected.get("Architecture") or "")
    # Engines of different ages omit empty values or write null.
    runs = {key: config.get(key) or None for key in ("Cmd", "Entrypoint", "Env", "User", "Labels")}
    identity = [layers, runs, config.get("WorkingDir") or "", architecture]
    return Image(
        id=str(inspected.get("Id", "")),
        layers=layers,
        repo_digests=tuple(inspected.get("RepoDigests") or ()),
        fingerprint=json.dumps(identity, sort_keys=True),
        architecture=architecture,
        size=int(inspected.get("Size") or 0),
        env=dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry),
    )


def inspect(node: Node, name: str) -> Image | None:
    """None if the engine does not have the image. DockerUnavailable if it does not answer."""
    found = image_info(node, name)
    return parse_image(found.inspected) if found else None


def layers_of_images(node: Node) -> list[list[str]]:
    """The layers (diff ids) of every image on the machine."""
    done = node.script(LIST_LAYERS, timeout=LIST_TIMEOUT)
    if done.code != 0:
        raise unavailable(node.name, done.stderr.decode(errors="replace"))
    return [json.loads(line) or [] for line in done.stdout.splitlines()]


def verify(node: Node, refs: Sequence[str], scratch: Collection[str]) -> Image:
    """Prove that an image is complete and return it; then delete the `scratch` images.

    An engine may load an image that lacks layers and fail only when it creates a container, so one
    is created and removed. refs: names or ids of the image; the first that works counts.
    """
    api = docker_of(node).api
    with _one_line_errors(node):
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
            raise CommandFailed(f"{node.name}: the image {ref} is gone; push again")
        for found in set(api.images(all=True, quiet=True)) & set(scratch):
            with contextlib.suppress(docker.errors.APIError):
                api.remove_image(found)
    return image


def pull(node: Node, name: str) -> Image:
    """Have the host pull the image, with the credentials that it has. CommandFailed if it cannot."""
    done = node.run(["docker", "pull", "-q", name], timeout=TRANSFER_TIMEOUT)
    if done.code != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CommandFailed(lines[-1] if lines else f"exit {done.code}")
    image = inspect(node, name)
    if image is None:
        raise CommandFailed(f"{name} is gone after the pull")
    return image


def load_command(node: Node) -> tuple[str, ...]:
    """The command there that loads an image archive from its standard input."""
    return ("docker", "load", "-q")


def save(node: Node, name: str) -> Iterator[bytes]:
    """The image as `docker save` writes it."""
    with _one_line_errors(node):
        yield from docker_of(node).api.get_image(name)


def push_to(node: Node, name: str, repository: str, tag: str) -> None:
    """Tag an image as `repository:tag` and push that; `untag` removes the tag."""
    api = docker_of(node).api
    api.timeout = TRANSFER_TIMEOUT
    with _one_line_errors(node):
        api.tag(name, repository, tag)
        for message in api.push(repository, tag, stream=True, decode=True, auth_config={}):
            if "error" in message:
                raise CommandFailed(f"{node.name}: {message['error']}")


def untag(node: Node, name: str) -> None:
    """Remove one name of an image. The image stays if it has another."""
    with contextlib.suppress(DdpctlError), _one_line_errors(node):
        docker_of(node).api.remove_image(name, noprune=True)


def tags(node: Node, pattern: str) -> list[str]:
    """Image names that match a `reference` filter; [] if the engine does not answer."""
    with contextlib.suppress(DdpctlError), _one_line_errors(node):
        found = docker_of(node).api.images(filters={"reference": pattern})
        return [tag for image in found for tag in image.get("RepoTags") or ()]
    return []


@contextlib.contextmanager
def _one_line_errors(node: Node) -> Iterator[None]:
    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise node.explain(error) or error from None
