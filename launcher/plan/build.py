"""Build the plan. Pure: uses no clock, environment variables, disk or network.

A dry run builds the plan without contacting hosts. Values that only hosts know are then ASKED or
None.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..facts import rdma
from ..facts.network import Address
from ..facts.script import Facts
from ..hosts import Cluster, Job
from .network import addresses_in_file, node_addresses, refuse_loopback
from .plan import (
    ASKED,
    CONTROL_DIR,
    HOME,
    LABEL,
    Container,
    EngineTraits,
    JobPaths,
    LaunchOptions,
    Mount,
    NodePlan,
    Plan,
    place_in,
    total,
)
from .supervisor_spec import SUPERVISOR
from .topology import free_port, gpu_ids, ids_by_uuid, nproc_per_node

METRICS_DIR = "/ddpctl-metrics"  # in the container
AMD_DEVICES = ("/dev/kfd", "/dev/dri")
STACK_BYTES = 67108864  # the value that NVIDIA's images recommend
IN_CONTAINER = JobPaths(CONTROL_DIR, "/checkpoints", "/output", "/workspace", "/data")


@dataclass(frozen=True)
class Found:
    """Values known only once hosts were asked and files pushed. Tuples: one entry per node, by rank."""

    facts: tuple[Facts, ...] = ()
    images: tuple[str, ...] = ()  # digest or id, as known to the host's engine
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    image_digest: str | None = None
    used_ports: frozenset[int] = frozenset()  # on node 0: listening, or reserved by another run
    since: float | None = None  # see Plan
    unreached: frozenset[str] = frozenset()  # addresses that a host could not connect to


def make_plan(
    cluster: Cluster,
    engine: EngineTraits,
    options: LaunchOptions,
    *,
    run_id: str,
    owner: str,
    attempt: int = 1,
    found: Found | None = None,
    env_names: Sequence[str] = (),
) -> Plan:
    """Return the plan of one attempt. Every attempt after the first resumes.

    env_names: variables set by the user, which override ddpctl's own. Raises UsageError if the
    hosts cannot run the job together.
    """
    job, found = cluster.job, found or Found()
    addresses: Sequence[Address | None] = addresses_in_file(cluster.hosts)
    if found.facts:
        addresses = chosen = node_addresses(cluster.hosts, found.facts, found.unreached)
        refuse_loopback(cluster.hosts, chosen)
    nproc = nproc_per_node(cluster, found.facts)
    master_port, control_port = _ports(job, f"{run_id}/{attempt}", found)
    plan = Plan(
        run_id=run_id,
        name=options.name,
        attempt=attempt,
        owner=owner,
        engine=engine,
        options=options.settled(job.command),
        master_addr=addresses[0].ip if addresses[0] else cluster.hosts[0].name,
        master_port=master_port,
        control_port=control_port,
        command=(*job.command, *job.resume_args) if attempt > 1 else job.command,
        image=job.image,
        image_digest=found.image_digest,
        dataset=job.dataset,
        dataset_digest=found.dataset_digest,
        workdir=job.workdir,
        workdir_digest=found.workdir_digest,
        stop_timeout=job.stop_timeout,
        time_limit=job.time_limit,
        max_restarts=job.max_restarts,
        since=found.since,
    )
    nodes = tuple(
        _NodeBuilder(plan, cluster, found, nproc, rank, address).build(tuple(env_names))
        for rank, address in enumerate(addresses)
    )
    return dataclasses.replace(plan, nodes=nodes)


def _ports(job: Job, seed: str, found: Found) -> tuple[int | str, int | str]:
    """Return the master port and the supervisors' control port on node 0."""
    master = job.master_port
    if not found.facts:
        return ASKED if master == "auto" else master, ASKED
    taken = found.used_ports | found.facts[0].listening
    if master == "auto":
        master = free_port(f"{seed}/master", taken)
    return master, free_port(f"{seed}/control", taken | {int(master)})


