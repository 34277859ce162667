"""ddpctl ps"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.commands import options

if TYPE_CHECKING:
    from launcher.engine import NodeStatus

HEAD = ["RUN", "ATTEMPT", "NODE", "HOST", "STATE", "EXIT", "OWNER", "SINCE"]


def ps(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Finished runs too, not only those that run.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Runs and their nodes, read from the hosts' own engines, so any machine sees the same.

    Without HOSTS: the hosts of the runs that this machine remembers as not yet over.

    \b
    ddpctl ps hosts.yaml
    ddpctl ps hosts.yaml --all --json
    """
    from launcher.console import table
    from launcher.psview import clusters_to_ask, document, see

    console = options.console(quiet, verbose)
    given = options.hosts_of(hosts, host_list) if hosts or host_list else None
    statuses, failures = see(clusters_to_ask(given, everything=everything), console)
    shown = [s for s in statuses if everything or s.alive]
    if as_json:
        console.json(document(shown, failures))
    elif shown:
        console.print(table([_row(status) for status in shown], HEAD))
    else:
        console.say("no run there" + ("" if everything else " is alive; --all shows finished ones"))
    for error in failures.values():
        console.error(f"cannot see {error}")
    return 4 if failures else 0


def _row(status: NodeStatus) -> list[str]:
    from launcher.record import timestamp

    since = status.ended or status.started
    cells: list[Any] = [
        status.run_id,
        status.attempt,
        f"{status.node_rank}/{status.nnodes}",
        status.host,
        status.state,
        "-" if status.exit_code is None else status.exit_code,
        status.owner,
        timestamp(since)[:19] + "Z" if since else "-",
    ]
    return [str(cell) for cell in cells]
