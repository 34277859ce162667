"""The Docker SDK over SSH, against a real engine; and each way in which there is none."""

from __future__ import annotations

import contextlib
import gc
import http.server
import io
import os
import shutil
import socketserver
import subprocess
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import docker.errors
import pytest
import requests
from sshd_server import Sshd

from launcher.engines.docker import Docker
from launcher.engines.docker_client import docker_of
from launcher.engines.status import NodeStatus
from launcher.errors import (
    CommandFailed,
    CommandTimeout,
    DockerUnavailable,
    HostUnreachable,
    NodesFailed,
)
from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.many import each_node

Connect = Callable[..., HostConnection]
Server = Callable[..., Sshd]

cluster = pytest.mark.cluster


# -- where there is no engine, or none for us


def why_not(connection: HostConnection) -> str:
    with pytest.raises(DockerUnavailable) as caught:
        _ = docker_of(connection)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{connection.name}: ")
    return message


@pytest.fixture
def stand_in(sshd: Server, connect_to: Connect, tmp_path: Path) -> Callable[[str], HostConnection]:
    """A machine whose docker command is the given script; "" for none."""

    def make(script: str) -> HostConnection:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("sh", "cat", "sleep", "printf"):
            (folder / name).symlink_to(shutil.which(name) or name)
        if script:
            (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "docker").chmod(0o755)
        home = tmp_path / "home"
        server = sshd(SetEnv=f"HOME={home} PATH={folder}")
        machine = connect_to(server.host())
        # what a stand-in does not shadow must not be found behind it
        machine_open = machine._machine.open
        dial = f"PATH={folder}; exec docker system dial-stdio"
        machine._machine.open = lambda argv, **kw: machine_open(  # type: ignore[method-assign]
            ["sh", "-c", dial] if "dial-stdio" in argv[2] else argv, **kw
        )
        return machine

    return make


@pytest.mark.parametrize(
    ("script", "problem", "remedy"),
    [
        ("", "Docker is not installed", "docs.docker.com/engine/install"),
        (
            "echo 'failed to open the raw stream connection: dial unix /var/run/docker.sock: "
            "connect: no such file or directory' >&2; exit 1",
            "the Docker daemon is not running",
            "sudo systemctl start docker",
        ),
        (
            "echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the "
            "docker daemon running?' >&2; exit 1",
            "the Docker daemon is not running",
            "systemctl --user start docker",
        ),
        (
            "echo 'permission denied while trying to connect to the Docker daemon socket at "
            "unix:///var/run/docker.sock' >&2; exit 1",
            "this user is not allowed to use Docker",
            "sudo usermod -aG docker $USER",
        ),
        ("echo \"docker: 'dial-stdio' is not a docker command.\" >&2; exit 1", "too old", "18.09"),
        ("printf '\\nUsage:\\tdocker system COMMAND\\n'; cat >/dev/null", "too old", "18.09"),
        ("echo boom >&2; exit 3", "no usable answer from Docker: boom", ""),
        ("exit 3", "no usable answer from Docker: `docker system dial-stdio` exited with 3", ""),
    ],
)
def test_an_engine_that_is_not_there_is_one_line(
    stand_in: Callable[[str], HostConnection], script: str, problem: str, remedy: str
) -> None:
    message = why_not(stand_in(script))
    assert problem in message
    assert remedy in message


