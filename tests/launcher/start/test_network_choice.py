"""The network that a launch uses is the same with and without the checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from fakes import FakeCluster

from launcher.facts import gather
from launcher.facts.facts import Facts, parse
from launcher.facts.network import Address, Interface, IpRoute
from launcher.preflight.probe import Probe
from launcher.preflight.reach import Dial, DialResult, Reach

SLOW, FAST = IPv4Network("10.0.0.0/24"), IPv4Network("192.168.0.0/24")


@pytest.fixture
def cluster(
    fake_cluster: Callable[..., FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> FakeCluster:
    """Two hosts with a slow network, which SSH uses, and a fast one. Their nodes end at once."""
    cluster = fake_cluster("gpu0", "gpu1")

    def facts(text: str, *when: float) -> Facts:
        own = parse(text, *when)
        rank = int(own.home.endswith("gpu1"))
        return replace(
            own,
            ssh_server_ip=str(SLOW[rank + 1]),
            addresses=(Address(str(SLOW[rank + 1]), "eth1"), Address(str(FAST[rank + 1]), "eth10")),
            routes=(IpRoute(SLOW, "", "eth1"), IpRoute(FAST, "", "eth10")),
            interfaces=(
                Interface("eth1", 1500, "up", 1000),
                Interface("eth10", 1500, "up", 100000),
            ),
            network_stack=f"boot {rank}",
        )

    monkeypatch.setattr(gather, "parse", facts)
    for host in cluster:
        host.on_start = lambda node: node.end(0)
    return cluster


def launched(cluster: FakeCluster, *flags: str) -> list[str]:
    """Each node's NCCL_SOCKET_IFNAME, and node 0's address."""
    code, _, err = cluster.ddpctl("launch", cluster.hosts_file, "--no-push", *flags)
    assert code == 0, err
    environments = [node.arguments["environment"] for node in cluster.nodes]
    address = cluster.record["attempts"][0]["master_addr"]
    return [*(env["NCCL_SOCKET_IFNAME"] for env in environments), address]


@pytest.mark.parametrize("flags", [(), ("--no-check",)])
def test_skipping_the_checks_does_not_move_a_run_to_another_network(
    flags: tuple[str, ...], cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = [Dial(0, 1, str(FAST[2])), Dial(1, 0, str(FAST[1]))]
    reach = Reach(dict.fromkeys(dials, DialResult("ok")))
    monkeypatch.setattr(Probe, "run", lambda *_: reach)
    assert launched(cluster, *flags) == ["=eth10", "=eth10", "192.168.0.1"]


def test_an_address_that_the_checks_found_unreachable_is_not_used(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = {
        Dial(0, 1, str(FAST[2])): DialResult("timeout"),
        Dial(0, 1, str(SLOW[2])): DialResult("ok"),
        Dial(1, 0, str(FAST[1])): DialResult("timeout"),
        Dial(1, 0, str(SLOW[1])): DialResult("ok"),
    }
    monkeypatch.setattr(Probe, "run", lambda *_: Reach(results))
    assert launched(cluster) == ["=eth1", "=eth1", "10.0.0.1"]
