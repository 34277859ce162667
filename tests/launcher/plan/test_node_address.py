"""Which address and interface each node gets, from facts alone and after the checks."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest
from host_facts import facts
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import UsageError
from launcher.facts.facts import Facts
from launcher.facts.network import Address, Interface, IpRoute
from launcher.hosts import Host
from launcher.plan.node_address import (
    addresses_in_file,
    candidates,
    node_addresses,
    refuse_loopback,
)

DEFAULT = IpRoute(IPv4Network("0.0.0.0/0"), "10.0.0.254", "eth0")


def nic(name: str, mbits: int, **changes: Any) -> Interface:
    return replace(Interface(name, 1500, "up", mbits), **changes)


def attached(network: str, interface: str) -> IpRoute:
    return IpRoute(IPv4Network(network), "", interface)


def host_facts(rank: int, *extra: tuple[Address, IpRoute, Interface], **changes: Any) -> Facts:
    """Facts of a host with a slow management network on eth0, which SSH uses, and `extra` networks."""
    ip = f"10.0.0.{rank + 1}"
    return facts(
        ssh_server_ip=ip,
        addresses=(
            Address("127.0.0.1", "lo"),
            Address(ip, "eth0", "10.0.0.0/24"),
            Address("172.17.0.1", "docker0", "172.17.0.0/16"),
            *(address for address, _, _ in extra),
        ),
        routes=(
            attached("10.0.0.0/24", "eth0"),
            *sorted((route for _, route, _ in extra), key=lambda route: -route.network.prefixlen),
            DEFAULT,
        ),
        interfaces=(
            nic("lo", 0),
            nic("eth0", 1000),
            nic("docker0", 0, kind="bridge"),
            *(interface for _, _, interface in extra),
        ),
        network_stack=f"boot-{rank}",
        **changes,
    )


def fast(rank: int, mbits: int = 100000) -> tuple[Address, IpRoute, Interface]:
    """A second network, 192.168.0.0/24 on eth1."""
    address = Address(f"192.168.0.{rank + 1}", "eth1", "192.168.0.0/24")
    return address, attached("192.168.0.0/24", "eth1"), nic("eth1", mbits)


HOSTS = (Host("a"), Host("b"), Host("c"))


def chosen(
    *own: Facts, hosts: tuple[Host, ...] = HOSTS, unreached: set[str] | None = None
) -> list[str]:
    """The interface of each node."""
    addresses = node_addresses(hosts[: len(own)], own, unreached or set())
    return [address.interface for address in addresses]


def test_the_fast_network_is_chosen_although_ssh_uses_another() -> None:
    own = [host_facts(rank, fast(rank)) for rank in range(3)]
    assert node_addresses(HOSTS, own) == tuple(
        Address(f"192.168.0.{rank + 1}", "eth1") for rank in range(3)
    )


def test_an_address_that_some_host_could_not_connect_to_is_left_out() -> None:
    own = [host_facts(rank, fast(rank)) for rank in range(3)]
    assert chosen(*own, unreached={"192.168.0.2"}) == ["eth1", "eth0", "eth1"]


def test_if_no_address_works_the_best_one_stays() -> None:
    own = [host_facts(rank, fast(rank)) for rank in range(2)]
    assert chosen(*own, unreached={"192.168.0.1", "10.0.0.1"}) == ["eth1", "eth1"]


def test_a_fast_network_that_one_host_lacks_is_as_slow_as_the_way_around_it() -> None:
    own = [host_facts(0, fast(0)), host_facts(1, fast(1)), host_facts(2)]
    assert chosen(*own) == ["eth0", "eth0", "eth0"]


def test_a_fast_network_behind_routers_is_chosen_over_a_slow_shared_one() -> None:
    """Each host is in a subnet of its own, and reaches the others through the fast interface."""

    def rail(rank: int) -> tuple[Address, IpRoute, Interface]:
        address = Address(f"192.168.{rank}.1", "eth1", f"192.168.{rank}.0/24")
        return (
            address,
            IpRoute(IPv4Network("192.168.0.0/16"), "192.168.0.254", "eth1"),
            nic("eth1", 400000),
        )

    assert chosen(*[host_facts(rank, rail(rank)) for rank in range(3)]) == ["eth1"] * 3


def test_a_network_without_any_route_to_it_comes_last() -> None:
    own = [host_facts(0, fast(0)), host_facts(1)]
    own[1] = replace(own[1], routes=own[1].routes[:1])  # no default route either
    assert chosen(*own) == ["eth0", "eth0"]


def test_of_equally_fast_addresses_the_directly_attached_one_wins_then_the_one_of_ssh() -> None:
    own = [host_facts(rank, fast(rank, mbits=1000)) for rank in range(2)]
    assert chosen(*own) == ["eth0", "eth0"]
    other = [replace(each, ssh_server_ip="127.0.0.1") for each in own]
    assert (
        chosen(*(replace(each, addresses=each.addresses[::-1]) for each in other)) == ["eth1"] * 2
    )
    routed = [replace(each, routes=(own[0].routes[1], DEFAULT)) for each in own]
    assert chosen(*routed) == ["eth1", "eth1"]


def test_of_equally_slow_addresses_one_with_a_network_wins_over_a_tunnel_that_ssh_uses() -> None:
    """As Tailscale between virtual machines in different networks of a cloud."""
    own = [
        facts(
            ssh_server_ip=f"100.64.0.{rank}",
            addresses=(
                Address(f"100.64.0.{rank}", "tailscale0"),
                Address(f"10.0.{rank}.1", "eth0", f"10.0.{rank}.0/24"),
            ),
            routes=(attached(f"10.0.{rank}.0/24", "eth0"), DEFAULT),
            interfaces=(nic("eth0", 0), nic("tailscale0", 0)),
            network_stack=f"boot-{rank}",
        )
        for rank in (1, 2)
    ]
    assert chosen(*own) == ["eth0", "eth0"]


def test_the_unknown_speed_of_another_hosts_interface_limits_nothing() -> None:
    own = [host_facts(0, fast(0)), host_facts(1, fast(1, mbits=0))]
    assert chosen(*own) == ["eth1", "eth0"]


def test_a_fast_network_of_each_hosts_own_is_not_chosen_if_the_common_one_has_no_known_speed() -> (
    None
):
    """As virtual machines with a storage network each: their interfaces report no speed."""

    def storage(rank: int) -> Facts:
        address = Address(f"172.16.{rank}.1", "eth1", f"172.16.{rank}.0/24")
        route = attached(f"172.16.{rank}.0/24", "eth1")
        own = host_facts(rank, (address, route, nic("eth1", 100000)))
        return replace(own, interfaces=(nic("eth0", 0), nic("eth1", 100000)))

    assert chosen(*map(storage, range(3))) == ["eth0"] * 3


@pytest.mark.parametrize("ip", ["169.254.3.{}", "fe80::{}"])
def test_link_local_addresses_are_never_chosen(ip: str) -> None:
    def odd(rank: int) -> tuple[Address, IpRoute, Interface]:
        address, route, interface = fast(rank)
        return replace(address, ip=ip.format(rank + 1)), route, interface

    assert chosen(*[host_facts(rank, odd(rank)) for rank in range(2)]) == ["eth0", "eth0"]


def test_one_host_alone_does_not_use_loopback() -> None:
    addresses = (Address("127.0.0.1", "lo"), Address("10.0.0.1", "eth0"))
    assert chosen(facts(addresses=addresses, ssh_server_ip=None)) == ["eth0"]


@pytest.mark.parametrize(
    "changes", [{"state": "down"}, {"kind": "bridge"}, {"name": "br-1234567890ab"}]
)
def test_interfaces_that_are_down_bridges_and_container_networks_are_avoided(
    changes: dict[str, Any],
) -> None:
    def odd(rank: int) -> tuple[Address, IpRoute, Interface]:
        address, route, interface = fast(rank)
        interface = replace(interface, **changes)
        return replace(address, interface=interface.name), route, interface

    assert chosen(*[host_facts(rank, odd(rank)) for rank in range(2)]) == ["eth0", "eth0"]


def test_an_address_of_two_hosts_is_never_chosen_but_one_host_may_have_two_names() -> None:
    own = [host_facts(rank, fast(0)) for rank in range(2)]
    assert chosen(*own) == ["eth0", "eth0"]
    assert chosen(own[0], own[0]) == ["eth1", "eth1"]


def test_the_hosts_file_decides() -> None:
    own = [host_facts(rank, fast(rank)) for rank in range(3)]
    hosts = (Host("a", interface="eth0"), Host("b", internal_ip="10.0.0.2"), HOSTS[2])
    assert chosen(*own, hosts=hosts) == ["eth0", "eth0", "eth1"]
    assert [a.ip for a in node_addresses(hosts, own)] == ["10.0.0.1", "10.0.0.2", "192.168.0.3"]
    both = (Host("a", internal_ip="203.0.113.7", interface="eth9"), *HOSTS[1:])
    assert node_addresses(both, own)[0] == Address("203.0.113.7", "eth9")
    assert chosen(*own, hosts=hosts, unreached={"10.0.0.2"}) == ["eth0", "eth0", "eth1"]


def test_the_network_of_kubernetes_pods_is_not_for_nodes() -> None:
    """Cilium's interface claims 10 Gb/s, as every veth does, and leads to the pods of all hosts."""
    pods = IpRoute(IPv4Network("10.244.0.0/16"), "10.244.0.1", "cilium_host")
    own = [
        host_facts(
            rank, (Address(f"10.244.{rank}.9", "cilium_host"), pods, nic("cilium_host", 10000))
        )
        for rank in range(2)
    ]
    assert chosen(*own) == ["eth0", "eth0"]


