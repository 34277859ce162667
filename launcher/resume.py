"""The `resume` command's work: the next attempt of a run, on the same hosts or on others."""

from __future__ import annotations

from launcher import onexit
from launcher.console import Console
from launcher.errors import UsageError
from launcher.hosts import load
from launcher.launch import Wishes, run_attempt
from launcher.runs import find, look
from launcher.start import connect


def resume(
    target: str | None,
    hosts: str | None,
    console: Console,
    *,
    detach: bool,
    on_exit: str | None = None,
) -> int:
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
    wishes = Wishes(detach=detach, on_exit=on_exit)
    with onexit.at_the_end(folder, console) as ending:
        ending.code = run_attempt(cluster, wishes, console, folder.run_id, earlier=record)
    return ending.code
