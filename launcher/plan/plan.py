"""The plan: everything that a launch will do on every node, as one frozen, printable value.

Pure: no clock, environment, disk or network. `make_plan` is given the cluster, the run id and, when
the hosts have been asked, what was found there; `--dry-run` prints the same value without asking.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from launcher.facts.script import Facts
from launcher.hosts import Cluster, Host, Job
from launcher.plan.topology import free_port, node_addresses, nproc_per_node

LABEL = "io.ddpctl"
HOME = "~/.ddpctl"
CONTROL_DIR = "/ddpctl"
ASKED = "<asked at launch>"  # stands in a dry run for what only the hosts know


@dataclass(frozen=True)
class Found:
    """What only the hosts can tell, after the push. Tuples have one entry a node, in rank order."""

    facts: tuple[Facts, ...]
    images: tuple[str, ...]  # by digest or id, as that host's engine names it
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    image_digest: str | None = None
    used_ports: frozenset[int] = frozenset()  # on node 0, listening or promised to another run


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """What the engine of one host is asked for."""

    name: str
    image: str
    env: Mapping[str, str]
    labels: Mapping[str, str]
    mounts: tuple[Mount, ...]
    gpus: str | tuple[int, ...]  # all, or ids; () for none
    user: str
    shm_size: int  # bytes
    stop_timeout: int  # seconds
    infiniband: bool


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
class NodePlan:
    node_rank: int
    host: Host
    torchrun: tuple[str, ...]
    container: Container
    internal_ip: str
    interface: str | None
    place: Place


@dataclass(frozen=True)
class Plan:
    run_id: str
    name: str
    attempt: int
    owner: str
    engine: str
    nproc_per_node: int | None  # None: one a GPU, not asked yet
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
    nodes: tuple[NodePlan, ...] = field(default=())

    @property
    def nnodes(self) -> int:
        return len(self.nodes)

    @property
    def world_size(self) -> int | None:
        return None if self.nproc_per_node is None else self.nnodes * self.nproc_per_node


def make_plan(
    cluster: Cluster,
    *,
    run_id: str,
    owner: str,
    name: str = "",
    attempt: int = 1,
    resume: bool = False,
    found: Found | None = None,
    node_env: Sequence[Mapping[str, str]] = (),
) -> Plan:
    """The plan of one attempt. Raises UsageError where the hosts cannot run it together.

    node_env: by node rank, environment that differs from node to node.
    """
    job = cluster.job
    facts = found.facts if found else None
    nproc = nproc_per_node(cluster, facts)
    addresses = node_addresses(cluster, facts)
    master_port, control_port = _ports(job, run_id, attempt, found)
    command = (*job.command, *job.resume_args) if resume else job.command
    plan = Plan(
        run_id=run_id,
        name=name,
        attempt=attempt,
        owner=owner,
        engine=job.engine,
        nproc_per_node=nproc,
        master_addr=addresses[0],
        master_port=master_port,
        control_port=control_port,
        command=command,
        image=job.image,
        image_digest=found.image_digest if found else None,
        dataset=job.dataset,
        dataset_digest=found.dataset_digest if found else None,
        workdir=job.workdir,
        workdir_digest=found.workdir_digest if found else None,
        stop_timeout=job.stop_timeout,
    )
    nodes = tuple(
        _node_plan(
            plan,
            cluster,
            rank,
            addresses[rank],
            resume,
            found,
            node_env[rank] if node_env else {},
        )
        for rank in range(len(cluster.hosts))
    )
    return dataclasses.replace(plan, nodes=nodes)


def _ports(job: Job, run_id: str, attempt: int, found: Found | None) -> tuple[int | str, int | str]:
    """master_port and the supervisors' own port, both on node 0."""
    if found is None:
        return job.master_port, ASKED
    taken = found.used_ports | found.facts[0].listening
    master = job.master_port
    if master == "auto":
        master = free_port(f"{run_id}/{attempt}/master", taken)
    return master, free_port(f"{run_id}/{attempt}/control", taken | {int(master)})


def torchrun_command(plan: Plan, node_rank: int, nnodes: int) -> tuple[str, ...]:
    """The torchrun line of one node. torchrun's own --no-python goes before the `--`."""
    command = plan.command
    flags: tuple[str, ...] = ()
    if command and command[0] in ("--no-python", "--no_python"):
        flags, command = command[:1], command[1:]
    return (
        *("torchrun", "--nnodes", str(nnodes), "--node-rank", str(node_rank)),
        *("--nproc-per-node", str(plan.nproc_per_node or "gpu")),
        *("--master-addr", plan.master_addr, "--master-port", str(plan.master_port)),
        *("--max-restarts", "0", *flags, "--", *command),
    )


def place_of(run_id: str, node_rank: int, attempt: int, home: str) -> Place:
    """`home` is ~/.ddpctl of the host, written out."""
    run_dir = f"{home}/runs/{run_id}"
    return Place(
        node_rank=node_rank,
        attempt=attempt,
        container=container_name(run_id, node_rank),
        run_dir=run_dir,
        control_dir=f"{run_dir}/nodes/{node_rank}/attempt-{attempt}",
    )


def place_in(run_dir: str, run_id: str, node_rank: int, attempt: int) -> Place:
    """The same, from the run's folder on the host."""
    return place_of(run_id, node_rank, attempt, run_dir.removesuffix(f"/runs/{run_id}"))


