"""Machines from the field, as their facts script prints them: what an experienced engineer would find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest
from healthy import IMAGE, cluster, machine

from launcher.engines.engine_info import Capabilities
from launcher.facts.facts import parse
from launcher.hosts import Host
from launcher.preflight.check import judge
from launcher.preflight.findings import Finding
from launcher.preflight.fleet import Fleet
from launcher.preflight.machine import ContainerReport
from launcher.preflight.reach import Dial, DialResult, Reach
from launcher.preflight.survey_report import gpus_text

X86, ARM = "Linux node 6.8.0 x86_64", "Linux node 6.11.0 aarch64"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.133.20  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024"


@dataclass
class Nic:
    mbits: int
    address: str = ""  # with its prefix length; "" for none
    kind: str = "ethernet"
    mtu: int = 1500


@dataclass
class Box:
    """A machine in a few words. ports: name, link layer, Gb/s, interface. links, p2p: between all GPUs."""

    nics: Mapping[str, Nic]
    gpus: int = 8
    model: str = "NVIDIA H100 80GB HBM3"
    mib: str = "81559"
    links: str = ""
    p2p: str = "OK"
    iommu: str = "identity"
    ports: Sequence[tuple[str, str, int, str]] = ()
    system: str = X86
    driver: str = OPEN
    sections: Mapping[str, str] = field(default_factory=dict)
    cores: int = 64
    amd: bool = False

    def facts_text(self) -> str:
        ips = {name: IPv4Interface(nic.address) for name, nic in self.nics.items() if nic.address}
        first = next(str(each.ip) for each in ips.values())
        sections = {
            "clock": "1.5",
            "user": "uid=1000(ann) gid=1000(ann)",
            "home": "/home/ann",
            "system": self.system,
            "ssh": f"10.0.0.200 5000 {first} 22",
            "cores": str(self.cores),
            "cpus": f"0-{self.cores - 1}",
            "net": "\n".join([*map(_route, ips, ips.values()), *map(_fib, ips.values())]),
            "interfaces": "\n".join(
                f"{name} {nic.mtu} up {nic.mbits} {nic.kind}" for name, nic in self.nics.items()
            ),
            "rdma": "\n".join(self._ports(ips)),
            "infiniband": "uverbs0" if self.ports else "",
            "writable": "yes",
            "disk": "path /home/ann",
            **(self._amd() if self.amd else self._nvidia()),
            **self.sections,
        }
        return "".join(f"\n@@{name}\n{text}" for name, text in sections.items()) + "\n@@end\n1.5\n"

    def _ports(self, ips: Mapping[str, IPv4Interface]) -> list[str]:
        rows = []
        for name, layer, gbits, nic in self.ports:
            rows.append(f"port\t{name}\t1\t4: ACTIVE\t{layer}\t{gbits} Gb/sec (4X NDR)\t{nic}")
            if nic in ips:
                number = f"{int(ips[nic].ip):08x}"
                rows.append(f"gid\t3\t{number[:4]}:{number[4:]}\tRoCE v2")
        return rows

    def _near(self, index: int) -> str:
        """The cores next to a GPU: half of the machine's."""
        half = self.cores // 2
        return f"0-{half - 1}" if index < self.gpus / 2 else f"{half}-{self.cores - 1}"

    def _nvidia(self) -> dict[str, str]:
        numbers = range(self.gpus)

        def matrix(word: str) -> str:
            return "\n".join(
                "\t".join([f"GPU{i}", *(" X " if i == j else word for j in numbers), "SYS", "0-31"])
                for i in numbers
            )

        return {
            "gpus": "\n".join(
                f"{i}, GPU-{i}, {self.model}, {self.mib}, 00000000:{i + 1:02X}:00.0"
                for i in numbers
            ),
            "pci": "\n".join(
                f"0000:{i + 1:02x}:00.0\t{self._near(i)}\t{self.iommu}" for i in numbers
            ),
            "driver": self.driver,
            "nvidia": "<nvidia_smi_log><driver_version></driver_version>"
            + "".join(f'<gpu id="{i + 1:08x}:01:00.0"></gpu>' for i in numbers)
            + "</nvidia_smi_log>",
            "toolkit": "/usr/bin/nvidia-ctk",
            "links": matrix(self.links) + "\nLegend:\n" if self.links else "",
            "p2p": matrix(self.p2p) if self.gpus > 1 else "",
        }

    def _amd(self) -> dict[str, str]:
        return {
            "amd": "\n".join(
                f"{i + 2}\t{i + 7}\t{192 * 2**30}\tMI300X\t\t0000:{i + 1:02x}:00"
                for i in range(self.gpus)
            ),
            "pci": "\n".join(
                f"0000:{i + 1:02x}:00.0\t{self._near(i)}\tDMA-FQ" for i in range(self.gpus)
            ),
            "xgmi": "type 11",
        }


