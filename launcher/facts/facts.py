"""Facts about a host: the output of facts.sh, parsed into one frozen value."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from ..ssh.script_files import load_script
from ..text import printable
from . import network, rdma
from .gpus import Gpu, amd_gpus, core_list, nvidia_gpus, with_neighbors
from .hardware import Details, details
from .network import Address, Interface, IpRoute
from .rdma import RdmaPort

SCRIPT = load_script(__file__, "facts.sh")
LONGEST_LINE = 4096  # characters; the rest of a longer line is ignored
_BOOT_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Facts:
    user: str
    uid: int
    gid: int
    home: str
    hostname: str
    kernel: str
    cores: int
    ssh_server_ip: str | None  # the address by which the launching machine reached this host
    ssh_client_ip: str | None  # the launching machine (or the last jump host) as this host sees it
    addresses: tuple[Address, ...]
    listening: frozenset[int]  # TCP ports that some process listens on
    infiniband: tuple[str, ...]  # devices, such as uverbs0
    gpus: tuple[Gpu, ...]
    gpu_error: str | None  # what nvidia-smi printed instead of GPUs
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[IpRoute, ...] = ()  # IPv4 routes, the most specific first
    network_stack: str = ""  # boot id and network namespace: equal if two hosts share addresses
    rdma_ports: tuple[RdmaPort, ...] = ()
    all_cores: frozenset[int] = frozenset()  # the machine's online cores; `cores` may be fewer
    gpu_groups: tuple[int, ...] = ()  # ids of the groups that may use AMD GPUs, except root's
    boot_id: str = ""  # equal if two hosts are one machine; "" if unknown
    clock_skew: float = 0.0  # seconds by which this clock is ahead of the launching machine's
    clock_error: float = 0.0  # maximum error of clock_skew: half the time spent on the network
    details: Details = field(default_factory=Details)  # has its default values unless requested
    resolved: str = ""  # ~/.ddpctl without symlinks, which root may be unable to follow on NFS

    @property
    def folder(self) -> str:
        """The path of ~/.ddpctl on the host; "" if unknown."""
        return self.resolved or (self.home and f"{self.home}/.ddpctl")

    @property
    def has_amd_gpus(self) -> bool:
        return any(gpu.vendor == "amd" for gpu in self.gpus)

    @property
    def roce_ports(self) -> tuple[RdmaPort, ...]:
        """The RoCE ports that are up."""
        return tuple(port for port in self.rdma_ports if port.is_up and port.is_ethernet)

    @property
    def roce_addresses(self) -> tuple[Address, ...]:
        """The addresses of the RoCE ports that are up, except link-local ones."""
        ips = {gid.ip for port in self.roce_ports for gid in port.gids if gid.is_roce_v2}
        return tuple(
            a for a in self.addresses if a.ip in ips and not ip_address(a.ip).is_link_local
        )

    def roce_settings(self, ip: str, user_sets: Collection[str]) -> Mapping[str, str]:
        """Return NCCL's variables for RoCE (ports and GID index) for a run whose address is `ip`.

        user_sets: names of the variables that the user sets. The result is empty if the user sets
        either of them, if the host has no /dev/infiniband, if `ip` has no RoCE v2 GID, or if the
        variables would exclude a port that may be better: an InfiniBand port, a faster port, or one
        whose RoCE v2 GID has another index.
        """
        up = [port for port in self.rdma_ports if port.is_up]
        v2 = {port: [gid.index for gid in port.gids if gid.is_roce_v2] for port in up}
        own = [(port, gid) for port in up if (gid := port.gid_of(ip)) and gid.is_roce_v2]
        if not self.infiniband or not rdma.NAMES.isdisjoint(user_sets) or not own:
            return {}
        used, index = own[0][0], own[0][1].index
        others = [port for port in up if index not in v2[port]]
        if not all(port.is_ethernet for port in up):
            return {}
        if any(v2[port] or port.gbits > used.gbits for port in others):
            return {}
        names = ",".join(port.name for port in up if index in v2[port])
        return {"NCCL_IB_HCA": f"={names}", "NCCL_IB_GID_INDEX": str(index)}

    def interface_of(self, ip: str) -> str | None:
        return next((a.interface for a in self.addresses if a.ip == ip), None)

    def network_of(self, ip: str) -> str:
        """Return the network of the host's address `ip`, such as 10.0.0.0/24; "" if unknown."""
        return next((a.network for a in self.addresses if a.ip == ip), "")

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)


