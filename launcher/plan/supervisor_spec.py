"""spec.json: the launcher's instructions for the supervisor of one node. Pure.

On the host, the file has mode 0600 because it contains a secret.
"""

import sys

from ..hosts import Host, Job
from ..supervisor.spec import Spec
from .plan import CONTROL_DIR, NodePlan, Place, Plan

BUNDLE = "supervisor.pyz"  # the supervisor's file in a node's control folder
NO_PYTHON = "set job.python or job.conda to an environment that exists on every host"  # remedy
ISOLATED = ("-I", "-S")  # for python3, as only the ranks use PYTHONPATH and site packages


def supervisor_command(plan: Plan, host: Host, store: str, place: Place) -> tuple[str, ...]:
    """Return the supervisor's command line, with paths in the container if there is one.

    store: the path of ~/.ddpctl on the host.
    """
    folder = CONTROL_DIR if plan.engine.in_container else place.control_dir
    python = "python3" if plan.engine.in_container else python_on(plan.job, host)
    if plan.job.requirements:
        python = f"{store}/venvs/{plan.image_digest or '<digest>'}/bin/python"
    return python, *ISOLATED, f"{folder}/{BUNDLE}", f"{folder}/spec.json"


def python_on(job: Job, host: Host) -> str:
    """Return the Python that `engine: process` uses on a host, in the form find_python.sh expects.

    With job.requirements, this is the Python that creates the environment.
    """
    if job.conda:
        return f"conda:{job.conda}"
    return job.python or (sys.executable if host.is_local else "python3")


def torchrun_command(plan: Plan, node: NodePlan, unknown: str = "") -> list[str]:
    """Return torchrun's command line. unknown: the placeholder for values that depend on the hosts.

    A leading --no-python in the job's command is a flag of torchrun, so it goes before `--`.
    """
    command = plan.command
    own_flags = int(command[:1] in (("--no-python",), ("--no_python",)))
    return [
        *("torchrun", "--nnodes", str(plan.nnodes), "--node-rank", str(node.node_rank)),
        *("--nproc-per-node", str(node.nproc_per_node or "gpu")),
        *("--master-addr", plan.master_addr or unknown),
        *("--master-port", str(plan.master_port or unknown)),
        *("--max-restarts", "0", *plan.job.torchrun_args),
        *(*command[:own_flags], "--", *command[own_flags:]),
    ]


def supervisor_spec(plan: Plan, node: NodePlan, token: str) -> Spec:
    """Return the instructions for a node of a plan whose hosts have been asked.

    token: the secret shared by the supervisors.
    """
    assert node.nproc_per_node and node.first_rank is not None
    assert plan.master_addr and plan.control_port
    names = [other.host.name for other in plan.nodes]
    return Spec(
        run_id=plan.run_id,
        attempt=plan.attempt,
        node_rank=node.node_rank,
        nnodes=plan.nnodes,
        nproc_per_node=node.nproc_per_node,
        first_rank=node.first_rank,
        host=node.host.name,
        hosts=names[:1] if node.node_rank else names,  # other nodes need only node 0
        argv=torchrun_command(plan, node),
        cwd=node.container.working_dir,  # None: the default of the image or launcher
        dir=node.paths.control,
        stop_timeout=plan.job.stop_timeout,
        time_limit=plan.job.time_limit,
        master_addr=plan.master_addr,
        control_port=plan.control_port,
        token=token,
        hang_timeout=plan.options.hang_timeout or None,
        checkpoint_dir=node.paths.checkpoints,
        output_dir=node.paths.output,
        metrics_dir=node.paths.metrics,
        max_restarts=plan.job.max_restarts,
        past_restarts=[(restart.cause, restart.saved) for restart in plan.past_restarts],
        resume_args=plan.job.resume_args if plan.attempt == 1 else [],  # afterwards, argv has them
        notes=[] if node.node_rank else plan.notes,
    )