def _hex(address: IPv4Address) -> str:
    return address.packed[::-1].hex().upper()


def _route(name: str, ip: IPv4Interface) -> str:
    network = ip.network
    row = (name, _hex(network.network_address), "0" * 8, "1", "0", "0", "0", _hex(network.netmask))
    return "\t".join(row)


def _fib(ip: IPv4Interface) -> str:
    return f"|-- {ip.ip}\n   /32 host LOCAL"


def fleet(
    boxes: Sequence[Box], *, reach: Reach | None = None, engine: Mapping[str, Any] | None = None
) -> Fleet:
    machines = []
    for rank, box in enumerate(boxes):
        facts = parse(box.facts_text())
        gpus = tuple(replace(gpu, uuid=f"GPU-{rank}-{gpu.index}") for gpu in facts.gpus)
        facts = replace(facts, gpus=gpus, boot_id=f"b{rank}", network_stack=f"n{rank}")
        made = replace(machine(rank), facts=facts)
        assert made.engine
        built = replace(IMAGE, architecture="arm64" if box.system == ARM else "amd64")
        made = replace(made, engine=replace(made.engine, image=built, **(engine or {})))
        machines.append(made)
    hosts = tuple(m.hosts[0] for m in machines)
    return Fleet(cluster(*hosts), machines, None, reach or Reach())


def findings(made: Fleet, report: ContainerReport | None = None) -> list[Finding]:
    made = replace(made, machines=[replace(m, report=report) for m in made.machines])
    told = judge(made)
    return [each for each in told if each.check != "clock"]


def pair(box: Callable[[int], Box]) -> list[Box]:
    return [box(1), box(2)]


def dgx_h100(n: int) -> Box:
    ports = [(f"mlx5_{i}", "InfiniBand", 400, f"ibp{i}s0") for i in range(8)]
    idle = {f"ibp{i}s0": Nic(400000, kind="plain", mtu=4092) for i in range(8)}
    nics = {"eno3": Nic(10000, f"10.0.0.{n}/24"), "enp170s0f0": Nic(200000), **idle}
    return Box(
        nics,
        links="NV18",
        ports=ports,
        cores=224,
        sections={"peermem": "/sys/module/nvidia_peermem"},
    )


def spark(n: int, first: str = "169.254.7.{}/16", second: str = "169.254.8.{}/16") -> Box:
    """One cable: one port of the card, which the kernel shows as two halves."""
    nics = {
        "enP7s7": Nic(10000, f"10.0.0.{n}/24"),
        "enp1s0f0np0": Nic(200000, first.format(n)),
        "enP2p1s0f0np0": Nic(200000, second.format(n)),
    }
    ports = [
        ("rocep1s0f0", "Ethernet", 200, "enp1s0f0np0"),
        ("roceP2p1s0f0", "Ethernet", 200, "enP2p1s0f0np0"),
    ]
    return Box(nics, 1, "NVIDIA GB10", "[N/A]", iommu="DMA-FQ", ports=ports, system=ARM, cores=20)


def two_rails(n: int, swapped: bool = False) -> Box:
    third = (2, 1) if swapped else (1, 2)
    rails = {f"eth{i}": Nic(100000, f"10.1.{third[i - 1]}.{n}/24", mtu=9000) for i in (1, 2)}
    nics = {"eno1": Nic(1000, f"10.0.0.{n}/24"), **rails}
    ports = [("mlx5_0", "Ethernet", 100, "eth1"), ("mlx5_1", "Ethernet", 100, "eth2")]
    peermem = {"peermem": "/sys/module/nvidia_peermem"}
    return Box(
        nics,
        model="NVIDIA A100-SXM4-80GB",
        links="NV12",
        ports=ports,
        driver=CLOSED,
        sections=peermem,
    )


