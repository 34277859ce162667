"""The plan of an attempt, as plain data. `plan.build` makes it, and `plan.render` formats it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..hosts import Host, Job
from ..supervisor.restart_rule import PastRestart
from .launch_options import LaunchOptions

HOME = "~/.ddpctl"  # ddpctl's folder on a host
IMAGE_FILE = "image.sif"  # in a folder of ~/.ddpctl/images
STORE = ".ddpctl"  # HOME as seen by commands, which start in the user's home folder
CONTROL_DIR = "/ddpctl"  # a node's control folder, as mounted in its container
_CONTROL_DIR = re.compile(r"/runs/([^/]+)/nodes/([0-9]{1,6})/attempt-([0-9]{1,7})$")
Gpus = str | tuple[int, ...]  # a container's GPUs: "all", or their ids; () if it has none


@dataclass(frozen=True)
class EngineTraits:
    """The properties of an engine that the plan and its readers need."""

    name: str
    in_container: bool  # the job runs in a container, with its folders mounted
    image_files: bool = False  # images are files in ~/.ddpctl; containers are the user's processes

    @property
    def keeps_containers(self) -> bool:
        """Whether the host's engine stores images and containers, and can limit resource use."""
        return self.in_container and not self.image_files

    @property
    def unit(self) -> str:
        """The word for a node on its host, as used in messages."""
        return "container" if self.keeps_containers else "supervisor"


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False
    from_job: bool = False  # from job.mounts or job.metrics_dir; all others are ddpctl's own


@dataclass(frozen=True)
class Container:
    """The container or process to create on one host. Omits the values of the user's variables."""

    name: str
    image: str
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]  # the variables that ddpctl sets
    labels: Mapping[str, str]
    mounts: tuple[Mount, ...]
    gpus: Gpus
    user: str
    shm_size: int  # bytes
    stop_timeout: int  # seconds
    command: tuple[str, ...] = ()
    env_names: tuple[str, ...] = ()  # the names of the variables that the user sets
    env_at_launch: tuple[str, ...] = ()  # variables that ddpctl can set only after asking the host
    working_dir: str | None = None
    network: str = "host"
    init: bool = True  # whether PID 1 is an init process, which reaps zombies
    tmpfs: Mapping[str, int] = field(default_factory=dict)  # size in bytes, by folder
    ulimits: Mapping[str, int] = field(default_factory=dict)  # soft = hard limit; -1: unlimited
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    pids_limit: int = -1  # the most processes and threads; -1: unlimited
    new_privileges: bool = False  # whether programs may gain privileges, as sudo does
    gpu_vendor: str = "nvidia"  # the engine itself adds NVIDIA GPUs; other GPUs are in `devices`
    group_add: tuple[int, ...] = ()  # ids of the user's additional groups
    devices: tuple[str, ...] = ()  # in the syntax of `docker run --device`


@dataclass(frozen=True)
class Place:
    """The location of one node of one attempt on its host."""

    node_rank: int
    attempt: int
    container: str  # the container's name
    run_dir: str
    control_dir: str  # contains supervisor.pyz, spec.json and the journal

    @property
    def journal(self) -> str:
        return f"{self.control_dir}/journal"


@dataclass(frozen=True)
class JobPaths:
    """The paths of a node's folders: on the host, in the container, or as the job sees them."""

    control: str
    checkpoints: str
    output: str
    workspace: str
    data: str
    cache: str  # shared by all runs of the user
    metrics: str | None = None  # folder for the node's Prometheus text file


@dataclass(frozen=True)
class NodePlan:
    node_rank: int
    host: Host
    nproc_per_node: int | None  # None: one per GPU, but the host has not been asked yet
    first_rank: int | None  # the global rank of local rank 0
    container: Container
    internal_ip: str | None  # for traffic between nodes; None until the host has been asked
    interface: str | None  # the network interface that has internal_ip; None if unknown
    place: Place
    paths: JobPaths
    gpu_ids: Mapping[str, int]  # the ids of its GPUs, by UUID; empty until the host has been asked


@dataclass(frozen=True)
class Plan:
    """One attempt of a run. Until the hosts are asked, values from them are None or absent."""

    run_id: str
    attempt: int
    owner: str
    engine: EngineTraits
    options: LaunchOptions
    nnodes: int
    job: Job  # without env, whose values may be secret
    command: tuple[str, ...]  # what torchrun runs: the job's command, plus resume_args on a resume
    master_addr: str | None
    master_port: int | None
    control_port: int | None  # where the supervisors connect to node 0
    image_digest: str | None  # id of the image, or digest of the .sif file or of the wheels
    dataset_digest: str | None
    workdir_digest: str | None
    past_restarts: tuple[PastRestart, ...] = ()  # restarts since the user last started the run
    since: float | None = None  # when the run asked for its GPUs: unix seconds on node 0's clock
    notes: tuple[str, ...] = ()  # first lines of the run's log, such as which host replaces which
    nodes: tuple[NodePlan, ...] = ()

    @property
    def key(self) -> tuple[float, str]:
        """The run's priority among runs that want the same GPUs. The smallest key comes first."""
        return round(self.since or 0.0, 3), self.run_id  # rounded, as the label is

    def resources(self, node: NodePlan) -> frozenset[str]:
        """Return what no other run may use: the node's GPUs, by UUID, and on node 0 the master port."""
        port = [f"port {self.master_port}"] if node.node_rank == 0 else []
        return frozenset([*node.gpu_ids, *port])

    @property
    def world_size(self) -> int | None:
        """The number of ranks; None if it depends on a host that has not been asked yet."""
        return total([node.nproc_per_node for node in self.nodes])


def total(counts: Sequence[int | None]) -> int | None:
    """Return the sum of the counts, or None if one of them is unknown."""
    return None if None in counts else sum(count or 0 for count in counts)


def container_name(run_id: str, node_rank: int) -> str:
    return f"{name_prefix(run_id)}{node_rank}"


def name_prefix(run_id: str | None) -> str:
    """Return the prefix of a run's container names, or of all runs' if `run_id` is None."""
    return f"ddpctl-{run_id}-" if run_id else "ddpctl-"


def run_dir_in(store: str, run_id: str) -> str:
    """Return the path of a run's folder on a host. store: the path of ~/.ddpctl there, or STORE."""
    return f"{store}/runs/{run_id}"


def place_in(run_dir: str, run_id: str, node_rank: int, attempt: int) -> Place:
    """Return the location of a node on its host. run_dir: the run's folder there."""
    control_dir = f"{run_dir}/nodes/{node_rank}/attempt-{attempt}"
    return Place(node_rank, attempt, container_name(run_id, node_rank), run_dir, control_dir)


def attempt_in(control_dir: str) -> tuple[str, int, int] | None:
    """Return the run id, node rank and attempt of a control folder; None for any other path."""
    match = _CONTROL_DIR.search(control_dir)
    return (match[1], int(match[2]), int(match[3])) if match else None