def test_without_a_useful_address_it_is_the_one_of_ssh() -> None:
    bare = facts(addresses=(Address("10.0.0.1", "eth0"),), ssh_server_ip="10.0.0.1")
    assert chosen(bare, hosts=(Host("a", interface="ib0"),)) == ["ib0"]
    unknown = facts(addresses=(), ssh_server_ip=None)
    assert node_addresses(HOSTS[:1], [unknown]) == (Address("a", ""),)


def test_this_machine_is_known_by_the_address_that_the_others_see() -> None:
    here = facts(addresses=(), ssh_server_ip=None, ssh_client_ip=None)
    addresses = node_addresses([Host("local"), Host("b")], [here, host_facts(1)])
    assert [address.ip for address in addresses] == ["10.0.0.9", "10.0.0.2"]


def test_nodes_on_this_machine_only_use_loopback() -> None:
    local = [Host("local"), Host("local")]
    own = host_facts(0, fast(0))
    assert node_addresses(local, [own, own]) == (Address("127.0.0.1", "lo"),) * 2


def test_ipv6_is_chosen_where_all_hosts_are_in_its_network() -> None:
    def six(rank: int, network: str = "fd00::/64") -> tuple[Address, IpRoute, Interface]:
        return Address(f"fd00::{rank + 1}", "eth1", network), DEFAULT, nic("eth1", 100000)

    assert chosen(*[host_facts(rank, six(rank)) for rank in range(2)]) == ["eth1", "eth1"]
    assert chosen(host_facts(0, six(0)), host_facts(1)) == ["eth0", "eth0"]
    both = host_facts(0, six(0), fast(0))
    assert node_addresses(HOSTS[:1], [both])[0].ip == "192.168.0.1"  # on the same interface


