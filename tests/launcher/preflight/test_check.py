"""The whole survey for real: sshd, firewalls, decoys and held ports in network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import namespaces
import pytest
from namespaces import Namespaces

from launcher.facts.gather import gather
from launcher.facts.network import Address
from launcher.hosts import Cluster, Host, parse
from launcher.plan.node_address import node_addresses
from launcher.preflight import check_network, probe
from launcher.preflight.check import Survey, survey_hosts
from launcher.preflight.findings import Finding
from launcher.ssh.host_connection import connected

HERE = ("ssh", "clock", "disk", "network", "ports")  # docker is another test's
pytestmark = pytest.mark.skipif(bool(namespaces.lacking()), reason=namespaces.lacking() or "-")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    made = Namespaces(tmp_path_factory.mktemp("net"), 6)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def survey(net: Namespaces, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Survey]:
    """Surveys hosts 1 to 3, or the hosts that are given. None is slow, however busy this machine."""
    monkeypatch.setattr(check_network, "SLOW", 60.0)
    impatient = probe.AGENT.replace("DIAL_TIMEOUT = 3.0", "DIAL_TIMEOUT = 1.0")
    assert impatient != probe.AGENT
    monkeypatch.setattr(probe, "AGENT", impatient)
    monkeypatch.setenv("HOME", str(net.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)

    def look(*hosts: Host, **job: object) -> Survey:
        named = hosts or tuple(Host(net.address(i)) for i in (1, 2, 3))
        base = parse("hosts: [x]\njob: " + json.dumps(job), "hosts.yaml")
        with connected(named) as connections:
            return survey_hosts(connections, Cluster(hosts=named, job=base.job))

    return look


def seen(survey: Survey) -> list[Finding]:
    return [finding for finding in survey.findings if finding.check in HERE]


@contextmanager
def firewall(net: Namespaces, host: int, *rule: str) -> Iterator[None]:
    net.inside(host, "iptables", "-A", "INPUT", "-p", "tcp", *rule)
    try:
        yield
    finally:
        net.inside(host, "iptables", "-F", "INPUT")


def test_healthy_hosts_give_no_finding_and_no_decoy_is_chosen(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    found = survey()
    assert seen(found) == []
    addresses = [Address(net.address(i), "eth0") for i in (1, 2, 3)]
    assert [*found.fleet.addresses.values()] == addresses
    hosts = [Host(net.address(i)) for i in (1, 2, 3)]
    with connected(hosts) as connections:  # as with --no-check
        facts = gather(connections)
    assert [*node_addresses(hosts, facts)] == addresses
    assert [(own.interfaces, own.network_stack) for own in facts] == [
        (own.interfaces, own.network_stack) for own in found.facts
    ]
    assert all(own.interface("eth0") for own in facts)


def test_a_firewall_that_lets_only_ssh_through(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    with firewall(net, 2, "!", "--dport", "22", "-j", "DROP", "--syn"):
        (finding,) = seen(survey())
    assert (finding.severity, finding.host, finding.check) == (
        "failure",
        net.address(2),
        "network",
    )
    assert finding.what == (
        f"a connection to {net.address(2)} timed out from 2 of 2 hosts ({net.net}.[1,3])"
    )
    assert "allow all TCP between the hosts" in finding.remedy


def test_a_host_that_drops_the_traffic_of_one_peer_is_named(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    six = [Host(net.address(i)) for i in range(1, 7)]

    def dropped(source: int) -> str:
        return (
            f"a connection to {net.address(6)} timed out from 1 of 5 hosts ({net.address(source)})"
        )

    rule = ["!", "--dport", "22", "--syn", "-j", "DROP"]
    for source in (5, 1):
        with firewall(net, 6, "-s", net.address(source), *rule):
            assert [finding.what for finding in seen(survey(*six))] == [dropped(source)]


def test_a_firewall_that_rejects_the_master_port_of_one_peer(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    rule = ["-s", net.address(3), "--dport", "29500", "-j", "REJECT", "--reject-with", "tcp-reset"]
    with firewall(net, 1, *rule):
        (finding,) = seen(survey(master_port=29500))
        assert seen(survey(master_port=29501)) == []
    assert (finding.host, finding.check) == (net.address(1), "ports")
    assert finding.what == (
        f"a connection to port 29500 on {net.address(1)} was refused from 1 of 2 hosts ({net.address(3)})"
    )


def test_a_port_in_use_is_reported_with_its_owner(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    listen = (
        "import socket; s = socket.create_server(('', 29500)); print('up', flush=True); input()"
    )
    argv = ["ip", "netns", "exec", f"{net.tag}-1", sys.executable, "-c", listen]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None and held.stdout.readline() == "up\n"
        (finding,) = seen(survey(master_port=29500))
        assert seen(survey()) == []
        held.communicate("\n", timeout=10)
    assert finding.host == net.address(1)
    assert finding.what.startswith("port 29500 is taken by ")
    assert f"(user root, pid {held.pid})" in finding.what


def test_a_second_network_that_leads_nowhere_is_passed_over(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    at = ("ip", "-n", f"{net.tag}-2")
    namespaces.run(*at, "link", "add", "name", "fast0", "type", "veth", "peer", "name", "fast1")
    namespaces.run(*at, "addr", "add", "10.99.0.2/24", "dev", "fast0")
    namespaces.run(*at, "link", "set", "fast0", "up")
    namespaces.run(*at, "link", "set", "fast1", "up")
    try:
        found = survey()
    finally:
        namespaces.run(*at, "link", "del", "fast0")
    assert seen(found) == []
    assert found.fleet.addresses[1].ip == net.address(2)


def test_an_own_name_that_stands_for_loopback(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    names = net.folder / "hosts-3"
    before = names.read_text()
    names.write_text("127.0.0.1 localhost\n127.0.1.1 node3\n")
    try:
        (finding,) = seen(survey())
    finally:
        names.write_text(before)
    assert (finding.severity, finding.host) == ("warning", net.address(3))
    assert "its own name (node3) resolves to 127.0.1.1" in finding.what


def test_another_mtu(net: Namespaces, survey: Callable[..., Survey]) -> None:
    net.inside(2, "ip", "link", "set", "eth0", "mtu", "1400")
    try:
        (finding,) = seen(survey())
    finally:
        net.inside(2, "ip", "link", "set", "eth0", "mtu", "1500")
    assert finding.host == net.address(2)
    assert finding.what == "MTU 1400 on eth0, while other hosts have 1500"


def test_a_wrong_interface_and_a_wrong_address(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    one, two, three = (net.address(i) for i in (1, 2, 3))
    found = seen(survey(Host(one, interface="ib0"), Host(two, internal_ip=three), Host(three)))
    told = {finding.host: finding.what for finding in found}
    assert "interface ib0 does not exist; the host has" in told[one]
    assert told[two] == f"internal_ip {three} belongs to {three}"
    assert set(told) == {one, two}


def test_a_host_that_is_not_there_does_not_hide_the_others(
    net: Namespaces, survey: Callable[..., Survey]
) -> None:
    key = net.folder / "authorized_keys"
    kept = key.read_text()
    found = survey(Host(net.address(1)), Host(net.address(200)), Host(net.address(3)))
    assert [(f.severity, f.host, f.check) for f in seen(found)] == [
        ("failure", net.address(200), "ssh")
    ]
    assert found.exit_code == 4
    assert found.fleet.addresses[2].ip == net.address(3)
    key.write_text("")
    try:
        refused = survey()
    finally:
        key.write_text(kept)
    assert [f.check for f in refused.findings] == ["ssh"] * 3
    assert all(f.remedy for f in refused.findings)


def test_the_command_prints_one_document(
    net: Namespaces, survey: Callable[..., Survey], tmp_path: Path
) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text(f"hosts: [{net.address(1)}, {net.address(2)}]\njob: {{master_port: 22}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "check", str(file), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    document = json.loads(done.stdout)
    assert done.returncode == 3
    assert (document["version"], document["ok"]) == (1, False)
    assert [f["what"] for f in document["findings"] if f["check"] == "ports"] != []
    assert [host["internal_ip"] for host in document["hosts"]] == [
        net.address(1),
        net.address(2),
    ]
