"""The plan as a value. See `launcher.plan.build` and `launcher.plan.render`."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import UsageError
from ..hosts import Host, Job
from ..supervisor.restart_rule import PastRestart

HOME = "~/.ddpctl"  # on a host
IMAGE_FILE = "image.sif"  # in a folder of ~/.ddpctl/images
STORE = ".ddpctl"  # the same for commands, which start in the user's home folder
CONTROL_DIR = "/ddpctl"  # in a container
_CONTROL_DIR = re.compile(r"/runs/([^/]+)/nodes/([0-9]{1,6})/attempt-([0-9]{1,7})$")
OUR_TRAINER = ("-m", "trainer")
Gpus = str | tuple[int, ...]  # of a container: all, or ids; () for none
TRAINER_HANG_TIMEOUT = 1800.0  # seconds; our trainer logs every minute except during evaluation


@dataclass(frozen=True)
class RunOptions:
    """Launch options that apply to every attempt of a run. Their values are plain JSON.

    To add a flag to `launch`, add a field here or in LaunchOptions, its option in
    launcher/commands/launch.py, and the code that acts on it. `--dry-run` prints all options.
    """

    name: str = ""
    hang_timeout: float | None = None  # seconds without progress; 0: never; None: default
    wait: int | None = None  # seconds in line for GPUs; 0: no limit; None: do not wait
    nodes: int | None = None  # use any N hosts of the file whose GPUs are free
    push: bool = True
    check: bool = True
    network_only: bool = False  # nodes on one machine communicate over the network too

    def __post_init__(self) -> None:
        timeout = self.hang_timeout
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            what = f"hang_timeout {timeout:g}: not a time"
            raise UsageError(what, "pass seconds, or 0 for never")


@dataclass(frozen=True)
class LaunchOptions(RunOptions):
    detach: bool = False
    on_exit: str | None = None  # for `sh -c` once the run has ended; may contain a token
    on_event: str | None = None  # for `sh -c` on each event; may contain a token
    by: Literal["launch", "resume", "restart"] = "launch"  # what starts this attempt

    def settled(self, command: Sequence[str]) -> LaunchOptions:
        """Return the options with the default hang timeout of `command`: only our trainer has one."""
        if self.hang_timeout is not None:
            return self
        is_ours = tuple(command[:2]) == OUR_TRAINER
        return dataclasses.replace(self, hang_timeout=TRAINER_HANG_TIMEOUT if is_ours else 0.0)

    def of_run(self) -> RunOptions:
        names = [each.name for each in dataclasses.fields(RunOptions)]
        return RunOptions(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class EngineTraits:
    """What the plan and its readers need to know about an engine."""

    name: str
    in_container: bool  # the job runs in a container of an image, with its folders mounted
    image_files: bool = False  # images are files in ~/.ddpctl, containers the user's own processes

    @property
    def keeps_containers(self) -> bool:
        """Whether the host's engine keeps images and containers, and limits what these may use."""
        return self.in_container and not self.image_files

    @property
    def unit(self) -> str:
        """What a node is on its host, in messages."""
        return "container" if self.keeps_containers else "supervisor"


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False
    from_job: bool = False  # from job.mounts or job.metrics_dir; all others are ddpctl's own


@dataclass(frozen=True)
class Container:
    """The container to create on one host. Excludes the values of the user's environment."""

    name: str
    image: str
    entrypoint: tuple[str, ...]
    env: Mapping[str, str]  # set by ddpctl
    labels: Mapping[str, str]
    mounts: tuple[Mount, ...]
    gpus: Gpus
    user: str
    shm_size: int  # bytes
    stop_timeout: int  # seconds
    command: tuple[str, ...] = ()
    env_names: tuple[str, ...] = ()  # set by the user
    env_at_launch: tuple[str, ...] = ()  # set by ddpctl, once the host was asked
    working_dir: str | None = None
    network: str = "host"
    init: bool = True  # run an init process as PID 1, which reaps zombies
    tmpfs: Mapping[str, int] = field(default_factory=dict)  # size in bytes, by folder
    ulimits: Mapping[str, int] = field(default_factory=dict)  # soft and hard; -1: unlimited
    cap_add: tuple[str, ...] = ()
    cap_drop: tuple[str, ...] = ()
    pids_limit: int = -1  # processes and threads; -1: unlimited
    new_privileges: bool = False  # programs may gain privileges, as sudo does
    gpu_vendor: str = "nvidia"  # the engine adds NVIDIA GPUs itself; other GPUs are in `devices`
    group_add: tuple[int, ...] = ()  # ids of the user's additional groups
    devices: tuple[str, ...] = ()  # in the syntax of `docker run --device`