@given(st.permutations(range(4)))
def test_the_choice_does_not_depend_on_the_order_of_the_hosts(order: list[int]) -> None:
    own = [host_facts(rank, fast(rank, mbits=rank * 500)) for rank in range(4)]
    hosts = [Host(f"h{rank}") for rank in range(4)]
    by_rank = node_addresses(hosts, own)
    shuffled = node_addresses([hosts[r] for r in order], [own[r] for r in order])
    assert list(shuffled) == [by_rank[rank] for rank in order]


def test_the_candidates_are_listed_best_first() -> None:
    own = [host_facts(rank, fast(rank)) for rank in range(2)]
    listed = candidates(HOSTS[:2], own)
    assert [[address.interface for address in each] for each in listed] == [["eth1", "eth0"]] * 2


def test_before_the_hosts_are_asked_only_the_hosts_file_is_known() -> None:
    assert addresses_in_file([Host("a", internal_ip="10.0.0.1", interface="ib0"), Host("b")]) == (
        Address("10.0.0.1", "ib0"),
        Address("", ""),
    )
    assert addresses_in_file([Host("local")]) == (Address("127.0.0.1", ""),)


def test_loopback_among_other_addresses_is_refused() -> None:
    mixed = [Address("127.0.0.1", "lo"), Address("10.0.0.2", "eth0")]
    with pytest.raises(UsageError, match=r"^a: node 0 is reached at 127\.0\.0\.1.*internal_ip"):
        refuse_loopback(HOSTS[:2], mixed)
    refuse_loopback(HOSTS[:2], mixed[:1] * 2)