def workstation(n: int, **changes: Any) -> Box:
    nics = {"enp5s0": Nic(10000, f"10.0.0.{n}/24")}
    box = Box(nics, 4, "NVIDIA RTX 6000 Ada Generation", "49140", links="PHB", cores=32)
    return replace(box, **changes)


def mi300(n: int) -> Box:
    rails = {f"eth{i}": Nic(400000, f"10.1.{i}.{n}/24", mtu=9000) for i in range(2)}
    ports = [(f"bnxt_re{i}", "Ethernet", 400, f"eth{i}") for i in range(2)]
    return Box({"eno1": Nic(1000, f"10.0.0.{n}/24"), **rails}, 8, ports=ports, amd=True)


def geforce(n: int) -> Box:
    changes = {"model": "NVIDIA GeForce RTX 5090", "mib": "32607", "p2p": "CNS", "iommu": "DMA-FQ"}
    return workstation(n, gpus=2, **changes)


def wsl2(n: int) -> Box:
    system = "Linux box 6.6.87.2-microsoft-standard-WSL2 x86_64"
    nics = {"eth0": Nic(-1, f"10.0.0.{n}/24")}
    box = Box(nics, 1, "NVIDIA GeForce RTX 4090", "24564", system=system, driver="", iommu="")
    return replace(box, sections={"pci": "", "driver": "", "p2p": ""})


def cloud_vm(n: int) -> Box:
    nics = {"ens5": Nic(-1, f"10.0.0.{n}/24"), "docker0": Nic(-1, "", "bridge")}
    return Box(nics, model="NVIDIA A100-SXM4-40GB", mib="40960", links="NV12", iommu="")


def gh200(n: int) -> Box:
    nics = {"eth0": Nic(200000, f"10.0.0.{n}/24", mtu=9000)}
    ports = [("mlx5_0", "Ethernet", 200, "eth0")]
    return Box(
        nics, 1, "NVIDIA GH200 480GB", "97871", iommu="DMA-FQ", ports=ports, system=ARM, cores=72
    )


def bonded(n: int) -> Box:
    halves = {name: Nic(25000, "", "plain") for name in ("eno1", "eno2", "bond0")}
    return workstation(
        n, nics={**halves, "bond0.20": Nic(50000, f"10.0.0.{n}/24", "plain")}, iommu=""
    )


def wifi(n: int) -> Box:
    nics = {"enp5s0": Nic(1000, f"10.0.0.{n}/24"), "wlp6s0": Nic(-1, f"10.0.0.10{n}/24", "plain")}
    return workstation(n, nics=nics, gpus=1)


def hdr_cluster(n: int) -> Box:
    ports = [("mlx5_0", "InfiniBand", 200, "ib0")]
    nics = {"eno1": Nic(25000, f"10.0.0.{n}/24"), "ib0": Nic(200000, kind="plain")}
    return Box(nics, 4, "NVIDIA A40", "46068", links="NV4", ports=ports, driver=CLOSED)


TORCH = replace(
    ContainerReport("3.12.3", "2.7.1", "12.8", "2.26.2", gpus=4, open_files=524288),
    architectures=("sm_90",),
    built_for=("sm_80", "sm_90", "sm_120", "compute_120"),
)
OTHER_MTU = replace(two_rails(2), nics={**two_rails(2).nics, "eth2": Nic(100000, "10.1.2.2/24")})