@dataclass(frozen=True)
class Place:
    """The location of one node of one attempt on its host."""

    node_rank: int
    attempt: int
    container: str  # container name
    run_dir: str
    control_dir: str  # contains supervisor.pyz, spec.json and the journal

    @property
    def journal(self) -> str:
        return f"{self.control_dir}/journal"


@dataclass(frozen=True)
class JobPaths:
    """A node's folders: on the host, in the container, or as the job sees them."""

    control: str
    checkpoints: str
    output: str
    workspace: str
    data: str
    cache: str  # shared by all runs of the user
    metrics: str | None = None  # for the node's Prometheus textfile


@dataclass(frozen=True)
class NodePlan:
    node_rank: int
    host: Host
    nproc_per_node: int | None  # None: one per GPU, but the host was not asked yet
    first_rank: int | None  # the global rank of local rank 0
    container: Container
    internal_ip: str | None  # for traffic between nodes; None before the host was asked
    interface: str | None  # the one with internal_ip; None if unknown
    place: Place
    paths: JobPaths
    gpu_ids: Mapping[str, int]  # the node's GPUs by UUID; empty before the host was asked


@dataclass(frozen=True)
class Plan:
    """One attempt of a run. Before the hosts were asked, what only they know is None or absent."""

    run_id: str
    attempt: int
    owner: str
    engine: EngineTraits
    options: LaunchOptions
    job: Job  # without env: its values may be secret
    command: tuple[str, ...]  # what torchrun runs: the job's, with resume_args on a resume
    master_addr: str | None
    master_port: int | None
    control_port: int | None  # for the supervisors, on node 0
    image_digest: str | None  # of the wheels of job.requirements, or of the image's file
    dataset_digest: str | None
    workdir_digest: str | None
    past_restarts: tuple[PastRestart, ...] = ()  # of the run, since the user started it
    since: float | None = None  # when the run asked for its GPUs: unix seconds on node 0's clock
    notes: tuple[str, ...] = ()  # what the run's log says first, such as which host replaces which
    nodes: tuple[NodePlan, ...] = ()

    @property
    def nnodes(self) -> int:
        return len(self.nodes)

    @property
    def hosts_were_asked(self) -> bool:
        return self.control_port is not None

    @property
    def key(self) -> tuple[float, str]:
        """The run's priority among runs that want the same GPUs; the smallest key comes first."""
        return round(self.since or 0.0, 3), self.run_id  # rounded as in the label

    def resources(self, node: NodePlan) -> frozenset[str]:
        """Return what a node uses exclusively: GPUs by UUID and, on node 0, the master port."""
        port = [f"port {self.master_port}"] if node.node_rank == 0 else []
        return frozenset([*node.gpu_ids, *port])

    @property
    def world_size(self) -> int | None:
        """The number of ranks; None if a host has to be asked."""
        return total([node.nproc_per_node for node in self.nodes])


def total(counts: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a count is unknown."""
    return None if None in counts else sum(count or 0 for count in counts)


def container_name(run_id: str, node_rank: int) -> str:
    return f"ddpctl-{run_id}-{node_rank}"


def run_dir_in(store: str, run_id: str) -> str:
    """Return the folder of a run on a host. store: ~/.ddpctl there, such as STORE."""
    return f"{store}/runs/{run_id}"


def place_in(run_dir: str, run_id: str, node_rank: int, attempt: int) -> Place:
    """Return a node's location. run_dir: the run's folder on the host."""
    control_dir = f"{run_dir}/nodes/{node_rank}/attempt-{attempt}"
    return Place(node_rank, attempt, container_name(run_id, node_rank), run_dir, control_dir)


def attempt_in(control_dir: str) -> tuple[str, int, int] | None:
    """Return the run id, node rank and attempt of a control folder; None if it is none."""
    match = _CONTROL_DIR.search(control_dir)
    return (match[1], int(match[2]), int(match[3])) if match else None