@dataclass
class _NodeBuilder:
    """Builds the plan of one node. `plan` has all fields except the nodes."""

    plan: Plan
    cluster: Cluster
    found: Found
    nproc: Sequence[int | None]
    rank: int
    address: Address | None

    def __post_init__(self) -> None:
        plan, cluster, found, rank = self.plan, self.cluster, self.found, self.rank
        self.host, self.job = cluster.hosts[rank], cluster.job
        self.facts = found.facts[rank] if found.facts else None
        home = (self.facts and self.facts.folder) or HOME
        run_dir = f"{home}/runs/{plan.run_id}"
        self.place = place_in(run_dir, plan.run_id, rank, plan.attempt)
        self.folders = JobPaths(
            control=self.place.control_dir,
            checkpoints=f"{run_dir}/checkpoints",
            output=f"{run_dir}/output",
            workspace=f"{run_dir}/workspace",
            data=f"{home}/datasets/{plan.dataset_digest or '<digest>'}",
        )
        job, in_container = self.job, plan.engine.in_container
        own = IN_CONTAINER if in_container else self.folders
        self.paths = dataclasses.replace(  # a Job made in Python may set these variables
            own,
            checkpoints=job.env.get("DDPCTL_CHECKPOINT_DIR", own.checkpoints),
            output=job.env.get("DDPCTL_OUTPUT_DIR", own.output),
            metrics=METRICS_DIR if job.metrics_dir and in_container else job.metrics_dir,
        )
        self.ip = self.address.ip if self.address else self.host.name
        self.interface = self.host.interface or (ASKED if not self.facts else None)
        if self.address and self.address.interface:
            self.interface = self.address.interface
        self.gpu_ids = ids_by_uuid(self.host, self.facts) if self.facts else {}
        by_id = self.host.gpus != "all"
        if self.facts and not by_id:  # an engine's `all` is wrong for integrated or no GPUs
            by_id = not self.facts.gpus or any(gpu.integrated for gpu in self.facts.gpus)
        self.gpus = gpu_ids(self.host, self.facts) if by_id else "all"

    def build(self, env_names: tuple[str, ...]) -> NodePlan:
        return NodePlan(
            node_rank=self.rank,
            host=self.host,
            nproc_per_node=self.nproc[self.rank],
            first_rank=total(self.nproc[: self.rank]),
            torchrun=self._torchrun_command(),
            container=self._container(env_names),
            internal_ip=self.ip,
            interface=self.interface,
            place=self.place,
            paths=self.paths,
            gpu_ids=self.gpu_ids,
        )

    def _torchrun_command(self) -> tuple[str, ...]:
        """Return torchrun's command line. A leading --no-python is torchrun's: it goes before `--`."""
        plan, command = self.plan, self.plan.command
        own_flags = int(command[:1] in (("--no-python",), ("--no_python",)))
        return (
            *("torchrun", "--nnodes", str(self.cluster.nnodes), "--node-rank", str(self.rank)),
            *("--nproc-per-node", str(self.nproc[self.rank] or "gpu")),
            *("--master-addr", plan.master_addr, "--master-port", str(plan.master_port)),
            *("--max-restarts", "0", *command[:own_flags], "--", *command[own_flags:]),
        )

    def _container(self, env_names: tuple[str, ...]) -> Container:
        env = self._environment()
        if self.facts:
            env |= self.facts.roce_settings(self.ip, env_names)
        elif rdma.NAMES.isdisjoint(env_names):
            env |= dict.fromkeys(sorted(rdma.NAMES), ASKED)
        return container_of(
            self.job,
            self.gpus,
            self.facts,
            name=self.place.container,
            image=self.found.images[self.rank] if self.found.images else self.job.image,
            entrypoint=SUPERVISOR,
            env={name: value for name, value in env.items() if name not in env_names},
            env_names=env_names,
            labels=self._labels(),
            mounts=self._mounts(),
            stop_timeout=self.job.stop_timeout,
            working_dir=self.paths.workspace if self.job.workdir else None,
        )

    def _environment(self) -> dict[str, str]:
        plan, in_container = self.plan, self.plan.engine.in_container
        env = {
            "DDPCTL_RUN_ID": plan.run_id,
            "DDPCTL_ATTEMPT": str(plan.attempt),
            "DDPCTL_NODE_RANK": str(self.rank),
            "DDPCTL_NNODES": str(self.cluster.nnodes),
            "DDPCTL_CHECKPOINT_DIR": self.paths.checkpoints,
            "DDPCTL_OUTPUT_DIR": self.paths.output,
            "DDPCTL_RESUME": "1" if plan.attempt > 1 else "0",
            "PYTHONUNBUFFERED": "1",
            "NCCL_DEBUG": "WARN",
        }
        if self.job.dataset:
            env["DDPCTL_DATA_DIR"] = self.paths.data
        if self.interface:
            env["GLOO_SOCKET_IFNAME"] = self.interface
            env["NCCL_SOCKET_IFNAME"] = self.interface
            if self.interface != ASKED:
                env["NCCL_SOCKET_IFNAME"] = f"={self.interface}"  # "eth1" would also mean eth10
        here = self._processes_here()
        threads = str(max(1, self.facts.cores // sum(here))) if self.facts else ASKED
        env["OMP_NUM_THREADS"] = threads
        if plan.options.network_only and len(here) > 1:  # make NCCL treat each node as a machine
            env["NCCL_HOSTID"] = f"ddpctl-{self.rank}"
        if in_container and self.job.user == "host":
            env |= {"HOME": "/tmp", "USER": self.facts.user if self.facts else "host"}
            env["LOGNAME"] = env["USER"]
        chosen = self.gpus != "all" and (self.gpus or self.host.gpus == 0)
        amd = self.facts is not None and self.facts.has_amd_gpus
        if chosen and (amd or not in_container):  # Docker itself hides the other NVIDIA GPUs
            name = "ROCR_VISIBLE_DEVICES" if amd else "CUDA_VISIBLE_DEVICES"
            env[name] = ",".join(str(gpu) for gpu in self.gpus)
        return env

    def _processes_here(self) -> list[int]:
        """Return the number of processes (1 if unknown) of each node on this node's machine.

        Hosts with the same boot id are one machine, whatever their names.
        """
        boot_ids = [facts.boot_id for facts in self.found.facts] or [""] * self.cluster.nnodes
        return [
            count or 1
            for host, count, boot_id in zip(self.cluster.hosts, self.nproc, boot_ids, strict=True)
            if host.machine == self.host.machine or boot_id == boot_ids[self.rank] != ""
        ]

    def _labels(self) -> dict[str, str]:
        values = {
            "run-id": self.plan.run_id,
            "attempt": self.plan.attempt,
            "node-rank": self.rank,
            "nnodes": self.cluster.nnodes,
            "owner": self.plan.owner,
            "name": self.plan.name,
            "master-port": self.plan.master_port,
            "gpus": ",".join(self.gpu_ids) if self.facts else ASKED,
            "since": f"{self.plan.key[0]:.3f}" if self.facts else ASKED,
        }
        return {f"{LABEL}.{key}": str(value) for key, value in values.items()}

    def _mounts(self) -> tuple[Mount, ...]:
        own = self.folders
        mounts = [Mount(own.control, IN_CONTAINER.control)]
        if self.job.dataset:
            mounts.append(Mount(own.data, IN_CONTAINER.data, read_only=True))
        if self.job.workdir:
            mounts.append(Mount(own.workspace, IN_CONTAINER.workspace))
        mounts.append(Mount(own.checkpoints, IN_CONTAINER.checkpoints))
        mounts.append(Mount(own.output, IN_CONTAINER.output))
        for mount in self.job.mounts:
            source, target, *mode = mount.split(":")
            mounts.append(Mount(source, target, read_only="ro" in mode, from_job=True))
        if self.job.metrics_dir:
            mounts.append(Mount(self.job.metrics_dir, METRICS_DIR, from_job=True))
        return tuple(mounts)


def container_of(
    job: Job, gpus: str | tuple[int, ...], facts: Facts | None, **own: Any
) -> Container:
    """Return a container with access to what the job needs on its host.

    That is: GPUs, what NCCL needs (pinned memory, InfiniBand), and what the job adds. The job's
    limits override ddpctl's. facts: None if the host was not asked. own: the container's other
    fields.
    """
    user = "0:0" if job.user == "root" else job.user
    if job.user == "host" and facts:
        user = f"{facts.uid}:{facts.gid}"
    infiniband = facts.infiniband if facts else None
    amd = bool(gpus) and facts is not None and facts.has_amd_gpus
    limits = {"memlock": -1, "stack": STACK_BYTES} if gpus or infiniband else {}
    asked = (ASKED,) if infiniband is None else ()
    capabilities = asked or (("IPC_LOCK",) if infiniband else ())
    devices = asked or (
        *(("/dev/infiniband",) if infiniband else ()),
        *(AMD_DEVICES if amd else ()),
    )
    return Container(
        gpus=gpus,
        gpu_vendor="amd" if amd else "nvidia",
        user=user,
        group_add=facts.gpu_groups if amd and facts else (),
        shm_size=job.shm_size,
        tmpfs=job.tmpfs,
        ulimits={**limits, **job.ulimits},
        cap_add=tuple(dict.fromkeys((*capabilities, *job.cap_add))),
        devices=tuple(dict.fromkeys((*devices, *job.devices))),
        **own,
    )


def writes_as_another_user(plan: Plan, node: NodePlan, uid: int) -> bool:
    """Return whether there is a container whose user is neither root nor `uid`, the SSH user."""
    user = node.container.user.split(":")[0]
    return plan.engine.in_container and user not in (str(uid), "0")
