"""A host is lost during training, a spare replaces it, and the final weights are the same."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster, Home, until

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

EPOCHS = 6
TRAINER = [
    *(
        "-m",
        "trainer",
        "--data",
        "synthetic",
        "--synthetic-train",
        "1024",
        "--synthetic-test",
        "64",
    ),
    *("--model", "resnet8", "--epochs", str(EPOCHS), "--batch-size", "16", "--seed", "3"),
    *("--deterministic", "--save-every", "8st", "--threads", "1"),
]
FOREIGN = """
import os, pathlib, sys
kept = pathlib.Path("/checkpoints/deep/last.txt")
if os.environ["DDPCTL_RESUME"] == "1":
    print("found", kept.read_text(), sys.argv[1:], flush=True)
elif os.environ["RANK"] == "0":
    kept.parent.mkdir()
    (kept.parent / "epoch-1.txt").write_text("what rank 0 has written")
    kept.symlink_to("/checkpoints/deep/epoch-1.txt")
"""
CHECKPOINTS = "ls -d /home/ddp/.ddpctl/runs/*/checkpoints/ckpt/step-* 2>/dev/null | wc -l"


def weights(home: Home, folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the run's last epoch, as node 0 exported them."""
    import torch

    fetched = home.ddpctl("fetch", "--to", folder)
    assert fetched.returncode == 0, fetched.stderr
    state: dict[str, torch.Tensor] = torch.load(folder / "output" / f"epoch_{EPOCHS}.pth")
    return state


def test_a_lost_hosts_place_is_taken_by_a_spare_and_the_weights_are_bitwise_the_same(
    cluster: Cluster, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    """The lost host is also the master: the spare takes its rank, and other hosts have its checkpoints.

    The first spare is dead.
    """
    lost = "node0"
    home = cluster.home_at(tmp_path / "state")
    file = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"], nproc_per_node=1)
    file.write_text(file.read_text() + "spares: [{host: 127.0.0.1, port: 1}, node2]\n")
    with (tmp_path / "err").open("wb") as err, (tmp_path / "out").open("wb") as out:
        words = ["launch", file, "--no-check", "--max-restarts", "3", "--", *TRAINER]
        launcher = home.start(*words, stdout=out, stderr=err)
    saved = ["sh", "-c", CHECKPOINTS]
    until(lambda: int(cluster.exec("node1", *saved)) >= 2, 120, "checkpoints are written")
    cluster.kill_host(lost)
    code = launcher.wait(300)
    told = (tmp_path / "err").read_text()
    assert code == 0, told
    assert f"node2 replaces {lost}" in told
    first, second = home.record()["attempts"]
    assert (first["state"], second["state"], second["by"]) == ("FAILED", "SUCCEEDED", "restart")
    assert first["first_failure"]["host"] == lost
    assert {node["host"] for node in second["nodes"]} == {"node0", "node1", "node2"} - {lost}
    assert "starting from scratch" not in told
    mended = weights(home, tmp_path / "mended")
    assert mended.keys() == undisturbed.keys()
    assert all(mended[key].equal(undisturbed[key]) for key in mended)


@pytest.fixture(scope="module")
def undisturbed(
    hosts: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, torch.Tensor]:
    """The same training on two hosts, undisturbed."""
    hosts.reset()
    folder = tmp_path_factory.mktemp("undisturbed")
    home = hosts.home_at(folder / "state")
    file = hosts.hosts_yaml(folder / "hosts.yaml", ["node0", "node1"], nproc_per_node=1)
    done = home.ddpctl("launch", file, "--no-check", "--", *TRAINER, timeout=300)
    assert done.returncode == 0, done.stderr
    return weights(home, folder / "fetched")


def test_a_foreign_scripts_checkpoint_follows_it_to_other_hosts(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """Only node0 has the checkpoint, and node0 no longer takes part."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(FOREIGN)
    job = {"workdir": str(code), "nproc_per_node": 1, "resume_args": ["--resume"]}
    first = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"], **job)
    launched = home.ddpctl("launch", first, "--no-check", "--", "train.py")
    assert launched.returncode == 0, launched.stderr
    others = cluster.hosts_yaml(tmp_path / "others.yaml", ["node1", "node2"])
    resumed = home.ddpctl("resume", "--force", "--hosts", others)
    assert resumed.returncode == 0, resumed.stderr
    assert sorted(line for line in resumed.stdout.splitlines() if "found" in line) == [
        f"[node{rank + 1}:{rank}] found what rank 0 has written ['--resume']" for rank in range(2)
    ]
    assert "resuming from the newest checkpoint on node0" in resumed.stderr