@pytest.mark.parametrize(
    "boxes",
    [
        pair(dgx_h100), pair(two_rails), pair(mi300), pair(geforce), pair(wsl2), pair(cloud_vm),
        pair(gh200), pair(bonded), pair(workstation), [workstation(1, iommu="DMA", p2p="CNS")],
        [spark(1)], pair(lambda n: spark(n, "192.168.100.{}/24", "192.168.200.{}/24")),
        [spark(1, "192.168.100.{}/24"), cloud_vm(2)][:1],
    ],
    ids="dgx_h100 two_rails mi300 geforce wsl2 cloud_vm gh200 bonded workstation no_p2p "
    "one_spark two_sparks half_a_spark".split(),
)  # fmt: skip
def test_machines_as_they_should_be_give_no_finding(boxes: list[Box]) -> None:
    assert findings(fleet(boxes), TORCH) == []


def netplan(**addresses: str) -> str:
    ports = ", ".join(f"{name}: {{addresses: [{ip}]}}" for name, ip in addresses.items())
    return f"`{{network: {{version: 2, ethernets: {{{ports}}}}}}}`"


def test_two_sparks_on_the_office_network_get_netplan_lines() -> None:
    one, two = findings(fleet(pair(spark)))
    assert one.what == (
        "enp1s0f0np0 (200 Gb/s) and enP2p1s0f0np0 (200 Gb/s) have only a link-local address, "
        "so the run uses enP7s7 (10 Gb/s)"
    )
    assert netplan(enp1s0f0np0="192.168.178.1/24", enP2p1s0f0np0="192.168.177.1/24") in one.remedy
    assert netplan(enp1s0f0np0="192.168.178.2/24", enP2p1s0f0np0="192.168.177.2/24") in two.remedy
    assert two.remedy.endswith("run `sudo netplan apply`")


def test_the_half_of_a_port_without_an_address_joins_the_network_of_the_other_host() -> None:
    whole = spark(1, "192.168.100.{}/24", "192.168.200.{}/24")
    (half,) = findings(fleet([whole, spark(2, "192.168.100.{}/24", "")]))
    assert half.host == "gpu2"
    assert (
        half.what
        == "enP2p1s0f0np0 (200 Gb/s) has no address, so NCCL cannot use it alongside enp1s0f0np0"
    )
    assert netplan(enP2p1s0f0np0="192.168.200.3/24") in half.remedy
    both = [spark(n, "192.168.177.{}/24", "") for n in (1, 2)]
    assert netplan(enP2p1s0f0np0="192.168.178.2/24") in findings(fleet(both))[1].remedy


@pytest.mark.parametrize(
    "other",
    [
        replace(spark(2), nics={"enP7s7": Nic(10000, "10.0.0.2/24")}, ports=()),
        replace(spark(2), nics={**spark(2).nics, "enp1s0f0np0": Nic(200000, "", "plain"),
                                "enP2p1s0f0np0": Nic(1000)}),
    ],
)  # fmt: skip
def test_a_fast_port_without_a_counterpart_is_no_finding(other: Box) -> None:
    assert findings(fleet([spark(1), other]), None) == []


def one(made: Fleet, report: ContainerReport | None = None) -> Finding:
    told = [each for each in findings(made, report) if each.host == made.machines[-1].name]
    assert len(told) == 1, told
    return told[0]


@pytest.mark.parametrize(
    ("boxes", "what", "remedy"),
    [
        (pair(lambda n: workstation(n, iommu="DMA-FQ")), "addresses for GPUs 0-3", "iommu=pt"),
        ([workstation(1, sections={"acs": "ACSCtl: ReqRedir+"})], "PCIe ACS", "P2P_DISABLE=1"),
        (pair(lambda n: replace(dgx_h100(n), iommu="DMA")), "the IOMMU translates", "iommu=pt"),
        (pair(hdr_cluster), "GPUDirect RDMA is off", "modprobe nvidia-peermem"),
        (pair(wifi), "enp5s0 and wlp6s0 are on the same network, 10.0.0.0/24", "own network"),
        ([two_rails(1), two_rails(2, swapped=True)], "crossed: mlx5_0:1 is on 10.1.2.0/24", "swap"),
        ([two_rails(1), OTHER_MTU], "MTU 1500/9000 on eth1, eth2, while other hosts have 9000", "same MTU"),
    ],
)  # fmt: skip
def test_what_an_engineer_would_find_in_the_facts(boxes: list[Box], what: str, remedy: str) -> None:
    finding = one(fleet(boxes))
    assert finding.severity == "warning"
    assert what in finding.what
    assert remedy in finding.remedy


