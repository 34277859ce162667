"""The images in the Docker or Podman of one host: inspect, build, save, push, pull, verify."""

import contextlib
import io
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import docker.errors
from requests.exceptions import RequestException

from ..budget import parse_json
from ..errors import CommandFailed, DdpctlError
from ..ssh.host_connection import HostConnection
from ..ssh.script_files import load_script
from ..text import printable
from .command import engine_command, unavailable
from .docker_client import LOOK_AT_DOCKER, Api, docker_of
from .engine_info import ImageInfo, parse_image
from .status import array

LIST_LAYERS = load_script(__file__, "list_layers.sh")
PULL_TIMEOUT = 3600  # seconds
LIST_TIMEOUT = 120.0  # seconds
REMOVING = "Removing intermediate container"  # of a build, printed after the line that explains its failure


class ImageStore:
    """The images in one host's engine. Every method may raise a DdpctlError."""

    def __init__(self, connection: HostConnection) -> None:
        self.connection = connection

    @property
    def _api(self) -> Api:
        return docker_of(self.connection)

    def inspect(self, name: str) -> ImageInfo | None:
        """Return facts about the image, or None if the engine does not have it."""
        api: Any = self._api
        with api.explained("inspect the image"):
            try:
                return parse_image(api.inspect_image(name))
            except docker.errors.NotFound:
                return None

    def pull(self, name: str) -> ImageInfo:
        """Have the host pull the image, with the host's own credentials, and return the image."""
        done = self.connection.run(engine_command("pull", "-q", name), timeout=PULL_TIMEOUT)
        image = self.inspect(name) if done.code == 0 else None
        if image is None:
            raise CommandFailed(done.reason, host=self.connection.name)
        return image

    def build(self, context: bytes, name: str) -> Iterator[str]:
        """Build an image from a tar archive with a Dockerfile. Yield the lines that the build prints."""
        api = self._api
        how: Any = {"custom_context": True, "rm": True, "forcerm": True, "network_mode": "host"}
        with api.explained():
            for message in api.build(fileobj=io.BytesIO(context), tag=name, decode=True, **how):
                if "error" in message:
                    error = str(message["error"])  # repeats the whole command, which is a script
                    why = re.sub("^The command '.*' returned", "a command returned", error)
                    what = f"could not build {name}: {printable(why)}"
                    raise CommandFailed(what, "see the build output above")
                told = map(printable, message.get("stream", "").splitlines())
                yield from (each for each in told if each and not each.startswith(REMOVING))

    def save(self, name: str) -> Iterator[bytes]:
        """Yield the image as an archive in chunks, as `docker save` writes it."""
        with self._api.explained():
            yield from self._api.get_image(name)

    def load_command(self) -> Sequence[str]:
        """Return the command that loads an image archive from stdin on the host."""
        return engine_command("load", "-q")

    def verify(self, refs: Sequence[str], scratch: Collection[str]) -> ImageInfo:
        """Check that an image is complete, and return facts about it.

        Creates a container and removes it, because an engine may load an image that lacks layers,
        and then fail only when it creates a container. refs: names or ids of the image; the first
        one that works is used. scratch: the ids of images to delete afterwards.
        """
        api = self._api
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
            image = self.inspect(ref)
            if image is None:
                raise CommandFailed(
                    f"the image {ref} is gone", "push again", host=self.connection.name
                )
            for partial in set(api.images(all=True, quiet=True)) & set(scratch):
                with contextlib.suppress(docker.errors.APIError):
                    api.remove_image(partial)
        return image

    def layers(self) -> list[list[str]]:
        """Return the layers (diff ids) of each image, lowest first."""
        done = self.connection.script(LIST_LAYERS, timeout=LIST_TIMEOUT)
        if done.code != 0:
            raise unavailable(self.connection.name, done.stderr.decode(errors="replace"))
        layers = []
        for line in done.stdout.splitlines():
            with contextlib.suppress(ValueError):
                layers.append([str(layer) for layer in array(parse_json(line))])
        return layers

    def needs_diff_ids(self) -> bool:
        """Return whether image archives for this engine must refer to omitted layers by diff id."""
        with self._api.explained():
            return not self._api.can.knows_compressed_layers

    def push_to(self, name: str, repository: str, tag: str) -> None:
        """Tag an image as `repository:tag` and push it. `untag` removes the tag."""
        api = self._api
        with api.explained():
            if not api.can.pushes_without_tls:
                what = f"{api.can.product} pushes only to registries with TLS"
                raise CommandFailed(what, host=self.connection.name)
            api.tag(name, repository, tag)
            for message in api.push(repository, tag, stream=True, decode=True, auth_config={}):
                if "error" in message:
                    raise CommandFailed(
                        str(message["error"]), LOOK_AT_DOCKER, host=self.connection.name
                    )

    def tag(self, image_id: str, name: str) -> None:
        """Give an image the name `repository:tag`. Another image with that name loses it."""
        repository, _, tag = name.rpartition(":")
        with self._api.explained():
            self._api.tag(image_id, repository, tag)

    def untag(self, name: str) -> None:
        """Remove one of an image's names; keep the image if it has another. Ignores errors."""
        with contextlib.suppress(DdpctlError, RequestException):
            self._api.remove_image(name, noprune=True)

    def tags(self, pattern: str) -> list[str]:
        """Return the image names that match a `reference` filter; [] if that fails."""
        with contextlib.suppress(DdpctlError, RequestException):
            images = self._api.images(filters={"reference": pattern})
            return [tag for image in images for tag in image.get("RepoTags") or ()]
        return []
