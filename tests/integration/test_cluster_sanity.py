"""`ddpctl sanity` on the simulated cluster: right results, honest numbers, and the faulty host or link."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Home, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

COLLECTIVES = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "point-to-point"]


def sanity(home: Home, hosts: Path, *flags: str) -> dict[str, Any]:
    """Return the JSON document, with the exit code added as `rc`, and what went to stderr."""
    done = home.ddpctl("sanity", hosts, "--json", *flags, timeout=200)
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "rc": done.returncode, "stderr": done.stderr}


def test_three_hosts_are_right_and_measured(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml")
    plot = tmp_path / "busbw.png"
    found = sanity(home, hosts, "--max-size", "1m", "--plot", str(plot))
    assert (found["rc"], found["ok"], found["problems"]) == (0, True, []), found
    assert (found["nodes"], found["ranks"], found["hosts"]) == (3, 3, cluster.nodes)
    assert {row["collective"]: row["verdict"] for row in found["collectives"]}.keys() == set(
        COLLECTIVES
    )
    assert {row["verdict"] for row in found["collectives"]} <= {"right", "not offered"}
    assert found["collectives"][0]["verdict"] == "right"
    for row in found["sizes"]:
        assert row["count"] * 4 == row["bytes"]
        assert row["algbw"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"] * 4 / 3)
    assert found["sizes"][-1]["bytes"] == 524288
    assert found["latency"] == found["sizes"][0]["seconds"] > 0
    assert list(found["transports"]) == ["sockets (Gloo)"]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert cluster.idle()

    words = ["--host", "node0", "--max-size", "64k", "--min-busbw", "1000"]
    too_much = home.ddpctl("sanity", hosts, *words)
    assert too_much.returncode == 1
    assert "is below --min-busbw 1000" in too_much.stderr
    assert "algbw" in too_much.stdout and "busbw" in too_much.stdout


def test_two_containers_on_one_host(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml")
    words = ["--host", "node2", "--containers", "2", "--max-size", "64k"]
    found = sanity(home, hosts, *words)
    assert (found["rc"], found["ok"]) == (0, True), found
    assert (found["nodes"], found["hosts"]) == (2, ["node2", "node2"])
    assert found["busbw"] > 0
    assert "not the network between hosts" in found["stderr"]
    assert [len(cluster.containers(node)) for node in cluster.nodes] == [0, 0, 2]
    assert host_ids(cluster, "node2") == ["ddpctl-0", "ddpctl-1"]


def test_the_gpus_of_a_host_are_split_between_its_containers(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """The engine's GPU requests are checked; the GPUs themselves are stand-ins."""
    cluster.give_gpus("node0", 4)
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml", [{"host": "node0", "gpus": "all"}, {"host": "node1"}]
    )
    found = sanity(home, hosts, "--host", "node0", "--containers", "2", "--max-size", "1k")
    assert (found["nodes"], found["ranks"]) == (2, 4), found
    asked = {}
    for container in cluster.containers("node0"):
        [request] = container["HostConfig"]["DeviceRequests"]
        assert ["gpu"] in request["Capabilities"]
        asked[container["Config"]["Labels"]["io.ddpctl.node-rank"]] = request["DeviceIDs"]
    assert asked == {"0": ["0", "1"], "1": ["2", "3"]}
    assert host_ids(cluster, "node0") == ["ddpctl-0", "ddpctl-1"]

    uneven = home.ddpctl("sanity", hosts, "--host", "node0", "--containers", "3")
    assert uneven.returncode == 2
    assert "node0: cannot split 4 GPUs evenly between 3 containers" in uneven.stderr


def host_ids(cluster: Cluster, node: str) -> list[str]:
    """Return the NCCL_HOSTID of each container on a host: it tells NCCL what to treat as one machine."""
    environments = [container["Config"]["Env"] for container in cluster.containers(node)]
    found = [dict(entry.split("=", 1) for entry in env) for env in environments]
    return sorted(env["NCCL_HOSTID"] for env in found)