def test_a_roce_port_that_is_up_but_not_connected() -> None:
    results = {
        Dial(0, 1, "10.1.2.2"): DialResult("timeout"),
        Dial(0, 1, "10.1.1.2"): DialResult("ok"),
    }
    made = fleet(pair(two_rails), reach=Reach(results))
    assert (
        one(made).what == "gpu1 cannot reach RoCE port mlx5_1:1 at 10.1.2.2: NCCL will fail or hang"
    )
    env = cluster(*made.cluster.hosts, env={"NCCL_IB_HCA": "mlx5_0"})
    assert findings(replace(made, cluster=env)) == []


@pytest.mark.parametrize(
    ("version", "cdi", "is_found"),
    [((28, 5), True, True), ((29, 0), False, True), ((29, 0), True, False)],
)
def test_containers_that_lose_their_gpus_when_systemd_reloads(
    version: tuple[int, ...], cdi: bool, is_found: bool
) -> None:
    boxes = [replace(cloud_vm(1), sections={"cdi": "nvidia.yaml" if cdi else ""})]
    made = fleet(boxes, engine={"cgroup_driver": "systemd", "can": Capabilities(version=version)})
    assert [f.what for f in findings(made)] == is_found * [
        "containers lose their GPUs when systemd reloads, for example during an update"
    ]


@pytest.mark.parametrize(
    ("architecture", "built_for", "runs"),
    [
        ("sm_120", "sm_50 sm_80 sm_86 sm_90", False),
        ("sm_120", "sm_80 sm_90 compute_90", True),
        ("sm_121", "sm_90 sm_120", True),
        ("sm_61", "sm_75 sm_80 sm_90 compute_90", False),
        ("sm_89", "sm_80 sm_86 sm_90", True),
        ("sm_80", "sm_86", False),
        ("sm_90", "sm_90a", True),
        ("gfx942", "gfx90a gfx942", True),
        ("gfx1100", "gfx90a gfx942", False),
        ("sm_90", "", True),
    ],
)
def test_an_image_without_code_for_the_gpu(architecture: str, built_for: str, runs: bool) -> None:
    report = replace(TORCH, architectures=(architecture,), built_for=tuple(built_for.split()))
    told = findings(fleet([geforce(1)]), report)
    assert [f.severity for f in told] == ([] if runs else ["failure"])
    assert runs or f"has no code for {architecture}, only for {built_for}" in told[0].what


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (replace(TORCH, verbs=False), "lacks libibverbs"),
        (replace(TORCH, open_files=1024), "may open only 1024 files"),
        (
            replace(TORCH, cuda_error="system not yet initialized"),
            "cannot use the GPUs: system not",
        ),
    ],
)
def test_what_the_image_lacks(report: ContainerReport, words: str) -> None:
    assert words in one(fleet(pair(dgx_h100)), report).what
    if not report.verbs:
        assert findings(fleet([cloud_vm(1)]), report) == []  # without RDMA, nothing needs it


def test_check_shows_no_cores_where_a_cpu_node_shares_the_machine() -> None:
    made = fleet([dgx_h100(1)])
    nodes = (Host("gpu1", gpus=8), Host("gpu1", gpus=0))  # a launch binds no rank to cores here
    shared = replace(made.machines[0], hosts=nodes)
    assert gpus_text(made, shared) == "8 x NVIDIA H100 80GB HBM3, NVLink"


def test_check_shows_the_links_between_gpus_and_the_cores_of_ranks() -> None:
    made = fleet([dgx_h100(1), workstation(2), mi300(3), spark(4)])
    assert [gpus_text(made, each) for each in made.machines] == [
        "8 x NVIDIA H100 80GB HBM3, NVLink, ranks 0-3 on cores 0-111, ranks 4-7 on cores 112-223",
        "4 x NVIDIA RTX 6000 Ada Generation, PCIe, ranks 0-1 on cores 0-15, ranks 2-3 on cores 16-31",
        "8 x AMD MI300X, XGMI, ranks 0-3 on cores 0-31, ranks 4-7 on cores 32-63",
        "1 x NVIDIA GB10",
    ]
