"""Who dials whom, what the results mean, and what is reported when no address works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from healthy import cluster, machine, with_details, with_facts
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import DockerUnavailable
from launcher.facts.network import Address, Interface, IpRoute
from launcher.hosts import Host
from launcher.preflight.check import judge
from launcher.preflight.findings import Finding, lines
from launcher.preflight.fleet import Fleet
from launcher.preflight.machine import Machine
from launcher.preflight.reach import Dial, DialResult, Reach, addresses_to_dial, dials_to

OK = DialResult("ok")
Results = dict[Dial, DialResult]


def some(count: int = 3) -> list[Machine]:
    return [machine(i) for i in range(count)]


def with_second_network(made: Machine, speed: int = 100000) -> Machine:
    """A fast private network beside the first: ib0 with 192.168.0.N."""
    address = Address(f"192.168.0.{made.rank + 1}", "ib0", "192.168.0.0/24")
    nic = Interface("ib0", 1500, "up", speed)
    return with_facts(
        made,
        addresses=(*made.facts.addresses, address),
        interfaces=(*made.facts.interfaces, nic),
        routes=(IpRoute(IPv4Network("192.168.0.0/24"), "", "ib0"), *made.facts.routes),
    )


def dialed(machines: Sequence[Machine], bad: Mapping[str, str] | None = None) -> Results:
    """The results of all possible dials: all succeed, except to the addresses in `bad`."""
    dials = dials_to(addresses_to_dial(machines), machines)
    return {dial: DialResult((bad or {}).get(dial.ip, "ok")) for dial in dials}


def fleet(machines: Sequence[Machine], reach: Reach) -> Fleet:
    hosts = (Host(m.name) for m in machines)
    return Fleet(cluster(*hosts, master_port=29500), machines, reach=reach)


def findings(machines: Sequence[Machine], reach: Reach) -> list[Finding]:
    found = judge(fleet(machines, reach))
    return [finding for finding in found if finding.check in ("network", "ports")]


def one_finding(machines: Sequence[Machine], results: Results) -> Finding:
    found = findings(machines, Reach(results))
    assert len(found) == 1, lines(found)
    return found[0]


def chosen(machines: Sequence[Machine], results: Results) -> list[tuple[str | None, str]]:
    """Each machine's address, and why."""
    whole = fleet(machines, Reach(results))
    pairs = [whole.address(machine) for machine in machines]
    return [(address.ip if address else None, why) for address, why in pairs]


# Who dials whom


def test_each_of_64_hosts_dials_one_address_of_each_of_the_63_others() -> None:
    machines = [with_second_network(made) for made in some(64)]
    addresses = addresses_to_dial(machines)
    assert addresses[7] == ["192.168.0.8", "10.0.0.8"]
    dials = dials_to({rank: ips[:1] for rank, ips in addresses.items()}, machines)
    assert len(dials) == len(set(dials)) == 64 * 63
    assert {dial.ip for dial in dials} == {f"192.168.0.{i}" for i in range(1, 65)}


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_names_of_one_machine_do_not_dial_each_other(stacks: list[int]) -> None:
    machines = [with_facts(machine(i), network_stack=f"boot {n}") for i, n in enumerate(stacks)]
    dials = dials_to({m.rank: ["10.0.0.1"] for m in machines}, machines)
    assert {(dial.source, dial.target) for dial in dials} == {
        (a, b) for a, at in enumerate(stacks) for b, to in enumerate(stacks) if at != to
    }


def test_a_machine_without_an_agent_neither_dials_nor_is_dialed() -> None:
    dials = dials_to(addresses_to_dial(some(3)), some(2))
    assert {(dial.source, dial.target) for dial in dials} == {(0, 1), (1, 0)}


# Which address is chosen, and why


def test_an_address_that_others_do_not_reach_is_passed_over() -> None:
    machines = [with_second_network(made) for made in some()]
    assert chosen(machines, dialed(machines))[0] == (
        "192.168.0.1",
        "reached from all 2 other hosts",
    )
    results = dialed(machines, {"192.168.0.2": "timeout"})
    assert chosen(machines, results)[1] == (
        "10.0.0.2",
        "reached from all 2 other hosts, but not over ib0",
    )
    assert findings(machines, Reach(results)) == []


