"""What one host says about itself: one POSIX `sh` script, one round trip, one frozen value.

The script needs nothing but a shell and coreutils: no Python, no iproute2 on the host. All that
it prints is parsed here; a section that a host cannot fill is empty, never an error. It starts few
processes, as a launch waits for it on every host.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

SCRIPT = r"""
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin; export PATH LC_ALL=C
s() { printf '\n@@%s\n' "$1"; }
s clock; date +%s.%N
s user; id
s home; printf '%s\n' "$HOME"
s system; uname -nsrm
s ssh; printf '%s\n' "$SSH_CONNECTION"
s cores; nproc 2>/dev/null || grep -c '^processor' /proc/cpuinfo
s net; cat /proc/net/route /proc/net/fib_trie /proc/net/if_inet6 2>/dev/null
s infiniband; for d in /dev/infiniband/*; do [ -e "$d" ] && printf '%s\n' "$d"; done
for asked; do case $asked in
  ports) s listening; grep -h ' 0A ' /proc/net/tcp /proc/net/tcp6 2>/dev/null ;;
  gpus)
    s gpus
    if command -v nvidia-smi >/dev/null 2>&1; then
      nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader,nounits 2>&1
    fi ;;
esac; done
s end
"""
"""Run as `sh -c SCRIPT sh [ports] [gpus]`. `ports`: who asks wants `listening`, for which the kernel looks
through its whole table. `gpus` asks nvidia-smi too, which can take seconds."""


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Address:
    ip: str
    interface: str


@dataclass(frozen=True)
class Facts:
    """One host, as it described itself."""

    user: str
    uid: int
    gid: int
    home: str
    hostname: str
    kernel: str
    cores: int
    clock: float  # unix seconds, this host's clock when the script ran
    ssh_server_ip: str | None  # the address that the launching machine reached this host by
    ssh_client_ip: str | None  # the launching machine (or the last jump) as this host sees it
    addresses: tuple[Address, ...]
    listening: frozenset[int]  # TCP ports in state LISTEN, where they were asked for: of node 0
    infiniband: bool
    gpus: tuple[Gpu, ...]
    gpu_error: str | None  # nvidia-smi is there but did not answer with GPUs
    clock_skew: float = 0.0  # seconds this host's clock is ahead of the launching machine's
    clock_error: float = 0.0  # half the round trip: how far clock_skew can be wrong

    def interface_of(self, ip: str) -> str | None:
        """The NIC that carries `ip` on this host, or None when no NIC does."""
        return next((a.interface for a in self.addresses if a.ip == ip), None)


def parse(text: str) -> Facts:
    """The script's output as Facts. Raises ValueError when the output is not the script's."""
    sections = _sections(text)
    if "end" not in sections:
        raise ValueError("the host's shell did not run the facts script to its end")
    uid, user, gid = _identity(_first(sections, "user") or "")
    system, hostname, *release = (_first(sections, "system") or "").split() or ["", ""]
    ssh = (_first(sections, "ssh") or "").split()
    gpus, gpu_error = _gpus(sections.get("gpus", []))
    return Facts(
        user=user,
        uid=uid,
        gid=gid,
        home=_first(sections, "home") or "",
        hostname=hostname,
        kernel=" ".join([system, *release]),
        cores=int(_first(sections, "cores") or 1),
        clock=_clock(_first(sections, "clock") or "0"),
        ssh_server_ip=ssh[2] if len(ssh) == 4 else None,
        ssh_client_ip=ssh[0] if len(ssh) == 4 else None,
        addresses=_addresses(sections),
        listening=frozenset(_port(line) for line in sections.get("listening", []) if line.strip()),
        infiniband=bool(sections.get("infiniband")),
        gpus=gpus,
        gpu_error=gpu_error,
    )


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("@@"):
            lines = found.setdefault(line[2:], [])
        elif line.strip():
            lines.append(line)
    return found


def _first(sections: dict[str, list[str]], name: str) -> str | None:
    return next((line.strip() for line in sections.get(name, [])), None)


def _identity(text: str) -> tuple[int, str, int]:
    """uid, name and gid from `id`: "uid=7(ann) gid=8(staff) groups=..."; a uid may have no name."""
    match = re.match(r"uid=(\d+)(?:\((.*?)\))? gid=(\d+)", text)
    if not match:
        raise ValueError(f"`id` said {text!r}")
    return int(match[1]), match[2] or "", int(match[3])


def _clock(text: str) -> float:
    # busybox's date has no %N and leaves it as it stands
    return float(re.sub(r"[^0-9.].*", "", text).rstrip(".") or 0)


def _port(line: str) -> int:
    # "  0: 00000000:1F90 00000000:0000 0A ..." : local address and port in hex
    return int(line.split()[1].rsplit(":", 1)[1], 16)


def _gpus(lines: list[str]) -> tuple[tuple[Gpu, ...], str | None]:
    gpus = []
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4 or not parts[0].isdigit():
            return (), line.strip()
        memory = int(parts[3]) if parts[3].isdigit() else 0
        gpus.append(Gpu(int(parts[0]), parts[1], parts[2], memory))
    return tuple(gpus), None


def _addresses(sections: dict[str, list[str]]) -> tuple[Address, ...]:
    lines = sections.get("net", [])
    routes = _routes(lines)
    found = []
    for ip in _local_ipv4(lines):
        interface = "lo" if ipaddress.ip_address(ip).is_loopback else _carrier(ip, routes)
        if interface:
            found.append(Address(ip, interface))
    return tuple(found + _own_ipv6(lines))


def _routes(lines: list[str]) -> list[tuple[ipaddress.IPv4Network, str]]:
    """Directly connected networks and their NIC, the most specific first."""
    networks = []
    for line in lines:
        fields = line.split()
        if len(fields) < 8 or fields[0] == "Iface" or fields[2] != "00000000":
            continue  # the heading, or a route through a gateway
        if fields[1] == "00000000":
            continue
        base, mask = (_little_endian(fields[1]), _little_endian(fields[7]))
        networks.append((ipaddress.IPv4Network(f"{base}/{mask}", strict=False), fields[0]))
    return sorted(networks, key=lambda item: -item[0].prefixlen)


def _little_endian(digits: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(digits)))


def _local_ipv4(lines: list[str]) -> list[str]:
    """Own addresses: in /proc/net/fib_trie a `|-- IP` followed by `/32 host LOCAL`."""
    found: list[str] = []
    ip = ""
    for line in lines:
        if match := re.search(r"\|-- (\d+\.\d+\.\d+\.\d+)", line):
            ip = match.group(1)
        elif "/32 host LOCAL" in line and ip not in found:
            found.append(ip)
    return found


def _own_ipv6(lines: list[str]) -> list[Address]:
    """/proc/net/if_inet6: "fd00...02 02 40 00 80 eth0"."""
    found = []
    for line in lines:
        if match := re.match(r"([0-9a-f]{32})( +[0-9a-f]{2}){4} +(\S+)$", line):
            address = ipaddress.IPv6Address(int(match[1], 16))
            if not address.is_link_local:
                found.append(Address(str(address), match[3]))
    return found


def _carrier(ip: str, routes: list[tuple[ipaddress.IPv4Network, str]]) -> str | None:
    address = ipaddress.IPv4Address(ip)
    return next((interface for network, interface in routes if address in network), None)
