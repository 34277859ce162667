"""A command in a running container, over the Docker API."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import docker.errors

from ..ssh.stream import CHUNK
from .docker_client import Client, translated_errors

HEADER_BYTES = 8  # of a frame: stream number, three zeros, size of the data
POLL = 0.05  # seconds between polls for the start or the end of the command
RESIZE_TIMEOUT = 2.0  # seconds until the command must have a terminal
CONTAINER_GONE = 137  # as if the command had been killed


class DockerExec:
    """Satisfies launcher.engines.base.Exec."""

    def __init__(
        self, client: Client, container: str, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> None:
        self._client, self._tty = client, tty
        with translated_errors(client.name, "run the command"):
            made = client.api.exec_create(container, list(command), stdin=stdin, tty=tty)
            self._id: str = made["Id"]
            self._connection = client.api.exec_connection(self._id, tty=tty)

    def output(self) -> Iterator[tuple[int, bytes]]:
        reader = self._connection.reader
        if self._tty:
            while data := reader.read1(CHUNK):
                yield 1, data
            return
        while len(header := reader.read(HEADER_BYTES)) == HEADER_BYTES:
            stream, left = header[0], int.from_bytes(header[4:], "big")
            while left and (data := reader.read1(min(left, CHUNK))):
                left -= len(data)
                yield stream, data

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def close_stdin(self) -> None:
        self._connection.close_write()

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal. Retries, because the engine refuses until the command has started."""
        deadline = time.monotonic() + RESIZE_TIMEOUT
        while time.monotonic() < deadline:
            try:
                self._client.api.exec_resize(self._id, height=rows, width=columns)
                return
            except docker.errors.APIError:
                time.sleep(POLL)

    def wait(self) -> int:
        with translated_errors(self._client.name, "ask for the command's exit code"):
            try:
                while (seen := self._client.api.exec_inspect(self._id)).get("Running"):
                    time.sleep(POLL)
            except docker.errors.NotFound:
                return CONTAINER_GONE
        code = seen.get("ExitCode")
        return code if isinstance(code, int) else CONTAINER_GONE
