"""Remove the containers of finished runs, as `kill --all` does after stopping the live ones."""

from collections.abc import Mapping, Sequence

from ..engines.choose import engine_traits, engines_on
from ..errors import CommandFailed, DdpctlError
from ..hosts import Cluster
from ..ssh.host_connection import HostConnection
from ..ssh.local import account_name
from ..ssh.many import ask_each, one_per_account
from ..terminal.console import Console
from ..terminal.host_errors import report_errors
from ..text import counted


def remove_finished(
    connections: Sequence[HostConnection], cluster: Cluster, console: Console
) -> Mapping[str, DdpctlError]:
    """Remove the containers of this user's finished runs, but no folders. Print the count.

    Print and return the errors of the hosts on which some may be left, by host name.
    """
    if not engine_traits(cluster.job.engine).keeps_containers:
        return {}

    def remove(connection: HostConnection) -> set[str]:
        run_ids = set()
        for engine in engines_on(connection, cluster.job.engine):
            for status in engine.nodes() if engine.traits.keeps_containers else ():
                if status.user == account_name() and status.has_ended:
                    engine.remove(status)
                    run_ids.add(status.run_id)
        return run_ids

    with console.step("removing the containers of finished runs"):
        removed, failures = ask_each(one_per_account(connections), remove)
    if run_ids := set().union(*removed.values()):
        count = counted(len(run_ids), "finished run")
        console.say(f"removed the containers of {count}; `ddpctl fetch` can still get their files")
    what = "containers of finished runs may be left"
    errors = {h: CommandFailed(f"{what}: {e.what}", e.remedy) for h, e in failures.items()}
    report_errors(errors, console)
    return errors
