"""A host's addresses, routes and interfaces, from /proc/net and /sys/class/net."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_HEX = re.compile(r"[0-9A-F]{8}")
# A speed of 10 counts as unknown, because the kernel reports it for any tun device, such as a VPN's.
_NIC = re.compile(r"(\S+) ([0-9]{1,9}) (\S*) (?:10|([0-9]{1,9})|\S*) (\w+)")


@dataclass(frozen=True)
class Address:
    ip: str
    interface: str
    network: str = field(default="", compare=False)  # such as 10.0.0.0/24; "" if unknown


@dataclass(frozen=True)
class IpRoute:
    """A route to a network. gateway: "" if the network is directly attached."""

    network: IPv4Network
    gateway: str
    interface: str


@dataclass(frozen=True)
class Interface:
    """A network interface. state: as in `operstate`. speed: Mbit/s; 0 if unknown.

    kind: bridge, ethernet (a physical port that is not part of a bond or bridge and has no VLAN) or
    plain.
    """

    name: str
    mtu: int
    state: str
    speed: int
    kind: str = "plain"


def routes(lines: Sequence[str]) -> tuple[IpRoute, ...]:
    """Return the routes in the rows of /proc/net/route, most specific first. Skips other lines."""
    table = []
    for words in map(str.split, lines):
        if len(words) < 8 or not all(_HEX.fullmatch(words[i]) for i in (1, 2, 7)):
            continue
        # Hex in the processor's byte order, which is little-endian wherever Docker runs, except on s390.
        to, via, mask = (IPv4Address(bytes.fromhex(words[i])[::-1]) for i in (1, 2, 7))
        try:
            network = IPv4Network(f"{to}/{mask}", strict=False)
        except ValueError:
            continue
        table.append(IpRoute(network, str(via) if int(via) else "", words[0]))
    return tuple(sorted(table, key=lambda route: -route.network.prefixlen))


def addresses(lines: Sequence[str]) -> tuple[Address, ...]:
    """Return the host's own addresses.

    lines: from /proc/net/route, fib_trie and if_inet6, and from `ip -o -4 addr` if the host has it.
    Only the latter has the interface of an address without a network, such as 10.128.0.2/32 on
    Google Cloud, and of one whose network several interfaces share.
    """
    # the interfaces by network, the most specific network first
    attached: dict[IPv4Network, dict[str, None]] = {}
    for route in routes(lines):
        if not route.gateway and route.network.prefixlen:
            attached.setdefault(route.network, {})[route.interface] = None
    lengths = dict.fromkeys(network.prefixlen for network in attached)
    ip, v4, v6, named = "", [], [], dict[str, str]()
    for line in lines:
        if match := re.search(r"\|-- ([0-9.]+)", line):
            ip = match[1]
        elif "/32 host LOCAL" in line:  # in fib_trie, this line follows its address
            with contextlib.suppress(ValueError):
                v4.append(IPv4Address(ip))
        elif match := re.match(r"[0-9]+: (?!lo )(\S+) +inet ([0-9.]+)[/ ]", line):
            named[match[2]] = match[1]  # not `lo`, whose routes show the interface in use
        elif match := re.match(r"([0-9a-f]{32}) +\S+ +([0-9a-f]{2}) +\S+ +\S+ +(\S+)$", line):
            six = IPv6Address(int(match[1], 16))
            if not six.is_link_local and int(match[2], 16) <= six.max_prefixlen:
                network = IPv6Network(f"{six}/{int(match[2], 16)}", strict=False)
                v6.append(Address(str(six), match[3], str(network)))
    v4_addresses = []
    for own in dict.fromkeys(v4):
        name = named.get(str(own), "")
        around = (IPv4Network((int(own), length), strict=False) for length in lengths)
        inside = [network for network in around if network in attached]
        if own.is_loopback:
            v4_addresses.append(Address(str(own), "lo"))
        elif inside:
            nearest = next((each for each in inside if name in attached[each]), inside[0])
            interface = name or next(iter(attached[nearest]))
            v4_addresses.append(Address(str(own), interface, str(nearest)))
        elif name:
            v4_addresses.append(Address(str(own), name))
    return (*v4_addresses, *v6)


def interfaces(lines: Sequence[str]) -> tuple[Interface, ...]:
    """Parse rows of name, MTU, state, speed and kind. Malformed rows are ignored."""
    return tuple(
        Interface(nic[1], int(nic[2]), nic[3], int(nic[4] or 0), nic[5])
        for nic in filter(None, map(_NIC.fullmatch, lines))
    )
