"""The Docker SDK for one host, over `docker system dial-stdio` on that host."""

from __future__ import annotations

import contextlib
import email.utils
import functools
import io
import json
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import docker
import docker.errors
import requests
import requests.adapters
import urllib3
import urllib3.connection
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from ..budget import Budget, parse_json
from ..errors import CommandFailed, CommandTimeout, DdpctlError
from ..ssh.host_connection import HostConnection
from ..ssh.stream import CHUNK, Stream
from .command import DIAL, NOT_INSTALLED, unavailable
from .engine_info import WRITE_CDI_SPEC, Capabilities, parse_capabilities

TIMEOUT = 60  # seconds for one answer of the engine, by default
LARGEST = 16_000_000  # bytes of one answer; 10,000 containers take less
LONGEST_REFUSAL = 4000  # characters to keep of the engine's reason
END_TIMEOUT = 5.0  # seconds for a command to end after it has closed its output
NOT_FOUND = 127  # a shell's exit code if a command does not exist
IDLE_CONNECTIONS = 3  # to keep for the next call; each uses up one of sshd's MaxSessions
REMEDIES = {  # text in the engine's refusal -> remedy
    "could not select device driver": "install the NVIDIA container toolkit on that host",
    "no such image": "push it: `ddpctl push HOSTS --image`",
    "image not known": "push it: `ddpctl push HOSTS --image`",
    "unresolvable cdi devices": WRITE_CDI_SPEC,
    "container-init binary not found": "install catatonit on that host",
    "is already in use": "another command may be starting the same run; if not, run `ddpctl kill RUN`",
    "bind source path does not exist": "create the folder on that host, or fix job.mounts",
    "creating mount source path": "root on that host cannot enter your home folder (NFS with root "
    "squash?): make ~/.ddpctl a link to a folder on a local disk, or use a rootless engine",
    "no space left on device": "free up space under Docker's data root on that host",
    "executable file not found": "install python3 in the image, on its PATH",
}
SDK_ERRORS = (docker.errors.DockerException, RequestException, HTTPError)
LOOK_AT_DOCKER = "check the engine's log on that host (`journalctl -u docker`)"


def docker_of(connection: HostConnection) -> Api:
    """Return the host's Docker SDK client, created on first use.

    Raises DockerUnavailable if the engine does not answer.
    """
    return connection.resource(lambda: _connect(connection))


def _connect(connection: HostConnection) -> Api:
    try:
        return Api(connection)
    except docker.errors.DockerException as error:
        if isinstance(error.__cause__, DdpctlError):
            raise error.__cause__ from None
        raise unavailable(connection.name, str(error)) from None


class Api(docker.APIClient):
    """The Engine API of one host."""

    clock: float | None = None  # the host's clock in unix seconds, from its newest answer
    _about: dict[str, Any] | None = None

    def __init__(self, connection: HostConnection) -> None:
        self.name = connection.name
        self._adapter = _Adapter(
            lambda: StreamSocket(connection.name, connection.open_script(DIAL))
        )
        super().__init__("http://docker:80", version="auto", timeout=TIMEOUT)

    def close(self) -> None:
        self._adapter.close()
        super().close()

    @property
    def about(self) -> dict[str, Any]:
        """The engine's answer to /info, cached because the engine runs programs to produce it.

        Before Python 3.12, a cached_property would block all hosts while one of them answers.
        """
        if self._about is None:
            self._about = dict(self.info())
        return self._about

    @property
    def can(self) -> Capabilities:
        return parse_capabilities(self.about)

    def explain(self, error: BaseException, action: str = "") -> DdpctlError | None:
        """Return a one-line error for an SDK error; None for other errors. action: what failed."""
        if isinstance(error, docker.errors.APIError):
            text = " ".join(str(error.explanation or error).split())
            problem = f"could not {action}" if action else "Docker refused"
            remedies = (REMEDIES[pattern] for pattern in REMEDIES if pattern in text.lower())
            remedy = next(remedies, LOOK_AT_DOCKER)
            return CommandFailed(f"{problem}: {text}", remedy, host=self.name)
        return unavailable(self.name, str(error)) if isinstance(error, SDK_ERRORS) else None

    @contextlib.contextmanager
    def explained(self, action: str = "") -> Iterator[None]:
        """Context manager: replace SDK errors with what `explain` returns for them."""
        try:
            yield
        except SDK_ERRORS as error:
            raise self.explain(error, action) or error from None

    def get_adapter(self, url: str) -> requests.adapters.BaseAdapter:
        return self._adapter

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        """Send a request and return the answer. Unless it is a stream, read it within a budget.

        Raises one-line errors for connection errors and for answers that no engine would give.
        """
        whole = not kwargs.get("stream")
        request.headers["Accept-Encoding"] = "identity"
        # this machine's proxies do not apply to the host
        kwargs |= {"stream": True, "allow_redirects": False, "proxies": {}}
        try:
            answer = super().send(request, **kwargs)
            if whole or not answer.ok:
                self._read_whole(answer)
            else:  # a stream may take hours
                sdk: Any = self
                sdk._disable_socket_timeout(sdk._get_raw_response_socket(answer))
        except CommandTimeout:
            call = f"{request.method} {request.path_url}"
            what = f"Docker did not answer {call} within {kwargs.get('timeout')} s"
            remedy = "check whether the daemon or a disk is hanging on that host"
            raise CommandTimeout(what, remedy, host=self.name) from None
        except (RequestException, HTTPError) as error:
            raise unavailable(self.name, str(error)) from None
        with contextlib.suppress(ValueError, OverflowError):  # the date is missing or malformed
            date = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
            self.clock = date.timestamp()
        return answer

    def _read_whole(self, answer: requests.Response) -> None:
        """Read the whole body, and make the SDK parse it with `parse_json`."""
        body = bytearray()
        for chunk in answer.raw.stream(CHUNK, decode_content=False):
            body += chunk
        if answer.is_redirect or "Content-Encoding" in answer.headers:
            what = "the server on that socket is not a Docker Engine: its reply is a redirect or "
            raise unavailable(self.name, f"{what}compressed")
        if not answer.ok:  # the SDK expects a message, and detects the charset of other text
            with contextlib.suppress(ValueError, LookupError, TypeError):
                body = bytearray(str(parse_json(bytes(body))["message"]).encode(errors="replace"))
            text = body.decode(errors="replace")[:LONGEST_REFUSAL]
            body = bytearray(json.dumps({"message": text}).encode())
        answer._content, answer.encoding = bytes(body), "utf-8"
        # If it referred to the answer, the answer would stay in memory until the next garbage collection.
        parse = functools.partial(self._parse, answer.request.path_url, answer._content)
        answer.json = parse  # type: ignore[method-assign]

    def _parse(self, url: str, body: bytes) -> Any:
        try:
            return parse_json(body)
        except ValueError as error:
            path = url.partition("?")[0]
            raise unavailable(self.name, f"its answer to {path} is not JSON: {error}") from None


