"""Complete pending stops: those that a host has not confirmed, as run.json lists in pending_stop."""

from collections.abc import Sequence
from dataclasses import replace

from ..outcomes import RunState
from ..runs.run_folder import UnreadableRecord, run_folders
from ..ssh.host_connection import HostConnection
from ..terminal.console import Console
from .choose_runs import HostedRun
from .stop_on_host import Stop
from .stopped_run import stop_all


def finish_pending_stops(connections: Sequence[HostConnection], console: Console) -> None:
    """Complete the stops that are pending on these hosts, according to this machine's records.

    Does not report hosts that do not answer, because the caller does.
    """
    stops = []
    for folder in run_folders():
        if folder.is_settled():
            continue
        try:
            record = folder.load()
        except UnreadableRecord:
            continue  # the command that needs this record reports it
        if here := [
            connection for connection in connections if connection.name in record.pending_stop
        ]:
            may_restart = record.state is RunState.FAILED  # so its tickets must stay
            stop = replace(Stop.of(record), cancel=not may_restart)
            stops.append((HostedRun(folder.run_id, here), stop))
    for stopped in stop_all(stops, console):
        stopped.report(console)
        if stopped.results:  # if no host answered, nothing new is known
            stopped.record_end(console)
