"""Create an attempt's nodes on all hosts, start them, and remove them."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..engines.status import NodeStatus
from ..errors import UsageError
from ..plan.supervisor_spec import BUNDLE, supervisor_spec
from ..ssh.host_connection import HostConnection
from ..ssh.many import each_node, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import counted
from .fill_node_folders import fill_folders, supervisor_file
from .planned_attempt import PlannedAttempt

REMOVE = load_script(__file__, "remove_attempt.sh")
UNDO_TIMEOUT = 2.0  # seconds between SIGTERM and SIGKILL; there is no training to lose yet


def create_nodes(
    planned: PlannedAttempt,
    user_env: Mapping[str, str],
    run_json: Mapping[str, Any],
    console: Console,
    *,
    stop_earlier: bool = False,
) -> None:
    """Fill the nodes' folders and then create the nodes on all hosts, which claims their GPUs.

    First removes the nodes of earlier attempts. Raises UsageError if one is running or may start,
    unless `stop_earlier` is set. user_env: the variables that the user sets, which may be secret.
    run_json: the content of the hosts' run.json.
    """
    plan, token = planned.plan, secrets.token_hex(32)
    shared = {BUNDLE: supervisor_file(), "run.json": json.dumps(run_json).encode()}

    def fill(connection: HostConnection) -> None:
        engine, node_plan = planned.engine(connection), planned.node_plans[connection]
        if plan.attempt > 1:  # a container name can be used only once
            earlier = planned.own_nodes(connection)
            if not stop_earlier:
                require_ended(earlier)
            for status in earlier:
                engine.stop(status, plan.job.stop_timeout)
                engine.remove(status)
        spec = json.dumps(asdict(supervisor_spec(plan, node_plan, token))).encode()
        fill_folders(connection, plan, node_plan, {"spec.json": spec, **shared})

    def create(connection: HostConnection) -> None:
        planned.engine(connection).create(planned.node_plans[connection], user_env)

    with console.step(f"creating {counted(plan.nnodes, 'node')}"):
        each_node(planned.connections, fill)
        # only now, because a slow host must not use up the time within which nodes have to start (LEASE)
        each_node(planned.connections, create)


def require_ended(earlier: Sequence[NodeStatus]) -> None:
    """Raise UsageError if a node of an earlier attempt is running or may start.

    Another command has created it since this one looked.
    """
    for status in earlier:
        if status.alive or status.may_start:
            state = "still running" if status.alive else "being started"
            what = f"attempt {status.attempt} of {status.run_id} is {state}"
            remedy = f"follow it with `ddpctl attach {status.run_id}`"
            raise UsageError(what, remedy, host=status.host)


def start_nodes(planned: PlannedAttempt, user_env: Mapping[str, str], console: Console) -> None:
    """Start the nodes that `create_nodes` created. Raises NodesFailed if one does not start."""

    def start(connection: HostConnection) -> None:
        planned.engine(connection).start(planned.node_plans[connection], user_env)

    with console.step(f"starting {counted(planned.plan.nnodes, 'node')}"):
        each_node(planned.connections, start)


def remove_nodes(planned: PlannedAttempt, console: Console, *, folders: bool = False) -> None:
    """Stop and remove the nodes of this attempt. If that fails, `kill` finds them by their labels.

    folders: also delete the attempt's control folders and its copies of the code, as if the attempt
    had never existed.
    """

    def remove(connection: HostConnection) -> None:
        engine = planned.engine(connection)
        for status in planned.own_nodes(connection):
            if status.attempt == planned.plan.attempt:
                engine.stop(status, UNDO_TIMEOUT)
                engine.remove(status)
        if folders:
            place = planned.node_plans[connection].place
            connection.script(REMOVE, place.run_dir, place.control_dir, timeout=120.0)

    with console.step(f"removing {counted(planned.plan.nnodes, 'node')}"):
        try_each(planned.connections, remove)
