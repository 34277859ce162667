"""What differs with Podman, rootful and rootless, next to a host with Docker."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import NVIDIA_SMI, TRAINER_IMAGE, Cluster, Home

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("cluster", ["hosts_with_podman"], indirect=True),
]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


@pytest.fixture
def name(tmp_path: Path) -> Iterator[str]:
    """A name for this test's images on this machine, which are removed afterwards."""
    name = f"ddpctl-podmantest-{os.getpid()}"
    yield name
    subprocess.run(["docker", "rmi", "-f", f"{name}:1", f"{name}:2"], capture_output=True)


def build(name: str, context: Path, layers: int) -> None:
    """Build an image with this many layers of 100 kB each."""
    for layer in range(layers):
        if not (context / f"{layer}").exists():
            (context / f"{layer}").write_bytes(os.urandom(100_000))
    lines = ["FROM scratch", *(f"COPY {layer} /{layer}" for layer in range(layers))]
    (context / "Dockerfile").write_text("\n".join(lines))
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    argv = ["docker", "build", "-q", "-t", name, str(context)]
    subprocess.run(argv, check=True, capture_output=True, env=environment)


CDI = """cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - {name: "0", containerEdits: {env: [GOT_GPU_0=yes]}}
  - {name: "1", containerEdits: {env: [GOT_GPU_1=yes]}}
"""


def ok(home: Home, *args: str | Path) -> str:
    done = home.ddpctl(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_only_the_layers_that_podman_lacks_are_sent(
    cluster: Cluster, home: Home, tmp_path: Path, name: str
) -> None:
    """Podman identifies its layers by the digests of their uncompressed content."""
    build(f"{name}:1", tmp_path, 1)
    save = subprocess.run(["docker", "save", f"{name}:1"], capture_output=True, check=True)
    for node in cluster.nodes:
        cluster.engine(node, "load", stdin=save.stdout)
    build(f"{name}:2", tmp_path, 3)
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", image=f"{name}:2")
    pushed = json.loads(ok(home, "push", hosts, "--image", "--json"))
    for node, host in zip(cluster.nodes, pushed["hosts"], strict=True):
        assert (host["layers_sent"], host["layers_skipped"]) == (2, 1)
        assert 200_000 < host["received_bytes"] < 250_000
        cluster.engine(node, "create", f"{name}:2", "/x")
        no_partial_image = cluster.engine(node, "images", "-q", "--filter", "dangling=true")
        assert no_partial_image == ""
    assert json.loads(ok(home, "push", hosts, "--image", "--json"))["sent_bytes"] == 0


def test_sanity_across_engines_and_within_one(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml")
    small = ["--json", "--max-size", "64k"]
    across = json.loads(ok(home, "sanity", hosts, *small))
    assert (across["ok"], across["hosts"]) == (True, cluster.nodes)
    within = json.loads(ok(home, "sanity", hosts, "--host", "node2", "--containers", "2", *small))
    assert (within["ok"], within["hosts"]) == (True, ["node2", "node2"])


def test_check_says_what_a_host_lacks_for_podman(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node1", "node2"], image=TRAINER_IMAGE)

    def failures() -> str:
        done = home.ddpctl("check", hosts)
        return "\n".join(line for line in done.stdout.splitlines() if line.startswith("failure"))

    try:
        cluster.exec(
            "node2", "sh", "-c", "mv /etc/subuid /etc/subuid.off; mkdir -p /run/systemd/system"
        )
        found = failures()
        assert "node2: docker: ddp has no ids in /etc/subuid" in found
        assert "sudo loginctl enable-linger ddp" in found and "node1" not in found
        cluster.exec("node2", "mv", "/run/user/1000", "/run/user/off")
        assert "Podman needs a runtime directory" in failures()
    finally:
        back = (
            "rmdir /run/systemd/system; mv /etc/subuid.off /etc/subuid; cd /run/user; mv off 1000"
        )
        cluster.exec("node2", "sh", "-c", back)


def test_a_folder_that_is_missing_there_is_not_made(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml",
        ["node1"],
        image=TRAINER_IMAGE,
        command=["x.py"],
        mounts=["/no:/in"],
    )
    done = home.ddpctl("launch", hosts, "--no-check")
    assert done.returncode == 1 and "/no does not exist" in done.stderr, done.stderr
    assert "/no\n" not in cluster.exec("node1", "find", "/", "-maxdepth", "1")


def test_podman_gives_a_container_the_gpus_that_the_host_lists(
    cluster: Cluster, home: Home, tmp_path: Path, code: Path
) -> None:
    """With a stand-in nvidia-smi and a CDI specification whose devices are variables."""
    (code / "train.py").write_text("import os\nprint(sorted(n for n in os.environ if 'GOT' in n))")
    rows = "".join(f"{i}, GPU-{i}, NVIDIA H100, 81559\\n" for i in range(2))
    put = "mkdir -p /etc/cdi; cat >/etc/cdi/nvidia.yaml"
    cluster.exec("node2", "sh", "-c", put, stdin=CDI.encode())
    put = "cat >/usr/local/bin/nvidia-smi; chmod 755 /usr/local/bin/nvidia-smi"
    cluster.exec("node2", "sh", "-c", put, stdin=NVIDIA_SMI.format(rows=rows).encode())
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml",
        [{"host": "node2", "gpus": [1]}],
        image=TRAINER_IMAGE,
        workdir=str(code),
        command=["train.py"],
    )
    try:
        assert "['GOT_GPU_1']" in ok(home, "launch", hosts, "--no-check")
        cluster.exec("node2", "rm", "/etc/cdi/nvidia.yaml")
        lacking = home.ddpctl("launch", hosts, "--no-check")
        assert lacking.returncode == 1 and "nvidia-ctk cdi generate" in lacking.stderr
    finally:
        cluster.exec("node2", "rm", "-rf", "/etc/cdi")