def test_the_answer_of_another_machine_does_not_count() -> None:
    machines = [with_second_network(made) for made in some()]
    results = dialed(machines, {"192.168.0.2": "wrong"})
    assert [ip for ip, _ in chosen(machines, results)] == ["192.168.0.1", "10.0.0.2", "192.168.0.3"]


def test_an_address_in_the_hosts_file_is_chosen_only_if_it_works() -> None:
    machines = some()
    machines[0] = replace(machines[0], hosts=(Host("gpu1", internal_ip="203.0.113.7"),))
    assert chosen(machines, dialed(machines))[0] == ("203.0.113.7", "set as internal_ip")
    no_address = (None, "no address can be reached from every other host")
    assert chosen(machines, dialed(machines, {"203.0.113.7": "refused"}))[0] == no_address


def test_without_a_probe_the_facts_decide() -> None:
    machines = [with_second_network(made) for made in some()]
    assert chosen(machines, {})[0] == ("192.168.0.1", "not tried")


def test_a_wrong_internal_ip_does_not_spoil_the_address_for_its_owner() -> None:
    machines = [with_second_network(made, speed=100) for made in some()]
    machines[1] = replace(machines[1], hosts=(Host("gpu2", internal_ip="10.0.0.3"),))
    results: Results = dialed(machines)
    results |= {dial: DialResult("wrong") for dial in results if dial.target == 1}
    found = findings(machines, Reach(results))
    assert [(f.host, f.what) for f in found] == [("gpu2", "internal_ip 10.0.0.3 belongs to gpu3")]
    assert chosen(machines, results)[2] == ("10.0.0.3", "reached from all 2 other hosts")


# What is reported


def test_a_slow_answer_is_a_warning_with_its_time() -> None:
    machines = some()
    results = dialed(machines) | {Dial(2, 1, "10.0.0.2"): DialResult("ok", 1.42)}
    finding = one_finding(machines, results)
    assert (finding.severity, finding.host) == ("warning", "gpu2")
    assert finding.what == "connecting to 10.0.0.2 took up to 1.4 s from 1 of 2 hosts (gpu3)"


def test_a_host_that_a_firewall_hides() -> None:
    machines = some()
    machines[1] = with_details(machines[1], firewalls=("ufw",))
    reach = Reach(dialed(machines, {"10.0.0.2": "timeout"}))
    assert lines(findings(machines, reach)) == [
        "failure: gpu2: network: a connection to 10.0.0.2 timed out from 2 of 2 hosts "
        "(gpu[1,3]); allow all TCP between the hosts in its firewall (ufw is installed), "
        "or set `internal_ip:`"
    ]


def test_of_several_addresses_the_one_that_most_hosts_reach_is_reported() -> None:
    machines = [with_second_network(made) for made in some()]
    results = dialed(machines, {"192.168.0.2": "timeout"})
    results[Dial(2, 1, "10.0.0.2")] = DialResult("refused")
    finding = one_finding(machines, results)
    assert finding.what == "a connection to 10.0.0.2 was refused from 1 of 2 hosts (gpu3)"


def test_many_hosts_are_folded_into_ranges() -> None:
    machines = some(48)
    lost = {s for s in range(48) if s >= 13 and s != 30}
    results = dialed(machines) | {Dial(s, 30, "10.0.0.31"): DialResult("timeout") for s in lost}
    assert one_finding(machines, results).what == (
        "a connection to 10.0.0.31 timed out from 34 of 47 hosts (gpu[14-30,32-48])"
    )


def all_failing(results: Results, sources: Iterable[int]) -> Results:
    return {d: DialResult("timeout") if d.source in sources else r for d, r in results.items()}


def test_a_host_that_reaches_no_other_is_reported_instead_of_all_the_others() -> None:
    machines = some(5)
    finding = one_finding(machines, all_failing(dialed(machines), [3]))
    assert (finding.severity, finding.host) == ("failure", "gpu4")
    assert "it cannot connect to any other host" in finding.what


def test_hosts_that_nobody_reaches_are_not_blamed_on_the_one_that_dials_them() -> None:
    machines = some(3)
    reach = Reach(dialed(machines, {"10.0.0.2": "timeout", "10.0.0.3": "timeout"}))
    assert reach.cut_off == frozenset()
    assert [finding.host for finding in findings(machines, reach)] == ["gpu2", "gpu3"]


