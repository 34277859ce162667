"""The `resume` command's work: the next attempt of a run, on the same hosts or on others."""

from __future__ import annotations

from launcher.console import Console
from launcher.errors import UsageError
from launcher.hosts import load
from launcher.launch import Wishes, run_attempt
from launcher.runs import find, look
from launcher.start import connect


def resume(target: str | None, hosts: str | None, console: Console, *, detach: bool) -> int:
    """Returns the new attempt's exit code. A run that is still alive is refused."""
    folder = find(target, None)
    record = folder.load()
    cluster = load(hosts or folder.hosts_file)
    nodes = connect(cluster)
    try:
        statuses, _ = look(nodes, cluster, folder.run_id)
    finally:
        for node in nodes:
            node.close()
    if alive := sorted({status.host for status in statuses if status.alive}):
        raise UsageError(
            f"{folder.run_id} still runs on {', '.join(alive)}: `ddpctl attach` follows it, "
            "`ddpctl kill` ends it"
        )
    return run_attempt(cluster, Wishes(detach=detach), console, folder.run_id, earlier=record)
