"""The environment variables that ddpctl sets on a node. Pure."""

from collections.abc import Collection, Sequence

from ..facts import rdma
from ..facts.facts import Facts
from ..facts.network import Address
from ..hosts import Cluster, Host
from ..text import ranges
from .plan import EngineTraits, Gpus, JobPaths, Plan
from .topology import rank_cores, same_machine

GPU_ORDER = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
)  # if the user sets one of these, ddpctl cannot tell which GPU a rank uses
STUCK_IN_KERNEL = "1800"  # seconds in state D until torchrun 2.13 gives up on a rank
Variables = dict[str, str | None]  # None: the value depends on a host that has not been asked yet


def run_variables(plan: Plan, rank: int, paths: JobPaths, facts: Facts | None) -> Variables:
    """Return the variables that describe the run, its folders and, with `user: host`, the SSH user."""
    env: Variables = {
        "DDPCTL_RUN_ID": plan.run_id,
        "DDPCTL_ATTEMPT": str(plan.attempt),
        "DDPCTL_NODE_RANK": str(rank),
        "DDPCTL_NNODES": str(plan.nnodes),
        "DDPCTL_CHECKPOINT_DIR": paths.checkpoints,
        "DDPCTL_OUTPUT_DIR": paths.output,
        "DDPCTL_RESUME": "1" if plan.attempt > 1 else "0",
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": STUCK_IN_KERNEL,
    }
    if plan.job.dataset:
        env["DDPCTL_DATA_DIR"] = paths.data
    if plan.engine.in_container:
        env["DDPCTL_CACHE_DIR"] = paths.cache
    if plan.engine.in_container and plan.job.user == "host":
        user = facts.user if facts else None
        env |= {"HOME": "/tmp", "USER": user, "LOGNAME": user}
    return env


def network_variables(
    address: Address, facts: Facts | None, env_names: Collection[str]
) -> Variables:
    """Return the network settings of NCCL and Gloo.

    Omits all settings for RoCE if the user sets one of them.
    """
    env: Variables = {"NCCL_DEBUG": "WARN"}
    if address.interface or not facts:
        interface = address.interface or None
        # without "=", NCCL would also match eth10 when eth1 is meant
        env["NCCL_SOCKET_IFNAME"] = interface and f"={interface}"
        env["GLOO_SOCKET_IFNAME"] = interface
    if facts:
        env |= facts.roce_settings(address.ip, env_names)
    elif rdma.NAMES.isdisjoint(env_names):
        env |= dict.fromkeys(sorted(rdma.NAMES))
    return env


def machine_variables(
    plan: Plan,
    cluster: Cluster,
    facts: Sequence[Facts],
    nproc: Sequence[int | None],
    rank: int,
    env_names: Collection[str],
) -> Variables:
    """Return the variables that depend on the machine: threads, cores and NCCL's host id.

    nproc: the number of processes on each node.
    """
    job, hosts = plan.job, cluster.hosts
    here = same_machine(hosts, facts, rank)
    processes = sum(nproc[node] or 1 for node in here)
    env: Variables = {"OMP_NUM_THREADS": None}
    if facts:
        env["OMP_NUM_THREADS"] = str(max(1, facts[rank].cores // processes))
    if plan.options.network_only and len(here) > 1:  # NCCL then treats each node as a machine
        env["NCCL_HOSTID"] = f"ddpctl-{rank}"
    reorders = not GPU_ORDER.isdisjoint(env_names)
    binds = any(word.replace("_", "-").startswith("--numa") for word in job.torchrun_args)
    if job.numa == "off" or hosts[rank].gpus == 0 or reorders or binds:
        return env
    if not facts:
        return env | {"DDPCTL_RANK_CORES": None}
    nodes = [hosts[node] for node in here], [nproc[node] for node in here]
    if cores := rank_cores(*nodes, facts[rank])[here.index(rank)]:
        env["DDPCTL_RANK_CORES"] = " ".join(map(ranges, cores))
    return env


def gpu_variables(engine: EngineTraits, host: Host, gpus: Gpus, facts: Facts | None) -> Variables:
    """Return the variables that select the node's GPUs.

    Return {} if the node uses `all` or has none, or if the engine hides the other GPUs.
    """
    amd = facts is not None and facts.has_amd_gpus
    if gpus == "all" or not (gpus or host.gpus == 0) or (engine.keeps_containers and not amd):
        return {}
    listed = ",".join(str(gpu) for gpu in gpus)
    if amd:
        return {"ROCR_VISIBLE_DEVICES": listed}
    # CUDA's own order, the fastest model first, is not the order of nvidia-smi's ids
    return {"CUDA_VISIBLE_DEVICES": listed, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
