"""RDMA ports (InfiniBand and RoCE) and their IPv4 addresses, from /sys/class/infiniband."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

_PORT = re.compile(
    r"port\t([\w.-]{1,64})\t([0-9]{1,3})\t(?:[0-9]: )?(\w{1,20})\t(\w{1,20})"
    r"(?:\t(?:([0-9]{1,6})\S* Gb[^\t]*)?(?:\t(\S{0,15}))?)?"
)
_GID = re.compile(r"gid\t([0-9]{1,4})\t([0-9a-f]{4}):([0-9a-f]{4})\t([\w/ .]{0,20})")
MOST_ROWS = 4096
NAMES = frozenset({"NCCL_IB_HCA", "NCCL_IB_GID_INDEX"})


@dataclass(frozen=True)
class Gid:
    index: int
    ip: str
    type: str  # RoCE v2, or IB/RoCE v1

    @property
    def is_roce_v2(self) -> bool:
        return self.type == "RoCE v2"


@dataclass(frozen=True)
class RdmaPort:
    """An RDMA port. name: as in NCCL_IB_HCA, such as mlx5_0:1. state: such as ACTIVE or DOWN."""

    name: str
    state: str
    is_ethernet: bool
    gbits: int  # per second; 0 if not reported
    gids: tuple[Gid, ...] = ()
    interface: str = ""

    @property
    def is_up(self) -> bool:
        return self.state == "ACTIVE"

    def gid_of(self, ip: str) -> Gid | None:
        """Return the port's GID for an address, preferably a RoCE v2 one; None if there is none."""
        own = (gid for gid in self.gids if gid.ip == ip)
        return max(own, key=lambda gid: gid.is_roce_v2, default=None)


def rdma_ports(lines: Sequence[str]) -> tuple[RdmaPort, ...]:
    ports: list[tuple[RdmaPort, list[Gid]]] = []
    gids: list[Gid] = []
    for line in lines[:MOST_ROWS]:
        if line.startswith("port\t"):
            gids = []  # drop the GIDs of an unreadable port
            if match := _PORT.fullmatch(line):
                name, ethernet = f"{match[1]}:{match[2]}", match[4] == "Ethernet"
                port = RdmaPort(name, match[3], ethernet, int(match[5] or 0), (), match[6] or "")
                ports.append((port, gids))
        elif match := _GID.fullmatch(line):
            ip = str(IPv4Address(int(match[2] + match[3], 16)))
            gids.append(Gid(int(match[1]), ip, match[4]))
    return tuple(dataclasses.replace(port, gids=tuple(gids)) for port, gids in ports)
