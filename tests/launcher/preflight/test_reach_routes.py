"""Who dials whom, which address is chosen and why, and what is reported when none works."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from healthy import cluster, machine, with_details, with_facts
from hypothesis import given
from hypothesis import strategies as st

from launcher.facts.network import Address, Interface, IpRoute
from launcher.hosts import Host
from launcher.preflight import check as run
from launcher.preflight.findings import Finding, lines
from launcher.preflight.inventory import Answer, Inventory, Machine, Route
from launcher.preflight.reach import parse_dialed, parse_listening
from launcher.preflight.reach_routes import (
    NEIGHBOURS,
    Dial,
    addressed,
    candidates,
    confirmed,
    cut_off,
    dials_for,
    is_settled,
    pairs,
    reach_of,
)

Answers = dict[Dial, Answer]


def some(count: int = 3) -> dict[int, Machine]:
    return {i: machine(i) for i in range(count)}


def with_second_network(made: Machine, speed: int = 100000) -> Machine:
    """A fast private network beside the first: ib0 with 192.168.0.N."""
    address = Address(f"192.168.0.{made.rank + 1}", "ib0")
    nic = Interface("ib0", 1500, "up", speed, False)
    return with_facts(
        made,
        addresses=(*made.facts.addresses, address),
        interfaces=(*made.facts.interfaces, nic),
    )


def answers(machines: dict[int, Machine], bad: dict[str, str] | None = None) -> Answers:
    """All dials of all pairs succeed, except to the addresses in `bad`."""
    every = dials_for(machines, master_port=True, everyone=True)
    return {d: Answer((bad or {}).get(d.address, "ok")) for d in every}


def choose(machines: dict[int, Machine], met: Answers) -> dict[int, Route]:
    return dict(reach_of(machines, machines, met).routes)


def judge(machines: dict[int, Machine], met: Answers) -> list[Finding]:
    seen = Inventory(
        cluster(*(Host(m.name) for m in machines.values()), master_port=29500),
        list(machines.values()),
        reach=reach_of(machines, machines.keys(), met),
    )
    return network_findings(seen)


def network_findings(seen: Inventory) -> list[Finding]:
    return [finding for finding in run.judge(seen) if finding.check in ("network", "ports")]


# Who dials whom


@given(st.integers(1, 60))
def test_every_host_is_dialled_by_three_and_node_0_by_all(count: int) -> None:
    found = pairs(some(count))
    assert len(found) == len(set(found)) <= count * (NEIGHBOURS + 1)
    assert not any(source == target for source, target in found)
    for target in range(count):
        sources = {source for source, to in found if to == target}
        assert len(sources) >= min(3, count - 1)
    assert {source for source, to in found if to == 0} == set(range(1, count))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_names_of_one_machine_do_not_dial_each_other(networks: list[int]) -> None:
    machines = {
        i: with_facts(machine(i), network_stack=f"boot {network}")
        for i, network in enumerate(networks)
    }
    for target, network in enumerate(networks):
        sources = {source for source, to in pairs(machines) if to == target}
        others = [i for i, other in enumerate(networks) if other != network]
        assert sources <= set(others)
        assert len(sources) >= min(3, len(others))


def calls_to_probe(count: int) -> int:
    """How many functions are called to choose the dials of `count` hosts and to judge their answers."""
    machines, calls = some(count), 0

    def counted(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(counted)
    try:
        dials = dials_for(machines, master_port=True)
        reach_of(machines, machines, dict.fromkeys(dials, Answer("ok")))
    finally:
        sys.setprofile(None)
    return calls


def test_twice_as_many_hosts_take_twice_the_work() -> None:
    assert calls_to_probe(120) < 2.2 * calls_to_probe(60)


def test_each_candidate_address_and_the_port_of_node_0_are_tried() -> None:
    machines = some()
    dials = dials_for(machines, master_port=True)
    assert Dial(1, 0, "10.0.0.1") in dials
    assert Dial(1, 0, "10.0.0.1", is_master_port=True) in dials
    assert Dial(0, 1, "10.0.0.2") in dials
    assert not any(d.is_master_port and d.target != 0 for d in dials)
    assert len(dials) == 3 * 2 + 2


def test_a_bridge_that_every_host_has_is_never_tried() -> None:
    assert {d.address for d in answers(some())} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_a_bridge_of_one_host_only_is_never_tried_by_its_name() -> None:
    made = machine(0)
    bridge = Address("10.9.0.1", "br-1234567890ab")
    odd = with_facts(made, addresses=(bridge, *made.facts.addresses))
    assert [a.ip for a in candidates(odd, [machine(1)])] == ["10.0.0.1"]


def test_a_probe_is_settled_once_every_host_has_an_address_that_all_dials_reached() -> None:
    machines = {i: with_second_network(m) for i, m in some().items()}
    good = answers(machines, {f"192.168.0.{i}": "timeout" for i in (1, 2, 3)})
    assert is_settled(list(good), good)
    assert not is_settled(list(good), good | {Dial(2, 1, "10.0.0.2"): Answer("timeout")})
    master = Dial(2, 0, "10.0.0.1", is_master_port=True)
    assert not is_settled(list(good), good | {master: Answer("refused")})
    assert not is_settled(list(good), {d: a for d, a in good.items() if d.target != 2})


# Timeouts count when they repeat


FAILED, CONTROL = Dial(2, 1, "10.0.0.2"), Dial(2, 0, "10.0.0.1")


def test_timeouts_are_tried_again_beside_a_dial_that_succeeded() -> None:
    met = {FAILED: Answer("timeout"), CONTROL: Answer("ok"), Dial(0, 1, "10.0.0.2"): Answer("ok")}
    tried: list[Dial] = []

    def dial_all(dials: Sequence[Dial]) -> Answers:
        tried[:] = dials
        return dict.fromkeys(dials, Answer("ok"))

    confirmed(met, dial_all)
    assert tried == [FAILED, CONTROL]
    confirmed(met | {FAILED: Answer("refused")}, dial_all)
    assert tried == []


@pytest.mark.parametrize(
    ("again", "control", "merged"),
    [
        (Answer("timeout"), Answer("ok"), Answer("timeout")),
        (Answer("ok", 0.5), Answer("ok"), Answer("ok", 3.5)),
        (Answer("timeout"), Answer("timeout"), Answer("silent")),  # the source is overloaded
    ],
)
def test_a_timeout_counts_only_if_it_repeats_while_another_dial_succeeds(
    again: Answer, control: Answer, merged: Answer
) -> None:
    first = {FAILED: Answer("timeout", 3.0), CONTROL: Answer("ok")}
    second = {FAILED: again, CONTROL: control}
    assert confirmed(first, lambda _: second) == first | {FAILED: merged}


def test_timeouts_count_where_nothing_was_ever_reached() -> None:
    first = {FAILED: Answer("timeout")}
    assert confirmed(first, lambda _: first) == first


def test_a_slow_answer_is_a_warning_with_its_time() -> None:
    machines = some()
    met = answers(machines) | {Dial(2, 1, "10.0.0.2"): Answer("ok", 1.42)}
    (finding,) = judge(machines, met)
    assert (finding.severity, finding.host) == ("warning", "gpu2")
    assert finding.what == "a connection to 10.0.0.2 took 1.4 s from 1 of 2 hosts (gpu3)"


# Which address is chosen


def test_the_fast_network_is_chosen_when_all_reach_it() -> None:
    machines = {i: with_second_network(m) for i, m in some().items()}
    routes = choose(machines, answers(machines))
    assert [(r.address, r.interface) for r in routes.values()] == [
        (f"192.168.0.{i}", "ib0") for i in (1, 2, 3)
    ]


def test_an_address_that_others_do_not_reach_is_passed_over() -> None:
    machines = {i: with_second_network(m) for i, m in some().items()}
    met = answers(machines, {f"192.168.0.{i}": "timeout" for i in (1, 2, 3)})
    routes = choose(machines, met)
    assert [r.address for r in routes.values()] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert routes[0].why == "reached from 2 of 2, not over ib0"
    assert judge(machines, met) == []


def test_the_answer_of_another_machine_does_not_count() -> None:
    machines = {i: with_second_network(m) for i, m in some().items()}
    routes = choose(machines, answers(machines, {"192.168.0.2": "wrong"}))
    assert routes[1].address == "10.0.0.2"
    assert routes[0].address == "192.168.0.1"


def test_what_the_hosts_file_says_is_what_is_tried() -> None:
    made = with_second_network(machine(0), speed=10)
    by_interface = replace(made, hosts=(Host("gpu1", interface="ib0"),))
    assert [a.ip for a in candidates(by_interface, [machine(1)])] == ["192.168.0.1"]
    by_address = replace(made, hosts=(Host("gpu1", internal_ip="203.0.113.7"),))
    assert candidates(by_address, [machine(1)]) == [Address("203.0.113.7", "")]


def test_the_cluster_is_given_what_was_found_and_keeps_what_was_said() -> None:
    hosts = (Host("gpu1"), Host("gpu2", internal_ip="10.0.0.2"), Host("gpu3", interface="eth0"))
    machines = {i: replace(m, hosts=(hosts[i],)) for i, m in some().items()}
    made = addressed(cluster(*hosts), machines.values(), choose(machines, answers(machines)))
    assert [(h.internal_ip, h.interface) for h in made.hosts] == [
        ("10.0.0.1", "eth0"),
        ("10.0.0.2", "eth0"),
        ("10.0.0.3", "eth0"),
    ]


# What is reported


def test_a_host_that_a_firewall_hides() -> None:
    machines = some()
    machines[1] = with_details(machines[1], firewalls=("ufw",))
    met = answers(machines, {"10.0.0.2": "timeout"})
    assert choose(machines, met)[1] == Route(why="no address can be reached from every other host")
    assert lines(judge(machines, met)) == [
        "failure: gpu2: network: a connection to 10.0.0.2 timed out from 2 of 2 hosts "
        "(gpu[1,3]); allow all TCP between the hosts in its firewall (ufw is installed there), "
        "or set internal_ip"
    ]


def test_many_hosts_are_folded_into_ranges() -> None:
    machines = some(48)
    lost = {s for s in range(48) if s >= 13 and s != 30}
    met = answers(machines) | {Dial(s, 30, "10.0.0.31"): Answer("timeout") for s in lost}
    (finding,) = judge(machines, met)
    assert finding.what == (
        "a connection to 10.0.0.31 timed out from 34 of 47 hosts (gpu[14-30,32-48])"
    )


def test_a_host_that_reaches_no_other_is_reported_instead_of_all_the_others() -> None:
    machines = some(5)
    met = answers(machines)
    met |= {dial: Answer("timeout") for dial in met if dial.source == 3}
    assert cut_off(met) == {3}
    (finding,) = judge(machines, met)
    assert (finding.severity, finding.host) == ("failure", "gpu4")
    assert "it cannot connect to any other host" in finding.what


def test_hosts_that_nobody_reaches_are_not_blamed_on_the_one_that_dials_them() -> None:
    machines = some(3)
    assert cut_off(answers(machines, {"10.0.0.2": "timeout", "10.0.0.3": "timeout"})) == set()


def test_a_host_that_drops_what_it_should_forward() -> None:
    machines = some()
    detour = (
        IpRoute(IPv4Network("10.0.0.2/32"), "10.0.0.1", "eth0"),
        IpRoute(IPv4Network("10.0.0.0/24"), "", "eth0"),
    )
    machines[2] = with_facts(machines[2], routes=detour)
    met = answers(machines) | {Dial(2, 1, "10.0.0.2"): Answer("timeout")}
    assert lines(judge(machines, met)) == [
        "failure: gpu2: network: a connection to 10.0.0.2 timed out from 1 of 2 hosts (gpu3), on "
        "its way through gpu1; let gpu1 forward it (`sysctl net.ipv4.ip_forward=1`; Docker's "
        "iptables rules drop it: `iptables -I DOCKER-USER -j ACCEPT`), or fix the route"
    ]
    machines[0] = replace(machines[0], engine=None)
    (finding,) = judge(machines, met)
    assert "Docker" not in finding.remedy


def test_one_pair_that_does_not_connect_is_named() -> None:
    machines = some()
    met = answers(machines) | {Dial(2, 1, "10.0.0.2"): Answer("refused")}
    (finding,) = judge(machines, met)
    assert finding.what == "a connection to 10.0.0.2 was refused from 1 of 2 hosts (gpu3)"


def test_a_wrong_internal_ip() -> None:
    machines = some()
    machines[0] = replace(machines[0], hosts=(Host("gpu1", internal_ip="10.0.0.99"),))
    (finding,) = judge(machines, answers(machines, {"10.0.0.99": "unreachable"}))
    assert finding.what == ("a connection to 10.0.0.99 found no route from 2 of 2 hosts (gpu[2-3])")
    assert "correct internal_ip" in finding.remedy


def test_a_host_too_busy_to_report_is_no_failure() -> None:
    machines = some()
    met = answers(machines, {"10.0.0.2": "silent"})
    met |= {Dial(2, 0, "10.0.0.1", is_master_port=True): Answer("silent")}
    (finding,) = judge(machines, met)
    assert (finding.severity, finding.host) == ("warning", "gpu2")
    assert "was not reported in time from 2 of 2 hosts (gpu[1,3])" in finding.what
    (finding,) = judge(machines, met | {Dial(0, 1, "10.0.0.2"): Answer("refused")})
    assert finding.severity == "failure"
    assert "was refused from 1 of 2 hosts (gpu1)" in finding.what


def test_a_host_without_python_and_image_is_not_probed_and_says_so() -> None:
    machines = some()
    able = {rank: machines[rank] for rank in (0, 1)}
    seen = Inventory(
        cluster(), list(machines.values()), reach=reach_of(able, machines, answers(able))
    )
    (finding,) = network_findings(seen)
    assert (finding.severity, finding.host) == ("warning", "gpu3")
    assert "it has neither python3 nor the job's image" in finding.what
    down = replace(machines[2], engine=None, engine_error="gpu3: Docker is down; start it")
    seen = replace(seen, machines=[machines[0], machines[1], down])
    assert network_findings(seen) == []


def test_a_master_port_that_a_firewall_hides() -> None:
    machines = some()
    met = answers(machines) | {Dial(2, 0, "10.0.0.1", is_master_port=True): Answer("timeout")}
    (finding,) = judge(machines, met)
    assert (finding.host, finding.check) == ("gpu1", "ports")
    assert finding.what == "port 29500 on 10.0.0.1 timed out from 1 of 2 hosts (gpu3)"


def test_a_host_with_no_address_for_others() -> None:
    machines = some()
    machines[2] = with_facts(machines[2], addresses=(Address("127.0.0.1", "lo"),))
    (finding,) = judge(machines, answers(machines))
    assert "the host has no address that other hosts could reach" in finding.what


def test_two_names_of_one_machine_need_no_way_to_each_other() -> None:
    twins = {i: with_facts(machine(0), network_stack="boot net") for i in range(2)}
    twins[1] = replace(twins[1], ranks=(1,))
    assert pairs(twins) == []
    assert [route.address for route in choose(twins, {}).values()] == [None, None]
    assert judge(twins, {}) == []
    trio = {**twins, 2: machine(2)}
    routes = choose(trio, answers(trio))
    assert [route.address for route in routes.values()] == ["10.0.0.1", "10.0.0.1", "10.0.0.3"]


# What the agents say


def test_the_words_of_an_agent() -> None:
    orders = {4: Dial(0, 1, "10.0.0.2")}
    assert parse_listening("listening 0 40001") == (0, 40001)
    assert parse_dialed("dialed 4 ok 1 0.125", orders, 0) == (4, Answer("ok", 0.125))
    assert parse_dialed("dialed 4 ok 2 0.125", orders, 0) == (4, Answer("wrong", 0.125))
    assert parse_dialed("dialed 4 timeout", orders, 0) == (4, Answer("timeout"))
    assert parse_dialed("dialed 4 timeout", orders, 1) is None  # an order of another agent


@pytest.mark.parametrize(
    "line",
    ["done", "", "dialed 5 ok 1 0.1", "dialed -1 ok 1 0.1", "dialed 4 ok", "dialed 4 nonsense",
     "dialed ² refused", "dialed 4 ok 1 nan", "listening 0 99999999999", "listening x 1"],
)  # fmt: skip
def test_anything_else_that_a_host_says_is_passed_over(line: str) -> None:
    assert parse_dialed(line, {4: Dial(0, 1, "10.0.0.2")}, 0) is None
    assert parse_listening(line) is None