def test_docker_answers_through_a_login_shell_that_prints(
    sshd: Server, connect_to: Connect, tmp_path: Path
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(
        "#!/bin/sh\nread line\nprintf 'HTTP/1.1 200 OK\\r\\nContent-Length: 21\\r\\n\\r\\n"
        '{"ApiVersion":"1.43"}\'\n'
    )
    docker.chmod(0o755)
    greeting = f'echo hello; PATH={docker.parent}:$PATH; exec sh -c "$SSH_ORIGINAL_COMMAND"'
    machine = connect_to(sshd(ForceCommand=greeting).host())
    assert docker_of(machine)._version == "1.43"


def test_the_connection_ends_with_its_input_even_if_it_ignores_sigterm(
    connect_to: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(
        "#!/bin/sh\ntrap '' TERM\nread line\nprintf 'HTTP/1.1 200 OK\\r\\nContent-Length: 21\\r\\n"
        f'\\r\\n{{"ApiVersion":"1.43"}}\'\ncat >/dev/null; echo ended >{tmp_path}/end\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    machine = connect_to(Host("local"))
    assert docker_of(machine)._version == "1.43"
    machine.close()
    assert (tmp_path / "end").exists()


def test_a_login_shell_that_runs_no_commands_is_not_called_an_old_docker(
    sshd: Server, connect_to: Connect
) -> None:
    machine = connect_to(sshd(ForceCommand="echo This account is not available").host())
    with pytest.raises(CommandFailed, match="the login shell does not run `sh`: it printed `This"):
        docker_of(machine)


def test_an_engine_that_does_not_answer_is_given_up(
    stand_in: Callable[[str], HostConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.engines.docker_client.TIMEOUT", 1)
    with pytest.raises(CommandTimeout, match="did not answer GET /version within 1 s"):
        _ = docker_of(stand_in("sleep 30"))


def test_an_unreachable_host_is_not_a_docker_problem(connect_to: Connect) -> None:
    with pytest.raises(HostUnreachable):
        _ = docker_of(connect_to(Host("127.0.0.1", port=1)))


def test_this_machine_without_an_engine(
    connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert "local: the Docker daemon is not running" in why_not(connect_to(Host("local")))
    monkeypatch.delenv("DOCKER_HOST")
    monkeypatch.setenv("DOCKER_CONTEXT", "no-such-context")
    assert "the current context of its docker command" in why_not(connect_to(Host("local")))


def test_the_current_context_of_this_machine_is_used(
    connect_to: Connect, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which("docker"):
        pytest.skip("there is no docker command here to make a context with")
    monkeypatch.setenv("DOCKER_CONFIG", str(home / ".docker"))
    create = ["docker", "context", "create", "elsewhere", "--docker"]
    socket = f"host=unix://{tmp_path}/docker.sock"
    subprocess.run([*create, socket], check=True, capture_output=True)
    subprocess.run(["docker", "context", "use", "elsewhere"], check=True, capture_output=True)
    with engine_saying(lambda _: b'{"ApiVersion": "1.33"}', tmp_path):
        assert docker_of(connect_to(Host("local")))._version == "1.33"


@contextlib.contextmanager
def engine_saying(answer: Callable[[str], bytes], folder: Path) -> Iterator[None]:
    """An engine at `folder`/docker.sock that gives `answer(path)` to every question."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "a unix socket"

        def do_GET(self) -> None:
            body = answer(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(folder / "docker.sock"), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def test_no_engine_waits_for_another_ones_info(
    connect_to: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def answer(path: str) -> bytes:
        if path.endswith("/info"):
            both.wait(10)
        return b'{"ApiVersion": "1.45"}'

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with engine_saying(answer, tmp_path):
        clients = [docker_of(connect_to(Host("local"))) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            assert (
                list(pool.map(lambda client: client.about, clients)) == [{"ApiVersion": "1.45"}] * 2
            )


def test_an_answer_does_not_stay_in_memory_until_the_garbage_is_collected(
    connect_to: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`launch --wait` asks for hours, and each answer may have megabytes."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with engine_saying(lambda _: b'{"ApiVersion": "1.45"}', tmp_path):
        client = docker_of(connect_to(Host("local")))
        gc.collect()
        gc.disable()
        try:
            assert client.info() == {"ApiVersion": "1.45"}
            assert not any(type(each) is requests.Response for each in gc.get_objects())
        finally:
            gc.enable()


# -- where there is one


def sdk(connection: HostConnection) -> docker.DockerClient:
    client = docker.DockerClient.__new__(docker.DockerClient)
    client.api = docker_of(connection)
    return client


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    try:
        client = docker.from_env(version="auto")
        client.ping()
    except docker.errors.DockerException as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have a Docker Engine: {error}")
        pytest.skip(f"no Docker Engine here (scripts/engine starts one): {error}")
    return client


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient) -> Iterator[str]:
    """A few programs of this machine and the libraries they need, made in a second."""
    programs = [shutil.which(name) or name for name in ("sh", "sleep", "cat")]
    libraries = {
        word
        for program in programs
        for word in subprocess.run(["ldd", program], capture_output=True, text=True).stdout.split()
        if word.startswith("/")
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in [*programs, *libraries]:
            name = f"bin/{Path(path).name}" if path in programs else path.lstrip("/")
            tar.add(Path(path).resolve(), name)
        folder = tarfile.TarInfo("tmp")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(folder)
    name = f"ddpctl-test-{uuid.uuid4().hex[:8]}:latest"
    repository, tag = name.split(":")
    engine.api.import_image_from_data(buffer.getvalue(), repository=repository, tag=tag)
    yield name
    engine.images.remove(name, force=True)


@pytest.fixture(params=["ssh", "local"])
def machine(request: pytest.FixtureRequest, sshd: Server, connect_to: Connect) -> HostConnection:
    return connect_to(sshd().host() if request.param == "ssh" else Host("local"))


@pytest.fixture
def start(
    machine: HostConnection, image: str
) -> Iterator[Callable[[str], docker.models.containers.Container]]:
    """Starts a container on the machine that runs a shell script."""
    started = []

    def run(script: str) -> docker.models.containers.Container:
        container = sdk(machine).containers.run(
            image, ["/bin/sh", "-c", script], detach=True, network_mode="none", init=False
        )
        started.append(container)
        return container

    yield run
    for container in started:
        container.remove(force=True)


Start = Callable[[str], docker.models.containers.Container]


@cluster
def test_logs_are_streamed_and_the_exit_code_is_waited_for(start: Start) -> None:
    container = start("echo one; sleep 0.7; echo two; echo three >&2; exit 5")
    times = []
    text = b""
    for chunk in container.logs(stream=True, follow=True):
        times.append(time.monotonic())
        text += chunk
    assert sorted(text.split()) == [b"one", b"three", b"two"]
    assert times[-1] - times[0] > 0.4  # as it was said, not at the end
    assert container.wait()["StatusCode"] == 5


@cluster
def test_many_calls_use_few_connections(
    machine: HostConnection, engine: docker.DockerClient
) -> None:
    opened = []
    machine_open = machine._machine.open
    machine._machine.open = lambda *a, **k: opened.append(1) or machine_open(*a, **k)  # type: ignore
    for _ in range(20):
        assert docker_of(machine).ping()
    assert len(opened) <= 1


@cluster
def test_twelve_waits_at_once_are_more_than_one_connection_allows(
    machine: HostConnection, start: Start
) -> None:
    containers = [start("sleep 1; exit 3") for _ in range(12)]
    with ThreadPoolExecutor(12) as pool:
        ended = pool.map(lambda container: container.wait(), containers)
        assert [each["StatusCode"] for each in ended] == [3] * 12


@cluster
def test_an_image_is_saved_and_loaded(machine: HostConnection, image: str) -> None:
    client = sdk(machine)
    before = client.images.get(image)
    saved = b"".join(before.save(chunk_size=1024 * 1024, named=True))
    half = len(saved) // 2
    loaded = client.images.load(iter([saved[:half], saved[half:]]))
    assert [found.id for found in loaded] == [before.id]


@cluster
def test_a_command_reads_its_input_to_the_end_and_may_be_silent_for_long(
    machine: HostConnection, start: Start
) -> None:
    status = NodeStatus(handle=start("sleep 60").id)
    command = ["/bin/sh", "-c", "cat; sleep 2; echo err >&2; exit 4"]
    running = Docker(machine).exec(status, command, stdin=True, tty=False)
    payload = os.urandom(100_000)
    running.write(payload)
    running.close_stdin()
    output = list(running.output())
    assert b"".join(data for number, data in output if number == 1) == payload
    assert b"".join(data for number, data in output if number == 2) == b"err\n"
    assert running.wait() == 4


@cluster
def test_the_engines_own_errors_stay_its_own(
    machine: HostConnection, engine: docker.DockerClient
) -> None:
    with pytest.raises(docker.errors.NotFound):
        sdk(machine).containers.get("no-such-container")


@cluster
def test_each_node_makes_one_line_of_the_engines_errors(
    machine: HostConnection, engine: docker.DockerClient
) -> None:
    with pytest.raises(NodesFailed) as caught:
        each_node([machine], lambda n: sdk(n).images.get("no-such-image"))
    (error,) = caught.value.failures.values()
    assert isinstance(error, CommandFailed)
    assert str(error).startswith(f"{machine.name}: Docker refused: ")
    assert "No such image: no-such-image:latest" in str(error)


@cluster
def test_an_answer_that_is_late_is_a_timeout(start: Start) -> None:
    with pytest.raises(CommandTimeout, match=r"POST /v1\.\d+/containers/\w+/wait within 1 s"):
        start("sleep 60").wait(timeout=1)


@cluster
def test_a_connection_that_breaks_while_logs_stream_is_an_unreachable_host(
    sshd: Server, connect_to: Connect, image: str, engine: docker.DockerClient
) -> None:
    server = sshd()
    client = sdk(connect_to(server.host()))
    container = client.containers.run(
        image, ["/bin/sh", "-c", "echo up; sleep 60"], detach=True, network_mode="none"
    )
    try:
        stream = container.logs(stream=True, follow=True)
        assert next(stream) == b"up\n"
        server.stop()
        with pytest.raises(HostUnreachable, match="connection lost"):
            next(stream)
    finally:
        engine.containers.get(container.id).remove(force=True)


@cluster
def test_the_client_survives_a_lost_connection(
    sshd: Server, connect_to: Connect, engine: docker.DockerClient
) -> None:
    server = sshd()
    client = docker_of(connect_to(server.host()))
    assert client.ping()
    server.stop()
    with pytest.raises(HostUnreachable, match=r"connection (lost|refused)"):
        client.ping()
    server.start()
    assert client.ping()
