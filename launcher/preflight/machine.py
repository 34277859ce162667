"""A machine as the checks see it: its nodes, its facts and its engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..engines.engine_info import EngineInfo
from ..engines.status import NodeStatus
from ..errors import DdpctlError
from ..facts.facts import Facts
from ..facts.hardware import Details
from ..facts.nvidia import GpuState
from ..hosts import Host
from ..plan.node_gpus import gpu_ids, ids_by_uuid


@dataclass(frozen=True)
class ContainerReport:
    """The result of a container test. error: why it did not finish; None if it did."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    gpus: int = 0
    write_error: str = ""
    torch_error: str = ""
    cuda_error: str = ""
    error: DdpctlError | None = None
    architectures: tuple[str, ...] = ()  # the architectures of the GPUs, such as sm_90 or gfx942
    built_for: tuple[str, ...] = ()  # the architectures for which torch has code
    verbs: bool = True  # the image has libibverbs
    open_files: int = -1  # the hard limit; -1: unlimited


@dataclass(frozen=True)
class Machine:
    """A machine and its nodes. engine: None if the engine does not answer or the job needs none.

    python: the versions of the job's Python and its packages, or why they are unknown; None if the
    image has its own Python. run_nodes: all runs' nodes and tickets on the machine, in any state.
    report: None if no container was tested.
    """

    name: str
    ranks: tuple[int, ...]
    hosts: tuple[Host, ...]
    facts: Facts
    engine: EngineInfo | None = None
    engine_error: DdpctlError | None = None
    python: Mapping[str, str] | DdpctlError | None = None
    run_nodes: tuple[NodeStatus, ...] = ()
    report: ContainerReport | None = None

    @property
    def details(self) -> Details:
        return self.facts.details

    @property
    def rank(self) -> int:
        """The machine's first node rank, which identifies it."""
        return self.ranks[0]

    @property
    def wants_gpus(self) -> bool:
        return any(host.gpus != 0 for host in self.hosts)

    @property
    def gpus(self) -> set[int]:
        """The ids of the GPUs that the nodes use."""
        return {index for host in self.hosts for index in gpu_ids(host, self.facts)}

    @property
    def gpu_links(self) -> str:
        """What links the GPUs in use: NVLink, PCIe, both or XGMI; "" if unknown or for one GPU."""
        pairs = {
            p: word for p, word in self.details.nvidia.links.items() if self.gpus.issuperset(p)
        }
        by_nvlink = [word.startswith("NV") for word in pairs.values()]
        if by_nvlink:
            return "NVLink" if all(by_nvlink) else "NVLink and PCIe" if any(by_nvlink) else "PCIe"
        return "XGMI" if self.details.xgmi and len(self.gpus) > 1 else ""

    @property
    def gpus_by_uuid(self) -> dict[str, int]:
        """The ids of the GPUs that the nodes use, by UUID (see `ids_by_uuid`)."""
        return {u: gpu for host in self.hosts for u, gpu in ids_by_uuid(host, self.facts).items()}

    @property
    def gpu_states(self) -> list[GpuState]:
        return [gpu for gpu in self.details.nvidia.gpus if gpu.index in self.gpus]

    @property
    def has_driver(self) -> bool:
        return self.details.kernel_driver is not None or self.facts.has_amd_gpus

    def shares_network_with(self, other: Machine) -> bool:
        """Return whether the two machines share a network stack, and therefore their addresses."""
        return self is other or self.facts.network_stack == other.facts.network_stack != ""
