"""A command in a running container, over the Docker API."""

import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import docker.errors

from ..errors import CommandTimeout
from ..ssh.stream import CHUNK
from ..text import duration
from .docker_client import Api
from .status import mapping

HEADER_BYTES = 8  # of a frame: stream number, three zeros, size of the data
END_TIMEOUT = 60.0  # seconds
POLL = 0.05  # seconds between polls for the start or the end of the command
RESIZE_TIMEOUT = 2.0  # seconds for the command to get its terminal
CONTAINER_GONE = 137  # the exit code of a killed command
# what the engine sends as output if it cannot start the command, with the reason
NOT_STARTED = re.compile(
    rb"OCI runtime exec failed: .*?exec: (.*?)(?:: unknown)?\r?\n?$", re.DOTALL
)


class DockerExec:
    """Satisfies launcher.engines.base.Exec."""

    def __init__(
        self, api: Api, container: str, command: Sequence[str], *, stdin: bool, tty: bool
    ) -> None:
        self._api, self._tty = api, tty
        with api.explained("run the command"):
            created = api.exec_create(container, list(command), stdin=stdin, tty=tty)
            self._id = str(mapping(created).get("Id"))
            upgraded: Any = api.exec_start(self._id, tty=tty, socket=True)
        self._reader = upgraded._response.raw._fp.fp  # may have buffered some output
        self._socket = upgraded._sock

    def output(self) -> Iterator[tuple[int, bytes]]:
        for stream, data in self._chunks():
            if refusal := NOT_STARTED.match(data):
                stream, end = (1, b"\r\n") if self._tty else (2, b"\n")
                data = b"%s: cannot run %s%s" % (self._api.name.encode(), refusal[1], end)
            yield stream, data

    def _chunks(self) -> Iterator[tuple[int, bytes]]:
        if self._tty:
            while data := self._reader.read1(CHUNK):
                yield 1, data
            return
        while len(header := self._reader.read(HEADER_BYTES)) == HEADER_BYTES:
            stream, left = header[0], int.from_bytes(header[4:], "big")
            while left and (data := self._reader.read1(min(left, CHUNK))):
                left -= len(data)
                yield stream, data

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close_stdin(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()

    def resize(self, rows: int, columns: int) -> None:
        """Resize the terminal. Retries, because the engine refuses until the command has started."""
        deadline = time.monotonic() + RESIZE_TIMEOUT
        while time.monotonic() < deadline:
            try:
                self._api.exec_resize(self._id, height=rows, width=columns)
                return
            except docker.errors.APIError:
                time.sleep(POLL)

    def wait(self) -> int:
        deadline = time.monotonic() + END_TIMEOUT
        with self._api.explained("ask for the command's exit code"):
            try:
                while (seen := mapping(self._api.exec_inspect(self._id))).get("Running") is True:
                    if time.monotonic() > deadline:
                        raise CommandTimeout(
                            f"the command did not end within {duration(END_TIMEOUT)} of its output",
                            "look for it with `docker top` there: it may run on without output",
                            host=self._api.name,
                        )
                    time.sleep(POLL)
            except docker.errors.NotFound:
                return CONTAINER_GONE
        code = seen.get("ExitCode")
        return code if isinstance(code, int) else CONTAINER_GONE
