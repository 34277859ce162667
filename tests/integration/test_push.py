"""`ddpctl push` to the simulated cluster: what is sent, and what remains after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import USER, Cluster, Home, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MEGABYTE = 10**6
TREES = f"/home/{USER}/.ddpctl/datasets"


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """A name for an image of this test. Images with that name are removed afterwards."""
    name = f"ddpctl-pushtest-{uuid.uuid4().hex[:8]}"
    yield name
    argv = ["docker", "image", "ls", "-q", "--filter", f"label=test={name}"]
    for found in set(subprocess.run(argv, capture_output=True, text=True).stdout.split()):
        subprocess.run(["docker", "rmi", "-f", found], capture_output=True)


@pytest.fixture
def data(tmp_path: Path, cluster: Cluster) -> Iterator[Path]:
    """80 files of one megabyte each."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(80):
        (folder / f"{number:03}").write_bytes(os.urandom(MEGABYTE))
    yield folder
    for node in cluster.nodes:
        cluster.exec(node, "rm", "-rf", TREES)


def build(name: str, context: Path, sizes: dict[str, int]) -> None:
    """Build an image with one layer per file of random bytes, keeping files that exist."""
    context.mkdir(exist_ok=True)
    for file, size in sizes.items():
        if not (context / file).exists() or (context / file).stat().st_size != size:
            (context / file).write_bytes(os.urandom(size))
    lines = ["FROM scratch", f"LABEL test={name}", *(f"COPY {file} /{file}" for file in sizes)]
    (context / "Dockerfile").write_text("\n".join(lines))
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    argv = ["docker", "build", "-q", "-t", name, str(context)]
    subprocess.run(argv, check=True, capture_output=True, env=environment)


def own_names(image: str) -> str:
    """Return the tags that pushes gave this test's image in this machine's engine."""
    look = ["docker", "image", "ls", "-q", "--filter", f"label=test={image}"]
    look += ["--filter", "reference=localhost:*/ddpctl/*:push"]
    return subprocess.run(look, capture_output=True, text=True, check=True).stdout


def push(home: Home, hosts: Path, *flags: str) -> dict[str, Any]:
    done = home.ddpctl("push", hosts, "--json", *flags, timeout=200)
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "rc": done.returncode, "stderr": done.stderr}


def received(cluster: Cluster, node: str) -> int:
    """Return how many bytes the host's network card has received from any sender."""
    return int(cluster.exec(node, "cat", "/sys/class/net/eth0/statistics/rx_bytes"))


def digest_of(cluster: Cluster, node: str, digest: str) -> str:
    """Return the digest of a pushed tree's content, computed by the host's own tools."""
    look = f"cd {TREES}/{digest} && find . -type f | sort | xargs sha256sum | sha256sum"
    return cluster.exec(node, "sh", "-c", look)