@pytest.mark.alone
def test_a_slow_link_is_named_by_pairwise(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    cluster.slow("node1", "210mbit")
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml")
    found = sanity(home, hosts, "--pairwise", "--max-size", "64k")
    assert found["rc"] == 1
    [problem] = found["problems"]
    assert problem.startswith("node1 (node 1) is slow to and from other nodes: 0.02")
    rates = {(pair["source"], pair["target"]): pair["gbs"] for pair in found["pairs"]}
    assert len(rates) == 6
    assert all((rate < 0.03) == (1 in pair) for pair, rate in rates.items()), rates


def streamed(cluster: Cluster, source: str, target: str) -> float:
    """Return the bytes per second between the hosts, measured by iperf3 without the first second."""
    with ThreadPoolExecutor(1) as beside:
        serving = beside.submit(lambda: cluster.exec(target, "iperf3", "-s", "-1", timeout=60))
        listening = "ss -ltn | grep -q :5201 && echo yes || true"
        until(lambda: cluster.exec(target, "sh", "-c", listening), 30, "iperf3 listens")
        client = ["iperf3", "-c", cluster.addresses[target], "-J", "-t", "3", "-O", "1"]
        measured = json.loads(cluster.exec(source, *client, timeout=60))
        serving.result()
    return float(measured["end"]["sum_received"]["bits_per_second"]) / 8


@pytest.mark.alone
def test_the_bandwidth_is_what_iperf3_measures(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    cluster.slow("node1", "200mbit")
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"])
    found = sanity(home, hosts, "--max-size", "2m")
    assert found["rc"] == 0, found
    stream = streamed(cluster, "node0", "node1") / 1e9
    assert 0.020 < stream < 0.0252
    largest = found["sizes"][-1]
    assert largest["bytes"] == 2 << 20
    assert largest["busbw"] == pytest.approx(stream, rel=0.15)


# Firewalls


@pytest.fixture
def blocked(cluster: Cluster) -> Iterator[Callable[[], None]]:
    """blocked() makes node1 refuse new connections from the other nodes, but not from this machine."""

    def block() -> None:
        for other in ("node0", "node2"):
            rule = ["INPUT", "-p", "tcp", "--syn", "-s", cluster.addresses[other], "-j", "DROP"]
            cluster.exec("node1", "iptables", "-A", *rule)

    yield block
    cluster.exec("node1", "iptables", "-F", "INPUT")


def test_a_firewall_before_the_data_is_named_before_anything_runs(
    cluster: Cluster, home: Home, tmp_path: Path, blocked: Callable[[], None]
) -> None:
    blocked()
    found = sanity(home, cluster.hosts_yaml(tmp_path / "hosts.yaml"))
    assert (found["rc"], found["ok"]) == (3, False)
    [problem] = found["problems"]
    assert problem.startswith("node1: network: a connection to ")
    assert "timed out from 2 of 2 hosts (node[0,2]); allow all TCP" in problem
    assert problem in found["stderr"]


def test_a_firewall_that_comes_later_is_named_by_the_ranks(
    cluster: Cluster, home: Home, tmp_path: Path, blocked: Callable[[], None]
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml")
    process = home.start("sanity", hosts, "--json", "--timeout", "15s")
    until(lambda: cluster.ranks("node1"), 90, "node1 has begun")
    blocked()  # torch is still being imported
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1, err.decode()
    assert json.loads(out)["problems"] == [
        f"node1 (node 1) cannot be reached at {cluster.addresses['node1']} from node0 (node 0), "
        "node2 (node 2) (timed out): check that its firewall lets the other nodes connect"
    ]


def test_a_collective_that_hangs_ends_within_the_timeout_and_names_the_node(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """One rank stops in the middle of an all-reduce that all ranks have begun."""
    cluster.slow("node1", "40mbit")
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml")
    process = home.start("sanity", hosts, "--json", "--timeout", "5s", "--max-size", "2m")
    counter = "/sys/class/net/eth0/statistics/rx_bytes"
    before = int(cluster.exec("node1", "cat", counter))
    until(
        lambda: int(cluster.exec("node1", "cat", counter)) - before > 3_000_000,
        120,
        "the all-reduces are large",
    )
    stop = "grep -qz ^RANK= /proc/$p/environ && kill -STOP $p"
    each = f"pgrep -f collectives.py | while read p; do {stop}; done; true"
    cluster.exec("node1", "sh", "-c", each)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1, err.decode()
    found = json.loads(out)
    [problem] = found["problems"]
    assert problem.startswith("node1 (node 1) stopped responding in all-reduce of ")
    assert "(rank 1): check that host" in problem
    until(cluster.idle, 30, "nothing of it is left")
