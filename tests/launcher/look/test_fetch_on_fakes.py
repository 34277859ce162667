"""`fetch` on fake hosts."""

from __future__ import annotations

from collections.abc import Callable

from fakes import FakeCluster

Make = Callable[..., FakeCluster]


def test_a_run_without_files_is_told_where_to_write_them(fake_cluster: Make) -> None:
    cluster = fake_cluster()
    cluster.nodes_end(exit_code=0)
    assert cluster.launch()[0] == 0
    code, _, err = cluster.ddpctl("fetch")
    assert code == 0, err
    where = "must save to $DDPCTL_CHECKPOINT_DIR or $DDPCTL_OUTPUT_DIR"
    assert where in err
    [output] = cluster.hosts["gpu0"].home.glob(".ddpctl/runs/*/output")
    (output / "results.txt").touch()
    for _ in range(2):  # fetched, then already here
        code, _, err = cluster.ddpctl("fetch")
        assert (code, where in err) == (0, False), err
