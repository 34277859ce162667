"""Images to real engines: only what they lack is sent."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import engines
import pytest
from engines import Engine
from push_machines import Machine, Machines

from launcher.errors import DockerUnavailable
from launcher.hosts import Cluster, Job
from launcher.push.image.push_image import with_tag
from launcher.push.image.registry import Registry
from launcher.push.push import PushResult, push
from launcher.push.push_report import HostsNotReady
from launcher.push.transfer.fanout import Fanout
from launcher.push.transfer.payload import Payload
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console

MEGABYTE = 1 << 20

needs_engine = pytest.mark.skipif(bool(engines.missing()), reason=engines.missing())


@pytest.fixture(scope="module")
def engine_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    # a socket's path may have 108 bytes
    made = [Engine(tmp_path_factory.mktemp("e") / "d").start() for _ in range(2)]
    yield made
    for engine in made:
        engine.stop()


@pytest.fixture
def hosts(engine_pair: list[Engine], machines: Machines) -> list[Machine]:
    found = [machines(1, DOCKER_HOST=engine.address)[0] for engine in engine_pair]
    for engine in engine_pair:
        for image in set(engine.ask("image", "ls", "-aq").split()):
            engine.ask("rmi", "-f", image)
    return found


Build = Callable[[dict[str, int]], None]


@pytest.fixture
def name() -> Iterator[str]:
    name = f"ddpctl-pushtest-{uuid.uuid4().hex[:8]}"
    yield name
    found = subprocess.run(
        ["docker", "image", "ls", "-q", "--filter", f"label=test={name}"],
        capture_output=True,
        text=True,
        check=True,
    )
    for image in set(found.stdout.split()):
        subprocess.run(["docker", "rmi", "-f", image], check=True, capture_output=True)


@pytest.fixture
def build(tmp_path: Path, name: str) -> Build:
    """build({"base": 5 MB, ...}): an image with one layer per file, of so many random bytes."""

    def make(files: dict[str, int]) -> None:
        context = tmp_path / "context"
        context.mkdir(exist_ok=True)
        for file, size in files.items():
            if not (context / file).exists() or (context / file).stat().st_size != size:
                (context / file).write_bytes(os.urandom(size))
        lines = [
            "FROM scratch",
            f"LABEL test={name}",
            *(f"COPY {file} /{file}" for file in files),
            'CMD ["/x"]',
        ]
        (context / "Dockerfile").write_text("\n".join(lines))
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        argv = ["docker", "build", "-q", "-t", name, str(context)]
        subprocess.run(argv, check=True, capture_output=True, env=environment)

    return make


def push_image(hosts: list[Machine], name: str, *, quiet: bool = True) -> PushResult:
    cluster = Cluster(hosts=tuple(m.connection.host for m in hosts), job=Job(image=name))
    connections = [machine.connection for machine in hosts]
    return push(connections, cluster, parts={"image"}, console=Console(quiet=quiet))


def rootfs(engine: Engine | None, name: str) -> str:
    argv = ["image", "inspect", "--format", "{{json .RootFS.Layers}} {{.Id}}", name]
    if engine is not None:
        return engine.ask(*argv)
    done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@needs_engine
def test_only_the_layers_that_a_host_lacks_are_sent(
    hosts: list[Machine], engine_pair: list[Engine], build: Build, name: str
) -> None:
    build({"base": 9 * MEGABYTE, "middle": 2 * MEGABYTE, "top": MEGABYTE})
    first = push_image(hosts, name).report
    assert [host.image for host in first.hosts] == ["sent", "sent"]
    assert first.hosts[0].received_bytes > 12 * MEGABYTE
    same = push_image(hosts, name)
    assert same.report.sent_bytes == 0
    assert [host.image for host in same.report.hosts] == ["present", "present"]

    build({"base": 9 * MEGABYTE, "middle": 2 * MEGABYTE, "top": MEGABYTE - 1})
    done = push_image(hosts, name)
    for host, engine in zip(done.report.hosts, engine_pair, strict=True):
        assert (host.image, host.layers_sent, host.layers_skipped) == ("updated", 1, 2)
        assert host.received_bytes < 1.05 * MEGABYTE
        assert rootfs(engine, name) == rootfs(None, name)
        assert engine.ask("create", name)
    assert any("has a different " in text for text in done.report.notices)
    assert len(set(done.images)) == 1
    assert done.report.image_digest == done.images[0]


@needs_engine
def test_a_push_of_many_layers_prints_one_line_per_host(
    hosts: list[Machine], build: Build, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    build({f"layer{number}": MEGABYTE + number for number in range(4)})
    done = push_image(hosts, name, quiet=False).report
    lines = [line for line in capfd.readouterr().err.splitlines() if ": image: " in line]
    sizes = [f"{host.received_bytes / 1e6:.1f} MB" for host in done.hosts]
    assert [line.partition(" in ")[0] for line in sorted(lines)] == [
        f"ddpctl: {machine.connection.name}: image: {size}"
        for machine, size in zip(hosts, sizes, strict=True)
    ]


@needs_engine
def test_layers_that_came_by_docker_load_are_not_sent_again(
    hosts: list[Machine], engine_pair: list[Engine], build: Build, name: str
) -> None:
    sizes = {"base": 5 * MEGABYTE, "top": MEGABYTE}
    build(sizes)
    saved = subprocess.run(["docker", "save", name], capture_output=True, check=True).stdout
    for engine in engine_pair:
        subprocess.run(engine.argv("load"), input=saved, capture_output=True, check=True)
    for skipped, more in ((2, "more"), (3, "last")):
        build(sizes := {**sizes, more: MEGABYTE})
        for host in push_image(hosts, name).report.hosts:
            assert (host.layers_sent, host.layers_skipped) == (1, skipped)
            assert host.received_bytes < 1.1 * MEGABYTE
    assert engine_pair[0].ask("create", name)


@needs_engine
def test_a_host_that_lost_its_image_gets_the_layers_it_lacks(
    hosts: list[Machine], engine_pair: list[Engine], build: Build, name: str
) -> None:
    build({"base": 2 * MEGABYTE, "top": 1000})
    push_image(hosts, name)
    engine_pair[0].ask("rmi", "-f", name)
    done = push_image(hosts, name)
    assert [host.image for host in done.report.hosts] == ["sent", "present"]
    assert rootfs(engine_pair[0], name) == rootfs(None, name)


@needs_engine
def test_an_interrupted_push_continues_at_the_next_layer(
    hosts: list[Machine],
    engine_pair: list[Engine],
    build: Build,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build({"base": 3 * MEGABYTE, "middle": 2 * MEGABYTE, "top": MEGABYTE})
    send, left = Fanout._send_to, [1, 1]

    class Cut(BaseException):
        pass

    def first_two(self: Fanout, payload: Payload, connection: HostConnection) -> None:
        if not left:
            raise Cut
        left.pop()
        send(self, payload, connection)

    with monkeypatch.context() as patch:
        patch.setattr(Fanout, "_send_to", first_two)
        with pytest.raises(Cut):
            push_image(hosts[:1], name)
    done = push_image(hosts[:1], name).report.hosts[0]
    assert (done.layers_sent, done.layers_skipped) == (1, 2)
    assert done.received_bytes < 1.1 * MEGABYTE
    assert rootfs(engine_pair[0], name) == rootfs(None, name)
    assert engine_pair[0].ask("image", "ls", "-q", "--filter", "dangling=true") == ""


@needs_engine
def test_without_single_layers_the_whole_image_is_sent(
    hosts: list[Machine],
    engine_pair: list[Engine],
    build: Build,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build({"base": MEGABYTE, "top": 1000})
    monkeypatch.setattr(Registry, "repository", "localhost:1/ddpctl/abc")
    done = push_image(hosts, name)
    assert any("sending the whole image instead" in text for text in done.report.notices)
    for engine in engine_pair:
        assert rootfs(engine, name) == rootfs(None, name)


@needs_engine
def test_an_image_that_no_machine_has_is_one_line_for_all_hosts(
    hosts: list[Machine], name: str
) -> None:
    missing = f"localhost:1/{name}:none"
    with pytest.raises(HostsNotReady) as caught:
        push_image(hosts, missing)
    [line] = str(caught.value).splitlines()
    assert f"[1-2]: the image {missing} is neither on this machine" in line


@needs_engine
def test_an_image_that_only_the_hosts_have_must_be_the_same_there(
    hosts: list[Machine], engine_pair: list[Engine], build: Build, name: str
) -> None:
    build({"base": 1000})
    push_image(hosts, name)
    subprocess.run(["docker", "rmi", "-f", name], check=True, capture_output=True)
    assert push_image(hosts, name).report.sent_bytes == 0
    build({"base": 1001})
    push_image(hosts[:1], name)
    subprocess.run(["docker", "rmi", "-f", name], check=True, capture_output=True)
    with pytest.raises(HostsNotReady, match="is not the same image as on"):
        push_image(hosts, name)


def test_a_host_whose_engine_does_not_run_says_so(machines: Machines) -> None:
    (host,) = machines(1, DOCKER_HOST="unix:///nowhere/docker.sock")
    with pytest.raises(HostsNotReady, match="the Docker daemon is not running") as caught:
        push_image([host], "anything")
    assert isinstance(caught.value.failures[host.connection.name], DockerUnavailable)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trainer", "trainer:latest"),
        ("me/trainer:2", "me/trainer:2"),
        ("localhost:5000/trainer", "localhost:5000/trainer:latest"),
        ("trainer@sha256:12", None),
        ("sha256:12", None),
    ],
)
def test_the_tag_of_a_name_is_latest_unless_it_says_which(name: str, expected: str | None) -> None:
    assert with_tag(name) == expected
