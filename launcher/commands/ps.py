"""ddpctl ps"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.commands import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.engines.base import NodeStatus
    from launcher.runs.status import Connected
    from launcher.terminal.console import Console

HEAD = ["RUN", "ATTEMPT", "NODE", "HOST", "STATE", "EXIT", "OWNER", "SINCE"]


def ps(
    hosts: options.Hosts = None,
    host_list: options.HostList = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Finished runs too, not only those that run.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again every --interval; Ctrl-C ends it.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="S", help="Seconds, with --watch.")
    ] = 2.0,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> int:
    """Runs and their nodes, read from the hosts' own engines, so any machine sees the same.

    Without HOSTS: the hosts of the runs that this machine remembers as not yet over.

    \b
    ddpctl ps hosts.yaml
    ddpctl ps hosts.yaml --all --json
    ddpctl ps hosts.yaml --watch
    """
    from launcher.errors import UsageError
    from launcher.runs.status import all_connected, clusters_to_ask, document, see
    from launcher.stop.unconfirmed import finish_unconfirmed

    console = options.console(quiet, verbose)
    if watch and as_json:
        raise UsageError("--watch and --json: one document is no watch; call ps --json repeatedly")
    given = options.hosts_of(hosts, host_list) if hosts or host_list else None
    with all_connected(clusters_to_ask(given, everything=everything)) as clusters:
        if watch:
            return _watch(clusters, console, interval, everything=everything)
        finish_unconfirmed(clusters, console)
        statuses, failures = see(clusters)
    shown = [s for s in statuses if everything or s.alive]
    if as_json:
        console.json(document(shown, failures))
    elif shown:
        console.print(_table(shown))
    else:
        console.say("no run there" + ("" if everything else " is alive; --all shows finished ones"))
    for error in failures.values():
        console.error(f"cannot see {error}")
    return 4 if failures else 0


def _watch(clusters: Connected, console: Console, interval: float, *, everything: bool) -> int:
    """On a terminal the newest table stands in the place of the one before it; elsewhere, and with
    TERM=dumb, each table that differs from the one before it follows it. Ends by Ctrl-C alone."""
    import contextlib
    import time

    from launcher.runs.status import see
    from launcher.stop.unconfirmed import finish_unconfirmed
    from launcher.terminal import live

    words = ""
    display = live.Live(lambda columns, rows: live.fitted(words, columns, rows), share=0.9)
    on_terminal = live.wanted(plain=False, quiet=console.quiet)
    try:
        with console.live(display) if on_terminal else contextlib.nullcontext():
            while True:
                finish_unconfirmed(clusters, console)
                statuses, failures = see(clusters)
                shown = [s for s in statuses if everything or s.alive]
                lines = [
                    _table(shown)
                    if shown
                    else f"no run there is {'known' if everything else 'alive'}"
                ]
                lines += [f"cannot see {error}" for error in failures.values()]
                before, words = words, "\n".join(lines)
                if on_terminal:
                    display.draw()
                elif words != before:
                    console.print(words + "\n")
                time.sleep(interval)
    except KeyboardInterrupt:
        if on_terminal:
            console.print(words)  # the newest table stays
        raise


def _table(statuses: Sequence[NodeStatus]) -> str:
    from launcher.terminal.console import table

    return table([_row(status) for status in statuses], HEAD)


def _row(status: NodeStatus) -> list[str]:
    from launcher.runs.record import timestamp

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