class _Adapter(requests.adapters.HTTPAdapter):
    """An adapter for requests whose connections are commands on the host."""

    def __init__(self, connect: Callable[[], StreamSocket]) -> None:
        self._pool = urllib3.HTTPConnectionPool(
            "docker", maxsize=IDLE_CONNECTIONS, retries=False, blocksize=CHUNK
        )
        self._pool.ConnectionCls = functools.partial(_Connection, connect)  # type: ignore[assignment]
        super().__init__()

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> urllib3.HTTPConnectionPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, connect: Callable[[], StreamSocket], **options: Any) -> None:
        super().__init__(**options)
        self._connect = connect

    def _new_conn(self) -> Any:
        return self._connect()

    @property
    def is_connected(self) -> bool:
        sock: Any = self.sock
        return sock is not None and sock.is_alive()


class StreamSocket:
    """The parts of a socket that http.client and the SDK use, over a command's stdin and stdout."""

    def __init__(self, name: str, stream: Stream) -> None:
        self._name, self._stream = name, stream
        self.settimeout(None)
        self._got_output = False
        self.is_alive = stream.is_alive

    def close(self) -> None:
        self._stream.close_stdin()  # this ends `docker system dial-stdio`, which SIGTERM may not
        self._stream.close()

    def makefile(self, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(socket.SocketIO(cast(Any, self), "rb"), CHUNK)

    def _decref_socketios(self) -> None:
        """Do nothing, so that closing a response keeps the connection for the next request."""

    def recv_into(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer), self._budget.left())
        except TimeoutError:
            raise self._budget.late() from None
        self._budget.take(len(data))
        if not data and not self._got_output:
            raise unavailable(self._name, self._error_output())
        self._got_output = True
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data: Any) -> None:
        try:
            self._stream.write(data, self._budget.left())
        except TimeoutError:
            raise self._budget.late() from None
        except BrokenPipeError:
            # if the engine answered before it disconnected, http.client reads that answer
            if not self._got_output:
                raise unavailable(self._name, self._error_output()) from None
            raise

    def settimeout(self, timeout: float | None) -> None:
        """Start the budget of one answer. None, as for a stream, makes it unlimited."""
        size = sys.maxsize if timeout is None else LARGEST
        self._budget = Budget("the engine", self._name, size, timeout)

    def _error_output(self) -> str:
        """Return why the command ended: its error output, or a description if it printed none."""
        with contextlib.suppress(TimeoutError):
            code = self._stream.wait(END_TIMEOUT)
            text = self._stream.stderr.read(END_TIMEOUT).decode(errors="replace")
            if code == NOT_FOUND:
                return NOT_INSTALLED
            return text or f"`docker system dial-stdio` exited with {code} and printed nothing"
        return "the engine closed the connection"
