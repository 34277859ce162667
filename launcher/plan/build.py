"""Build the plan. Pure: uses no clock, environment variables, disk or network.

A dry run builds the plan without contacting the hosts. Values that depend on them are then None
or absent.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ..facts.facts import Facts
from ..facts.network import Address
from ..hosts import Cluster, Job
from ..supervisor.restart_rule import PastRestart
from . import environment
from .container import (
    IN_CONTAINER,
    METRICS_DIR,
    container_gpus,
    container_mounts,
    container_user,
    with_access,
)
from .labels import container_labels
from .launch_options import LaunchOptions
from .node_address import addresses_in_file, node_addresses, refuse_loopback
from .node_gpus import ids_by_uuid, nproc_on
from .plan import (
    HOME,
    IMAGE_FILE,
    Container,
    EngineTraits,
    JobPaths,
    NodePlan,
    Place,
    Plan,
    place_in,
    run_dir_in,
    total,
)
from .supervisor_spec import supervisor_command
from .topology import free_port


@dataclass(frozen=True)
class PlanInputs:
    """The hosts' facts and the results of the push. Each tuple has one entry per node, by rank."""

    facts: tuple[Facts, ...] = ()
    images: tuple[str, ...] = ()  # digests or ids by which the hosts' engines find the image
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    image_digest: str | None = None
    unreached: frozenset[str] = frozenset()  # addresses that a host could not connect to


def build_plan(
    cluster: Cluster,
    engine: EngineTraits,
    options: LaunchOptions,
    *,
    run_id: str,
    owner: str,
    attempt: int = 1,
    inputs: PlanInputs | None = None,
    env_names: Sequence[str] = (),
    past_restarts: Sequence[PastRestart] = (),
    since: float | None = None,
) -> Plan:
    """Return the plan of one attempt. Every attempt after the first resumes the run.

    inputs: None until the hosts have been asked. env_names: the variables that the user sets, which
    override ddpctl's own. since: see Plan. Raises UsageError if the hosts cannot form one job.
    """
    job, hosts, inputs = cluster.job, cluster.hosts, inputs or PlanInputs()
    addresses = addresses_in_file(hosts)
    if inputs.facts:
        addresses = node_addresses(hosts, inputs.facts, inputs.unreached)
        refuse_loopback(hosts, addresses)
    master_port, control_port = _ports(job, f"{run_id}/{attempt}", inputs)
    facts = inputs.facts or [None] * len(hosts)
    nproc = [nproc_on(host, job, own) for host, own in zip(hosts, facts, strict=True)]
    plan = Plan(
        run_id=run_id,
        attempt=attempt,
        owner=owner,
        engine=engine,
        options=options.settled(job.command),
        nnodes=cluster.nnodes,
        job=dataclasses.replace(job, env={}),
        command=(*job.command, *job.resume_args) if attempt > 1 else job.command,
        master_addr=addresses[0].ip or None,
        master_port=master_port,
        control_port=control_port,
        image_digest=inputs.image_digest,
        dataset_digest=inputs.dataset_digest,
        workdir_digest=inputs.workdir_digest,
        past_restarts=tuple(past_restarts),
        since=since,
    )
    nodes = tuple(
        _node(plan, cluster, inputs, nproc, rank, tuple(env_names), address)
        for rank, address in enumerate(addresses)
    )
    return dataclasses.replace(plan, nodes=nodes)


def _ports(job: Job, seed: str, inputs: PlanInputs) -> tuple[int | None, int | None]:
    """Return the master port and the control port on node 0; None for one not known yet."""
    master = None if job.master_port == "auto" else job.master_port
    if not inputs.facts:
        return master, None
    taken = inputs.facts[0].listening
    master = master or free_port(f"{seed}/master", taken)
    return master, free_port(f"{seed}/control", taken | {master})


def _node(
    plan: Plan,
    cluster: Cluster,
    inputs: PlanInputs,
    nproc: Sequence[int | None],
    rank: int,
    env_names: tuple[str, ...],
    address: Address,
) -> NodePlan:
    """Return the plan of one node. plan: the plan without nodes. nproc: processes of each node."""
    job, host = cluster.job, cluster.hosts[rank]
    facts = inputs.facts[rank] if inputs.facts else None
    store = (facts and facts.folder) or HOME
    place = place_in(run_dir_in(store, plan.run_id), plan.run_id, rank, plan.attempt)
    user = container_user(job, facts)
    on_host = _folders(plan, store, place, user)
    paths = on_host  # where the job sees them
    if plan.engine.in_container:
        paths = dataclasses.replace(IN_CONTAINER, metrics=METRICS_DIR if job.metrics_dir else None)
    gpus = container_gpus(host, facts)
    uuids = ids_by_uuid(host, facts) if facts else {}
    env = {
        **environment.run_variables(plan, rank, paths, facts),
        **environment.network_variables(address, facts, env_names),
        **environment.machine_variables(plan, cluster, inputs.facts, nproc, rank, env_names),
        **environment.gpu_variables(plan.engine, host, gpus, facts),
    }
    env = {name: value for name, value in env.items() if name not in env_names}
    container = Container(
        name=place.container,
        image=_image(plan, store, inputs.images[rank] if inputs.images else None),
        entrypoint=supervisor_command(plan, host, store, place),
        env={name: value for name, value in env.items() if value is not None},
        env_names=env_names,
        env_at_launch=tuple(name for name, value in env.items() if value is None),
        labels=container_labels(plan, host, rank, uuids if facts else None),
        mounts=container_mounts(job, on_host),
        gpus=gpus,
        user=user,
        shm_size=job.shm_size,
        stop_timeout=job.stop_timeout,
        working_dir=paths.workspace if job.workdir else None,
    )
    container = with_access(container, job, facts)
    return NodePlan(
        node_rank=rank,
        host=host,
        nproc_per_node=nproc[rank],
        first_rank=total(nproc[:rank]),
        container=container,
        internal_ip=address.ip or None,
        interface=address.interface or None,
        place=place,
        paths=paths,
        gpu_ids=uuids,
    )


def _folders(plan: Plan, store: str, place: Place, user: str) -> JobPaths:
    """Return the paths of a node's folders on its host. store: ~/.ddpctl there. user: as UID:GID."""
    return JobPaths(
        control=place.control_dir,
        checkpoints=f"{place.run_dir}/checkpoints",
        output=f"{place.run_dir}/output",
        workspace=f"{place.run_dir}/workspace",
        data=f"{store}/datasets/{plan.dataset_digest or '<digest>'}",
        cache=f"{store}/cache/{user.partition(':')[0]}",
        metrics=plan.job.metrics_dir,
    )


def _image(plan: Plan, store: str, in_engine: str | None) -> str:
    """Return the image's file on the host, else its id in the host's engine, else its name."""
    if plan.engine.image_files:
        return f"{store}/images/{plan.image_digest or '<digest>'}/{IMAGE_FILE}"
    return plan.job.image if in_engine is None else in_engine