def test_of_two_hosts_that_do_not_reach_each_other_neither_is_cut_off() -> None:
    machines = some(2)
    reach = Reach(all_failing(dialed(machines), [0, 1]))
    assert [finding.host for finding in findings(machines, reach)] == ["gpu1", "gpu2"]


def test_a_host_behind_nat_is_told_to_set_its_internal_ip() -> None:
    """It reaches all others, but nobody reaches its own address."""
    machines = some()
    machines[2] = with_facts(machines[2], addresses=(Address("10.0.2.15", "eth0"),))
    finding = one_finding(machines, dialed(machines, {"10.0.2.15": "timeout"}))
    assert finding.what == "a connection to 10.0.2.15 timed out from 2 of 2 hosts (gpu[1-2])"
    assert finding.remedy.endswith("set `internal_ip:`")


def test_one_pair_that_does_not_connect_is_named() -> None:
    machines = some()
    results = dialed(machines) | {Dial(2, 1, "10.0.0.2"): DialResult("refused")}
    assert one_finding(machines, results).what == (
        "a connection to 10.0.0.2 was refused from 1 of 2 hosts (gpu3)"
    )


def test_a_wrong_internal_ip() -> None:
    machines = some()
    machines[0] = replace(machines[0], hosts=(Host("gpu1", internal_ip="10.0.0.99"),))
    finding = one_finding(machines, dialed(machines, {"10.0.0.99": "unreachable"}))
    assert finding.what == "a connection to 10.0.0.99 found no route from 2 of 2 hosts (gpu[2-3])"
    assert "fix `internal_ip:`" in finding.remedy


def test_a_host_too_busy_to_report_is_a_warning_and_no_failure() -> None:
    machines = some()
    results = {dial: result for dial, result in dialed(machines).items() if dial.source != 2}
    (finding,) = findings(machines, Reach(results, unfinished=frozenset({2})))
    assert (finding.severity, finding.host) == ("warning", "gpu3")
    assert "did not report in time" in finding.what


def test_a_host_without_python_and_image_is_not_probed_and_says_so() -> None:
    machines = some()
    reach = Reach(dialed(machines[:2]), unprobed=frozenset({2}))
    (finding,) = findings(machines, reach)
    assert (finding.severity, finding.host) == ("warning", "gpu3")
    assert "it has neither python3 nor the job's image" in finding.what
    down = replace(
        machines[2], engine=None, engine_error=DockerUnavailable("Docker is down", "start it")
    )
    assert findings([*machines[:2], down], reach) == []


def test_a_master_port_that_a_firewall_hides() -> None:
    machines = some()
    results = dialed(machines)
    master = {dial: OK for dial in results if dial.target == 0}
    master[Dial(2, 0, "10.0.0.1")] = DialResult("timeout")
    (finding,) = findings(machines, Reach(results, master=master))
    assert (finding.host, finding.check) == ("gpu1", "ports")
    assert (
        finding.what == "a connection to port 29500 on 10.0.0.1 timed out from 1 of 2 hosts (gpu3)"
    )
    assert chosen(machines, results)[0] == ("10.0.0.1", "reached from all 2 other hosts")


def test_a_firewall_that_lets_only_the_master_port_through() -> None:
    machines = [with_second_network(made) for made in some()]
    results = dialed(machines)
    blocked = [d for d in results if d.ip == "192.168.0.1"]
    results |= dict.fromkeys(blocked, DialResult("timeout"))
    assert chosen(machines, results)[0][0] == "10.0.0.1"


@pytest.mark.parametrize("addresses", [(Address("127.0.0.1", "lo"),), ()])
def test_a_host_with_no_address_for_others(addresses: tuple[Address, ...]) -> None:
    machines = some()
    machines[2] = with_facts(machines[2], addresses=addresses)
    finding = one_finding(machines, dialed(machines))
    assert "the host has no address that other hosts can reach" in finding.what
    assert chosen(machines, dialed(machines))[2][0] is None


def test_two_names_of_one_machine_need_no_way_to_each_other() -> None:
    twins = [with_facts(machine(0), network_stack="boot net") for _ in range(2)]
    twins[1] = replace(twins[1], ranks=(1,))
    assert dialed(twins) == {}
    assert findings(twins, Reach()) == []
    trio = [*twins, machine(2)]
    assert [ip for ip, _ in chosen(trio, dialed(trio))] == ["10.0.0.1", "10.0.0.1", "10.0.0.3"]
