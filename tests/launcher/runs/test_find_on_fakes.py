"""Which run a word means, on hosts that answer and on hosts that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fakes import FakeCluster, messages

Make = Callable[..., FakeCluster]


@pytest.mark.parametrize("command", ["logs", "attach", "fetch", "report"])
def test_hosts_that_do_not_answer_are_named_and_not_said_to_have_no_run(
    fake_cluster: Make, command: str
) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    for host in cluster:
        host.reachable = False
    code, out, err = cluster.ddpctl(command, cluster.hosts_file)
    assert (code, out) == (4, "")
    [only] = messages(err)
    assert only.startswith("ddpctl: error: gpu[0-1]: no answer")


def test_no_run_is_claimed_only_for_the_hosts_that_answered(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    cluster.hosts["gpu1"].reachable = False
    code, _, err = cluster.ddpctl("logs", cluster.hosts_file)
    first, second = messages(err)
    assert code == 4
    assert first.startswith("ddpctl: error: gpu1: no answer")
    assert "no run on gpu0;" in second


def test_hosts_without_a_run_are_a_usage_error(fake_cluster: Make) -> None:
    cluster = fake_cluster("gpu0", "gpu1")
    code, _, err = cluster.ddpctl("logs", cluster.hosts_file)
    assert code == 2
    assert "no run on gpu[0-1]; `ddpctl launch` starts one" in err
