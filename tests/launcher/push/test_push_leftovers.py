"""Tags that a push creates in the local engine, and those that a killed push leaves."""

from __future__ import annotations

import socket
import subprocess
import uuid
from collections.abc import Iterator

import engines
import pytest

from launcher.engines.image_store import ImageStore
from launcher.hosts import Host
from launcher.push.image import archive, registry
from launcher.push.push_progress import PushProgress
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console

pytestmark = [
    pytest.mark.skipif(bool(engines.missing()), reason=engines.missing()),
    pytest.mark.timeout(120),
]


def local_images() -> ImageStore:
    return ImageStore(HostConnection(Host(host="local")))


def docker(*words: str, stdin: str = "") -> str:
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def image() -> Iterator[str]:
    name = f"ddpctl-pushtest-{uuid.uuid4().hex[:8]}"
    recipe = f"FROM scratch\nLABEL test={name}\nLABEL more=1\n"
    docker("build", "-q", "-t", name, "-", stdin=recipe)
    yield name
    for found in set(docker("image", "ls", "-q", "--filter", f"label=test={name}").split()):
        docker("rmi", "-f", found)


def names(image: str) -> set[str]:
    """All that the image is called here."""
    [tags] = docker("image", "inspect", "--format", "{{json .RepoTags}}", image).splitlines()
    return set(tags.strip("[]").replace('"', "").split(","))


def test_tags_of_killed_pushes_are_removed_and_those_of_running_pushes_stay(image: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        dead = f"localhost:{gone.getsockname()[1]}/ddpctl/abc:push"
    with socket.create_server(("127.0.0.1", 0)) as under_way:
        live = f"localhost:{under_way.getsockname()[1]}/ddpctl/abc:push"
        other = live.replace("abc:push", "abc:mine")
        for name in (dead, live, other):
            docker("tag", image, name)
        archive.remove_stale_tags(local_images())
        assert names(image) == {f"{image}:latest", live, other}
    archive.remove_stale_tags(local_images())
    assert names(image) == {f"{image}:latest", other}


def test_a_push_that_the_engine_refuses_leaves_no_tag(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry.Registry, "repository", "localhost:1/ddpctl/abc")
    here = local_images().inspect(image)
    assert here is not None
    progress = PushProgress([], Console(quiet=True))
    export = archive.layer_archives(local_images(), image, here, 0, progress, by_diff_id=False)
    with pytest.raises(archive.NoLayers), export as archives:
        list(archives)
    assert names(image) == {f"{image}:latest"}
