"""The plan as a value. `launcher.plan.build` makes one, `launcher.plan.render` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..hosts import Host
from .options import LaunchOptions

LABEL = "io.ddpctl"
HOME = "~/.ddpctl"  # on a host
CONTROL_DIR = "/ddpctl"  # in a container
ASKED = "<asked at launch>"  # stands in a dry run for what only the hosts know


@dataclass(frozen=True)
class EngineTraits:
    """What the plan and its readers need to know about an engine."""

    name: str
    in_container: bool  # the job runs in a container of an image, with its folders mounted


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False
    from_job: bool = False  # named by job.mounts; the other folders are ddpctl's own


@dataclass(frozen=True)
class Container:
    """What the engine of one host is asked for. Values of the user's environment are not in it."""

    name: str
    image: str
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]  # set by ddpctl
    labels: Mapping[str, str]
    mounts: tuple[Mount, ...]
    gpus: str | tuple[int, ...]  # all, or ids; () for none
    user: str
    shm_size: int  # bytes
    stop_timeout: int  # seconds
    command: tuple[str, ...] = ()
    env_names: tuple[str, ...] = ()  # set by the user
    working_dir: str | None = None
    network: str = "host"
    init: bool = True  # a process that reaps zombies, as PID 1
    tmpfs: Mapping[str, int] = field(default_factory=dict)  # size in bytes, by folder
    ulimits: Mapping[str, int] = field(default_factory=dict)  # soft and hard; -1: unlimited
    cap_add: tuple[str, ...] = ()
    gpu_vendor: str = "nvidia"  # the engine itself adds NVIDIA GPUs; `devices` has the others
    group_add: tuple[int, ...] = ()  # ids of groups that the user is in besides its own
    devices: tuple[str, ...] = ()  # as `docker run --device` takes them


@dataclass(frozen=True)
class Place:
    """Where one node of one attempt is found on its host."""

    node_rank: int
    attempt: int
    container: str  # its name
    run_dir: str
    control_dir: str  # holds supervisor.pyz, spec.json and the journal

    @property
    def journal(self) -> str:
        return f"{self.control_dir}/journal"


@dataclass(frozen=True)
class JobPaths:
    """A node's folders: on the host, in the container, or as its job sees them."""

    control: str
    checkpoints: str
    output: str
    workspace: str
    data: str
    metrics: str | None = None  # where the node's Prometheus textfile is written


@dataclass(frozen=True)
class NodePlan:
    node_rank: int
    host: Host
    nproc_per_node: int | None  # None: one per GPU, and the host has not been asked
    first_rank: int | None  # the global rank of local rank 0
    torchrun: tuple[str, ...]
    container: Container
    internal_ip: str
    interface: str | None
    place: Place
    paths: JobPaths
    gpu_ids: Mapping[str, int]  # of the GPUs that it uses, by UUID; empty before the host is asked


@dataclass(frozen=True)
class Plan:
    """One attempt of a run."""

    run_id: str
    name: str
    attempt: int
    owner: str
    engine: EngineTraits
    options: LaunchOptions
    master_addr: str
    master_port: int | str
    control_port: int | str
    command: tuple[str, ...]
    image: str
    image_digest: str | None
    dataset: str | None
    dataset_digest: str | None
    workdir: str | None
    workdir_digest: str | None
    stop_timeout: int
    time_limit: int | None  # seconds
    max_restarts: int
    since: float | None = None  # when the run asked for its GPUs: unix seconds, node 0's clock
    nodes: tuple[NodePlan, ...] = ()

    @property
    def nnodes(self) -> int:
        return len(self.nodes)

    @property
    def key(self) -> tuple[float, str]:
        """The run's place among those that want the same GPUs: the smallest comes first."""
        return round(self.since or 0.0, 3), self.run_id  # as the label has it

    def resources(self, node: NodePlan) -> frozenset[str]:
        """What a node has to itself on its host: GPUs by UUID, and on node 0 the master port."""
        port = [f"port {self.master_port}"] if node.node_rank == 0 else []
        return frozenset([*node.gpu_ids, *port])

    @property
    def world_size(self) -> int | None:
        """The number of ranks, or None where a host must be asked."""
        counts = [node.nproc_per_node for node in self.nodes]
        return None if None in counts else sum(count or 0 for count in counts)


def container_name(run_id: str, node_rank: int) -> str:
    return f"ddpctl-{run_id}-{node_rank}"


def place_in(run_dir: str, run_id: str, node_rank: int, attempt: int) -> Place:
    """run_dir: the run's folder on the host."""
    return Place(
        node_rank=node_rank,
        attempt=attempt,
        container=container_name(run_id, node_rank),
        run_dir=run_dir,
        control_dir=f"{run_dir}/nodes/{node_rank}/attempt-{attempt}",
    )
