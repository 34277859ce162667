"""Which address is chosen, why, and what is said when none serves."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

from healthy import cluster, machine, with_details, with_facts

from launcher.facts.network import Address, Interface
from launcher.facts.network import Route as Row
from launcher.hosts import Host
from launcher.preflight.machine import Machine
from launcher.preflight.reach_agent import Dial, parse_answer, parse_ready
from launcher.preflight.reach_routes import addressed, candidates, check_routes, choose, dials_for


def three() -> list[Machine]:
    return [machine(i) for i in range(3)]


def with_second_network(made: Machine, speed: int = 100000) -> Machine:
    """A fast private network beside the first: ib0 with 192.168.0.N."""
    assert made.facts is not None and made.details is not None
    address = Address(f"192.168.0.{made.ranks[0] + 1}", "ib0")
    more = with_facts(made, addresses=(*made.facts.addresses, address))
    return with_details(
        more, interfaces=(*made.details.interfaces, Interface("ib0", 1500, "up", speed, False))
    )


def answers(machines: list[Machine], bad: dict[str, str] | None = None) -> dict[Dial, str]:
    """Everything works but the addresses in `bad`."""
    return {d: (bad or {}).get(d.address, "ok") for d in dials_for(machines, master_port=True)}


def test_each_tries_each_address_of_each_other_and_the_port_of_node_0() -> None:
    dials = dials_for(three(), master_port=True)
    assert Dial(1, 0, "10.0.0.1") in dials
    assert Dial(1, 0, "10.0.0.1", is_master_port=True) in dials
    assert Dial(0, 1, "10.0.0.2") in dials
    assert not any(d.is_master_port and d.target != 0 for d in dials)
    assert len(dials) == 3 * 2 + 2


def test_a_bridge_that_every_host_has_is_never_tried() -> None:
    assert {d.address for d in dials_for(three(), False)} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_a_bridge_of_one_host_only_is_never_tried_by_its_name() -> None:
    made = machine(0)
    assert made.facts is not None
    odd = with_facts(
        made, addresses=(Address("10.9.0.1", "br-1234567890ab"), *made.facts.addresses)
    )
    assert [a.ip for a in candidates(odd, [machine(1)])] == ["10.0.0.1"]


def test_the_fast_network_is_chosen_when_all_reach_it() -> None:
    machines = [with_second_network(m) for m in three()]
    routes = choose(machines, answers(machines))
    assert [(r.address, r.interface) for r in routes] == [
        (f"192.168.0.{i}", "ib0") for i in (1, 2, 3)
    ]


def test_an_address_that_others_do_not_reach_is_passed_over() -> None:
    machines = [with_second_network(m) for m in three()]
    bad = {f"192.168.0.{i}": "timeout" for i in (1, 2, 3)}
    routes = choose(machines, answers(machines, bad))
    assert [r.address for r in routes] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert routes[0].why == "reached from 2 of 2, ib0 not"
    assert check_routes(machines, answers(machines, bad), routes, 29500) == []


def test_the_answer_of_another_machine_does_not_count() -> None:
    machines = [with_second_network(m) for m in three()]
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
    machines = [replace(m, hosts=(h,)) for m, h in zip(three(), hosts, strict=True)]
    made = addressed(cluster(*hosts), machines, choose(machines, answers(machines)))
    assert [(h.internal_ip, h.interface) for h in made.hosts] == [
        ("10.0.0.1", "eth0"),
        ("10.0.0.2", "eth0"),
        ("10.0.0.3", "eth0"),
    ]


def test_a_host_that_a_firewall_hides() -> None:
    machines = three()
    machines[1] = with_details(machines[1], firewalls=("ufw",))
    met = answers(machines, {"10.0.0.2": "timeout"})
    routes = choose(machines, met)
    assert routes[1].address is None
    (finding,) = check_routes(machines, met, routes, 29500)
    assert finding.line() == (
        "failure: gpu2: network: a connection to 10.0.0.2 timed out from gpu1, gpu3; allow all TCP "
        "between the hosts in its firewall (ufw is installed there), or set internal_ip"
    )


def test_a_host_that_drops_what_it_should_pass_on() -> None:
    machines = three()
    detour = (
        Row(IPv4Network("10.0.0.2/32"), "10.0.0.1", "eth0"),
        Row(IPv4Network("10.0.0.0/24"), "", "eth0"),
    )
    machines[2] = with_details(machines[2], routes=detour)
    met = answers(machines) | {Dial(2, 1, "10.0.0.2"): "timeout"}
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert finding.line() == (
        "failure: gpu2: network: a connection to 10.0.0.2 timed out from gpu3, on its way through "
        "gpu1; let gpu1 forward it (`sysctl net.ipv4.ip_forward=1`; Docker's iptables rules drop "
        "it: `iptables -I DOCKER-USER -j ACCEPT`), or mend the route"
    )
    machines[0] = replace(machines[0], docker=None)
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert "Docker" not in finding.remedy


def test_one_pair_that_does_not_reach_is_named() -> None:
    machines = three()
    met = answers(machines) | {Dial(2, 1, "10.0.0.2"): "refused"}
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert "a connection to 10.0.0.2 was refused from gpu3;" in finding.line()


def test_a_wrong_internal_ip() -> None:
    machines = three()
    machines[0] = replace(machines[0], hosts=(Host("gpu1", internal_ip="10.0.0.99"),))
    met = answers(machines, {"10.0.0.99": "unreachable"})
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert "10.0.0.99 has no route from gpu2, gpu3" in finding.what
    assert "correct internal_ip" in finding.remedy


def test_a_host_too_busy_to_tell_is_no_failure() -> None:
    machines = three()
    met = answers(machines, {"10.0.0.2": "silent"}) | {
        Dial(2, 0, "10.0.0.1", is_master_port=True): "silent"
    }
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert (finding.severity, finding.host) == ("warning", "gpu2")
    assert "was not told of in time by gpu1, gpu3" in finding.what


def test_a_master_port_that_a_firewall_hides() -> None:
    machines = three()
    met = answers(machines) | {Dial(2, 0, "10.0.0.1", is_master_port=True): "timeout"}
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert (finding.host, finding.check) == ("gpu1", "ports")
    assert finding.what == "port 29500 on 10.0.0.1 timed out from gpu3"


def test_a_host_with_no_address_for_others() -> None:
    machines = three()
    machines[2] = with_facts(machines[2], addresses=(Address("127.0.0.1", "lo"),))
    met = answers(machines)
    (finding,) = check_routes(machines, met, choose(machines, met), 29500)
    assert "it has no address that others could reach" in finding.what


def test_a_host_that_was_not_seen_is_not_told_of_twice() -> None:
    machines = [machine(0), replace(machine(1), facts=None, ssh_error="x; y"), machine(2)]
    met = answers(machines)
    routes = choose(machines, met)
    assert check_routes(machines, met, routes, 29500) == []
    assert routes[0].address == "10.0.0.1"


def test_two_names_of_one_machine_need_no_way_to_each_other() -> None:
    twins = [with_details(machine(0), network="boot net") for _ in range(2)]
    assert dials_for(twins, True) == []
    routes = choose(twins, {})
    assert [route.address for route in routes] == [None, None]
    assert check_routes(twins, {}, routes, 29500) == []

    trio = [*twins, machine(2)]
    assert {(d.source, d.target) for d in dials_for(trio, False)} == {
        (0, 2), (1, 2), (2, 0), (2, 1),
    }  # fmt: skip
    routes = choose(trio, answers(trio))
    assert [route.address for route in routes] == ["10.0.0.1", "10.0.0.1", "10.0.0.3"]


# What the agents say


def test_the_words_of_an_agent() -> None:
    dials = [Dial(0, 1, "10.0.0.2"), Dial(0, 2, "10.0.0.3")]
    assert parse_ready(["listening 0 40001", "taken 29500", "ready"]) == {0: 40001}
    assert parse_ready(["listening 0 40001"]) is None
    assert parse_answer("dialed 0 ok 1", dials) == (dials[0], "ok")
    assert parse_answer("dialed 1 ok 1", dials) == (dials[1], "wrong")
    assert parse_answer("dialed 1 timeout", dials) == (dials[1], "timeout")
    assert parse_answer("done", dials) is None