def test_a_changed_last_layer_is_all_that_reaches_the_network_cards(
    cluster: Cluster, home: Home, tmp_path: Path, image: str
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", image=image)
    sizes = {"base": 12 * MEGABYTE, "top": 2 * MEGABYTE}
    build(image, tmp_path / "context", sizes)
    first = push(home, hosts, "--image")
    assert first["rc"] == 0, first
    assert [host["image"] for host in first["hosts"]] == ["sent"] * 3
    build(image, tmp_path / "context", {**sizes, "top": 2 * MEGABYTE - 1})
    before = {node: received(cluster, node) for node in cluster.nodes}
    second = push(home, hosts, "--image")
    assert second["rc"] == 0, second
    for node, host in zip(cluster.nodes, second["hosts"], strict=True):
        assert (host["image"], host["layers_sent"], host["layers_skipped"]) == ("updated", 1, 1)
        assert host["received_bytes"] < 1.05 * 2 * MEGABYTE
        assert received(cluster, node) - before[node] < 1.25 * 2 * MEGABYTE
        cluster.exec(node, "docker", "create", image, "/top")
    before = {node: received(cluster, node) for node in cluster.nodes}
    third = push(home, hosts, "--image")
    assert third["sent_bytes"] == 0
    assert all(received(cluster, node) - before[node] < 100_000 for node in cluster.nodes)


def test_an_interrupted_push_of_an_image_leaves_no_name_in_the_local_engine(
    cluster: Cluster, home: Home, tmp_path: Path, image: str
) -> None:
    cluster.slow("node0", "20mbit")
    build(image, tmp_path / "context", {"base": 60 * MEGABYTE})
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0"], image=image)
    for end in (signal.SIGINT, signal.SIGKILL):
        process = home.start("push", hosts, "--image")
        until(lambda: own_names(image), 60, "the image has its name for the push")
        process.send_signal(end)
        process.communicate(timeout=60)
        if end == signal.SIGINT:
            assert own_names(image) == ""
    cluster.reset()
    assert push(home, hosts, "--image")["rc"] == 0
    assert own_names(image) == ""


def stop_engine(cluster: Cluster, node: str) -> None:
    """Stop a host's engine and its containerd, because the next engine starts its own."""
    cluster.stop_dockerd(node)
    left = "pkill -x containerd; pgrep -x 'dockerd|containerd' || true"
    until(lambda: not cluster.exec(node, "sh", "-c", left), 60, f"the engine of {node} is gone")


CONTAINERD = """
version = 2
root = "/var/lib/docker/containerds/containerd"
state = "/run/containerds"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "/run/containerds/containerd.sock"
[plugins."io.containerd.gc.v1.scheduler"]
mutation_threshold = 1
pause_threshold = 0.5
"""


@pytest.fixture
def containerd_store(cluster: Cluster) -> Iterator[str]:
    """A host whose engine uses containerd's image store, as new installations do.

    This containerd collects its garbage after every change, and not only after a hundred.
    """
    node, folder = "node1", "/var/lib/docker/containerds"
    stop_engine(cluster, node)
    asked = '{"features": {"containerd-snapshotter": true}}'
    cluster.exec(node, "sh", "-c", "cat >/run/store.json", stdin=asked.encode())
    cluster.exec(node, "sh", "-c", "cat >/run/containerds.toml", stdin=CONTAINERD.encode())
    argv = "--storage-driver overlayfs --bridge=none --iptables=false"
    start = (
        "rm -f /var/run/docker.pid; exec >/var/log/containerds.log 2>&1 </dev/null; "
        "setsid containerd --config /run/containerds.toml & "
        "setsid dockerd --config-file /run/store.json --containerd /run/containerds/containerd.sock "
        f"--data-root {folder} {argv} &"
    )
    cluster.exec(node, "sh", "-c", start)
    storage = "docker info --format '{{.DriverStatus}}' 2>/dev/null || true"
    try:
        until(
            lambda: "io.containerd.snapshotter" in cluster.exec(node, "sh", "-c", storage),
            60,
            "the engine with containerd's store answers; /var/log/containerds.log there explains why not",
        )
        yield node
    finally:
        stop_engine(cluster, node)
        cluster.exec(node, "rm", "-rf", folder)
        cluster.start_dockerd(node)


def test_both_kinds_of_image_store_get_only_what_they_lack(
    cluster: Cluster, home: Home, tmp_path: Path, image: str, containerd_store: str
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", containerd_store], image=image)
    sizes = {"base": 6 * MEGABYTE, "middle": MEGABYTE, "top": 2 * MEGABYTE}
    build(image, tmp_path / "context", sizes)
    first = push(home, hosts, "--image")
    assert first["rc"] == 0, first
    assert [host["image"] for host in first["hosts"]] == ["sent", "sent"]
    again = push(home, hosts, "--image")
    assert [host["image"] for host in again["hosts"]] == ["present", "present"], again
    assert again["sent_bytes"] == 0
    build(image, tmp_path / "context", {**sizes, "top": 2 * MEGABYTE - 1})
    second = push(home, hosts, "--image")
    assert second["rc"] == 0, second
    for host in second["hosts"]:
        assert (host["image"], host["layers_sent"], host["layers_skipped"]) == ("updated", 1, 2)
        assert host["received_bytes"] < 1.05 * 2 * MEGABYTE
        cluster.exec(host["host"], "docker", "create", image, "/top")
    assert second["image_digest"]


def test_layers_that_came_by_docker_load_are_not_sent_again_to_containerds_store(
    cluster: Cluster, home: Home, tmp_path: Path, image: str, containerd_store: str
) -> None:
    sizes = {"base": 5 * MEGABYTE, "middle": MEGABYTE}
    build(image, tmp_path / "context", sizes)
    saved = subprocess.run(["docker", "save", image], capture_output=True, check=True).stdout
    cluster.engine(containerd_store, "load", stdin=saved)
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", [containerd_store], image=image)
    for skipped, more in ((2, "more"), (3, "last")):
        build(image, tmp_path / "context", sizes := {**sizes, more: MEGABYTE})
        pushed = push(home, hosts, "--image")
        assert pushed["rc"] == 0, pushed
        [host] = pushed["hosts"]
        assert (host["layers_sent"], host["layers_skipped"]) == (1, skipped)
        cluster.engine(containerd_store, "create", image, "/last")


@pytest.mark.parametrize("cluster", ["hosts_with_python3"], indirect=True)
def test_hosts_with_python_relay_what_this_machine_sends_once(
    cluster: Cluster, home: Home, tmp_path: Path, data: Path
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", dataset=str(data))
    before = {node: received(cluster, node) for node in cluster.nodes}
    done = push(home, hosts, "--dataset")
    assert done["rc"] == 0, done
    assert 80 * MEGABYTE < done["sent_bytes"] < 1.05 * 80 * MEGABYTE
    assert all(received(cluster, n) - before[n] > 80 * MEGABYTE for n in cluster.nodes)
    digest = done["dataset_digest"]
    assert len({digest_of(cluster, node, digest) for node in cluster.nodes}) == 1


@pytest.mark.parametrize("cluster", ["hosts", "hosts_with_python3"], indirect=True)
def test_a_host_that_dies_while_it_relays_is_named_and_the_others_have_the_tree(
    cluster: Cluster, home: Home, tmp_path: Path, data: Path
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", dataset=str(data))
    for node in cluster.nodes:
        cluster.slow(node, "160mbit")
    process = home.start("push", hosts, "--dataset", "--json")
    arrived = f"ls {TREES}/.*/tree 2>/dev/null | wc -l"
    until(lambda: int(cluster.exec("node1", "sh", "-c", arrived)) > 10, 60, "node1 has some of it")
    cluster.kill_host("node1")
    out, err = process.communicate(timeout=120)
    document = json.loads(out)
    assert process.returncode in (4, 5), err.decode()
    assert [host["error"] is None for host in document["hosts"]] == [True, False, True]
    assert err.decode().count("error: ") == 1
    cluster.start_host("node1")
    assert "node1" in document["hosts"][1]["error"]
    digest = document["dataset_digest"]
    again = push(home, hosts, "--dataset")
    assert again["rc"] == 0, again
    assert [host["dataset"] for host in again["hosts"]] == ["present", "sent", "present"]
    assert len({digest_of(cluster, node, digest) for node in cluster.nodes}) == 1


@pytest.mark.parametrize("cluster", ["hosts", "hosts_with_python3"], indirect=True)
def test_a_push_whose_launcher_was_killed_is_continued(
    cluster: Cluster, home: Home, tmp_path: Path, data: Path
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", dataset=str(data))
    for node in cluster.nodes:
        cluster.slow(node, "160mbit")
    process = home.start("push", hosts, "--dataset", "--json")
    arrived = f"ls {TREES}/.*/tree 2>/dev/null | wc -l"
    until(lambda: int(cluster.exec("node2", "sh", "-c", arrived)) > 30, 60, "node2 has some of it")
    process.kill()
    process.communicate()
    published = f"ls {TREES}"
    assert not any(cluster.exec(node, "sh", "-c", published) for node in cluster.nodes)

    def nothing_left() -> bool:
        names = [cluster.exec(node, "ps", "-eo", "args") for node in cluster.nodes]
        return not any("ddpctl-agent" in text or "tar -x" in text for text in names)

    until(nothing_left, 30, "nothing of the push is left on the hosts")
    again = push(home, hosts, "--dataset")
    assert again["rc"] == 0, again
    assert all(host["files_sent"] < 60 for host in again["hosts"])
    digest = again["dataset_digest"]
    assert len({digest_of(cluster, node, digest) for node in cluster.nodes}) == 1
    left = f"ls -A {TREES}"
    assert all(cluster.exec(node, "sh", "-c", left) == digest for node in cluster.nodes)