def container_name(run_id: str, node_rank: int) -> str:
    return f"ddpctl-{run_id}-{node_rank}"


def _node_plan(
    plan: Plan,
    cluster: Cluster,
    rank: int,
    address: str,
    resume: bool,
    found: Found | None,
    own_env: Mapping[str, str],
) -> NodePlan:
    host = cluster.hosts[rank]
    facts = found.facts[rank] if found else None
    interface = host.interface or (facts.interface_of(address) if facts else None)
    home = f"{facts.home}/.ddpctl" if facts and facts.home else HOME
    place = place_of(plan.run_id, rank, plan.attempt, home)
    gpus = _container_gpus(host, facts)
    container = Container(
        name=place.container,
        image=found.images[rank] if found and found.images else cluster.job.image,
        env=_environment(plan, cluster, rank, interface, resume, facts, place.run_dir, home)
        | dict(own_env),
        labels=_labels(plan, rank, cluster.nnodes),
        mounts=_mounts(plan, cluster.job, home, place),
        gpus=gpus,
        user=_user(cluster.job, facts),
        shm_size=cluster.job.shm_size,
        stop_timeout=cluster.job.stop_timeout,
        infiniband=facts.infiniband if facts else False,
    )
    return NodePlan(
        node_rank=rank,
        host=host,
        torchrun=torchrun_command(plan, rank, cluster.nnodes),
        container=container,
        internal_ip=address,
        interface=interface,
        place=place,
    )


def _container_gpus(host: Host, facts: Facts | None) -> str | tuple[int, ...]:
    if host.gpus == "all":
        return "all" if facts is None or facts.gpus else ()
    return tuple(range(host.gpus)) if isinstance(host.gpus, int) else tuple(host.gpus)


def writes_as_another(plan: Plan, facts: Facts) -> bool:
    """Whether the containers' user is neither root nor the one that logs in to the host."""
    users = {node.container.user.split(":")[0] for node in plan.nodes}
    return plan.engine == "docker" and not users <= {str(facts.uid), "0"}


def _user(job: Job, facts: Facts | None) -> str:
    if job.user == "host":
        return f"{facts.uid}:{facts.gid}" if facts else "host"
    return "0:0" if job.user == "root" else job.user


def _labels(plan: Plan, rank: int, nnodes: int) -> dict[str, str]:
    return {
        f"{LABEL}.run-id": plan.run_id,
        f"{LABEL}.attempt": str(plan.attempt),
        f"{LABEL}.node-rank": str(rank),
        f"{LABEL}.nnodes": str(nnodes),
        f"{LABEL}.owner": plan.owner,
        f"{LABEL}.name": plan.name,
        f"{LABEL}.master-port": str(plan.master_port),
    }


def _mounts(plan: Plan, job: Job, home: str, place: Place) -> tuple[Mount, ...]:
    mounts = [Mount(place.control_dir, CONTROL_DIR)]
    if job.dataset:
        digest = plan.dataset_digest or "<digest>"
        mounts.append(Mount(f"{home}/datasets/{digest}", "/data", read_only=True))
    if job.workdir:
        mounts.append(Mount(f"{place.run_dir}/workspace", "/workspace"))
    mounts.append(Mount(f"{place.run_dir}/checkpoints", "/checkpoints"))
    mounts.append(Mount(f"{place.run_dir}/output", "/output"))
    for mount in job.mounts:
        source, target, *mode = mount.split(":")
        mounts.append(Mount(source, target, read_only="ro" in mode))
    return tuple(mounts)


def _environment(
    plan: Plan,
    cluster: Cluster,
    rank: int,
    interface: str | None,
    resume: bool,
    facts: Facts | None,
    run_dir: str,
    home: str,
) -> dict[str, str]:
    """Ours first, so that the user's `env` wins wherever it says something."""
    in_container = plan.engine == "docker"
    env = {
        "DDPCTL_RUN_ID": plan.run_id,
        "DDPCTL_ATTEMPT": str(plan.attempt),
        "DDPCTL_NODE_RANK": str(rank),
        "DDPCTL_NNODES": str(cluster.nnodes),
        "DDPCTL_CHECKPOINT_DIR": "/checkpoints" if in_container else f"{run_dir}/checkpoints",
        "DDPCTL_OUTPUT_DIR": "/output" if in_container else f"{run_dir}/output",
        "DDPCTL_RESUME": "1" if resume else "0",
        "PYTHONUNBUFFERED": "1",
    }
    if cluster.job.dataset:
        digest = plan.dataset_digest or "<digest>"
        env["DDPCTL_DATA_DIR"] = "/data" if in_container else f"{home}/datasets/{digest}"
    if interface:
        env["NCCL_SOCKET_IFNAME"] = env["GLOO_SOCKET_IFNAME"] = interface
    if facts and plan.nproc_per_node:
        sharing = sum(cluster.hosts[rank].machine == other.machine for other in cluster.hosts)
        env["OMP_NUM_THREADS"] = str(max(1, facts.cores // (plan.nproc_per_node * sharing)))
    if in_container and cluster.job.user == "host":
        env |= {"HOME": "/tmp", "USER": facts.user if facts else "host"}
        env["LOGNAME"] = env["USER"]
    if not in_container:
        gpus = _container_gpus(cluster.hosts[rank], facts)
        if gpus != "all" and (gpus or cluster.hosts[rank].gpus == 0):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in gpus)
    return env | dict(cluster.job.env)