def parse(text: str, asked: float = 0.0, answered: float = 0.0) -> Facts:
    """Parse the script's output. Missing or malformed values become empty or get a default.

    Raises ValueError if the script did not finish or the output of `id` is malformed.

    asked, answered: when the script was started and when it had ended, in unix seconds by our clock.
    """
    sections: defaultdict[str, list[str]] = defaultdict(list)
    lines: list[str] = []  # the lines of one section
    for line in filter(str.strip, text.split("\n")):
        if line.startswith("@@"):
            lines = sections[line[2:].strip()]
        else:
            # U+2028, for example, becomes a newline
            lines.append(printable(line[:LONGEST_LINE].rstrip()).replace("\n", " "))
    if "end" not in sections:
        raise ValueError("the script did not finish")

    def first(name: str) -> str:
        return next((line.strip().replace("\t", "?") for line in sections[name]), "")

    def clock(name: str) -> float:  # printed by `date +%s.%N`; busybox prints %N literally
        match = re.match(r"[0-9]{1,12}(\.[0-9]{1,9})?", first(name))
        return float(match[0]) if match else 0.0

    # a line such as "uid=7(ann) gid=8(staff) groups=..."; a uid may lack a name
    identity = re.match(r"uid=([0-9]{1,10})(?:\((.*?)\))? gid=([0-9]{1,10})", first("user"))
    if not identity:
        raise ValueError(f"`id` printed {first('user')!r}")
    system, hostname, *release = first("system").split() or ["", ""]
    ssh = first("ssh").split()
    gpus, gpu_error = nvidia_gpus(sections["gpus"])
    if not gpus and not gpu_error:
        gpus = amd_gpus(sections["amd"])
    # rows of /proc/net/tcp with ports in hex: "  0: 00000000:1F90 00000000:0000 0A ..."
    ports = (re.match(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) ", row) for row in sections["listening"])
    groups = {
        int(row) for row in sections["gpugroups"][:64] if re.fullmatch("[1-9][0-9]{0,8}", row)
    }
    started, ended = clock("clock"), clock("end")
    cores, boot, namespace = first("cores"), first("boot"), first("network")
    return Facts(
        user=identity[2] or "",
        uid=int(identity[1]),
        gid=int(identity[3]),
        home=first("home"),
        hostname=hostname,
        kernel=" ".join([system, *release]),
        cores=int(cores) if re.fullmatch("[0-9]{1,7}", cores) else 1,
        ssh_server_ip=ssh[2] if len(ssh) == 4 else None,
        ssh_client_ip=ssh[0] if len(ssh) == 4 else None,
        addresses=network.addresses(sections["net"]),
        listening=frozenset(int(port[1], 16) for port in ports if port),
        infiniband=tuple(sections["infiniband"]),
        gpus=with_neighbors(gpus, sections["pci"]),
        gpu_error=gpu_error,
        interfaces=network.interfaces(sections["interfaces"]),
        routes=network.routes(sections["net"]),
        network_stack=f"{boot} {namespace}" if boot and namespace else "",
        rdma_ports=rdma.rdma_ports(sections["rdma"]),
        all_cores=core_list(first("cpus")),
        gpu_groups=tuple(sorted(groups)),
        boot_id=boot if _BOOT_ID.fullmatch(boot) else "",
        clock_skew=(started + ended - asked - answered) / 2,
        clock_error=max(0.0, answered - asked - max(0.0, ended - started)) / 2,
        details=details(sections, first) if "disk" in sections else Details(),
        resolved=folder if (folder := first("folder")).startswith("/") else "",
    )
