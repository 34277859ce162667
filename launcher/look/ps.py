"""The `ps` command: ask the hosts for their runs and GPUs, and print tables, once or repeatedly."""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import HostsFileError, NodesFailed
from ..hosts import Cluster, load
from ..outcomes import Exit
from ..own_folders import read_record
from ..runs.find import hosts_to_ask
from ..runs.record import timestamp
from ..runs.run_folder import run_folders
from ..ssh.host_connection import connected
from ..stop.pending_stops import finish_pending_stops
from ..terminal import live
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..terminal.table import table
from ..text import counted, names
from .ps_gpus import GPU_HEAD, document, folded, summary
from .ps_runs import Connected, Listing, list_runs, recorded_runs

RUN_HEAD = ["RUN", "STATE", "ATTEMPT", "NODES", "OWNER", "SINCE", "PROGRESS", "HOSTS"]
NODE_HEAD = ["RUN", "ATTEMPT", "NODE", "HOST", "STATE", "EXIT", "OWNER", "SINCE"]
DROPPED = ("ATTEMPT", "OWNER", "SINCE", "NODES", "EXIT", "MEMORY")  # least important first
DEFAULT_HOSTS = Path("hosts.yaml")


@dataclass(frozen=True)
class Selection:
    """Which runs `ps` shows, and how."""

    hosts: str | Sequence[str] | None  # a hosts file or a list of hosts; None: see `clusters_of`
    finished: bool  # whether to include finished runs
    per_node: bool  # whether to print a row per node, not per run


def show_runs(selection: Selection, console: Console, *, as_json: bool) -> Exit:
    """Print the tables. Return UNREACHABLE if a host did not answer."""
    clusters = clusters_of(selection, console)
    hosts = counted(len({host.machine for each in clusters for host in each.hosts}), "host")
    slow = selection.per_node or as_json
    with connected_to(clusters) as connections, console.step(f"asking {hosts}"):
        listing = finish_stops_and_list(connections, selection, console, slow=slow)
    report_errors(listing.failures, console)
    if as_json:
        console.json(
            {
                "version": 1,
                "runs": [run.document() for run in listing.runs],
                "unseen": unseen(listing.failures),
                "gpus": document(listing.gpus),
            }
        )
    else:
        if words := remark(listing, selection):
            console.say(words)
        columns = shutil.get_terminal_size().columns if console.on_terminal else math.inf
        if texts := tables(listing, selection, columns + 1):
            console.print("\n\n".join(texts))
    return Exit.UNREACHABLE if listing.failures else Exit.DONE


def clusters_of(selection: Selection, console: Console) -> list[Cluster]:
    """Return the clusters to ask: the one that the user named or, by default, several.

    The default is the clusters of ./hosts.yaml and of the live runs that are recorded on this
    machine; with `finished`, of all runs recorded on it. Warns about each unreadable file or record.
    """
    if selection.hosts is not None:
        return [hosts_to_ask(selection.hosts, console)]
    kept: dict[str, Path] = {}  # by text, because thousands of runs may have the same hosts file
    for folder in run_folders():
        has_ended = folder.is_settled()
        if not has_ended and (record := folder.load_if_readable(console)):
            has_ended = record.state.is_final
        if selection.finished or not has_ended:
            file = folder.hosts_file
            try:
                kept[read_record(file)] = file
            except (OSError, ValueError):
                kept[str(file)] = file  # `load` reports it
    files = [*([DEFAULT_HOSTS] if DEFAULT_HOSTS.exists() else []), *kept.values()]
    clusters: dict[object, Cluster] = {}
    for file in files:
        try:
            cluster = load(file, job_files=False)
        except HostsFileError as error:
            console.say(f"warning: {error}")
            continue
        accounts = frozenset(host.account for host in cluster.hosts)
        clusters.setdefault((accounts, cluster.job.engine), cluster)
    return list(clusters.values())


@contextlib.contextmanager
def connected_to(clusters: Sequence[Cluster]) -> Iterator[Connected]:
    with contextlib.ExitStack() as stack:
        yield [(each, stack.enter_context(connected(each.hosts))) for each in clusters]


def finish_stops_and_list(
    clusters: Connected, selection: Selection, console: Console, *, slow: bool
) -> Listing:
    """Finish stops that were not confirmed, then return the runs. slow: see `list_runs`.

    Includes runs that are only known from this machine's record.
    """
    for _, connections in clusters:
        finish_pending_stops(connections, console)
    listing = list_runs(clusters, finished=selection.finished, slow=slow)
    return dataclasses.replace(listing, runs=[*listing.runs, *recorded_runs(listing, console)])


def tables(listing: Listing, selection: Selection, columns: float = math.inf) -> list[str]:
    """Return the tables of runs and of GPUs, except empty ones. columns: see `fitting`."""
    texts = []
    if listing.runs and selection.per_node:
        rows = [row for run in listing.runs for row in run.node_rows()]
        texts.append(fitting(rows, NODE_HEAD, columns))
    elif listing.runs:
        texts.append(fitting([run.row() for run in listing.runs], RUN_HEAD, columns))
    if listing.gpus:
        gpus = fitting([*folded(listing.gpus)], GPU_HEAD, columns)
        texts.append(f"{summary(listing.gpus)}\n{gpus}")
    return texts


def remark(listing: Listing, selection: Selection) -> str:
    """Return the message that no run was found, or that no host of a shown run answers; or ""."""
    if unseen_runs := [run.run_id for run in listing.runs if run.recorded]:
        they, rows = ("it", "row is") if len(unseen_runs) == 1 else ("they", "rows are")
        return (
            f"no host of {', '.join(unseen_runs)} answers, so {they} may still be running; "
            f"the {rows} from this machine's record"
        )
    if listing.runs:
        return ""
    if not listing.hosts:
        runs = "runs" if selection.finished else "live runs"
        return (
            f"found no hosts to ask, neither in ./hosts.yaml nor in this machine's records of {runs}; "
            "to ask the hosts of a hosts file, run `ddpctl ps HOSTS`"
        )
    answered = [host for host in listing.hosts if host not in listing.failures]
    if not answered:
        return ""  # nothing is known
    if selection.finished:
        return f"no run on {names(answered)}"
    return f"no live run on {names(answered)}; --all shows finished runs too"


def fitting(rows: Sequence[Sequence[str]], head: Sequence[str], columns: float) -> str:
    """Return a table without its least important columns, so that it is narrower than `columns`."""
    text = table(rows, head)
    for name in DROPPED:
        if name in head and max(map(len, text.splitlines())) >= columns:
            at = head.index(name)
            head, *rows = ([*row[:at], *row[at + 1 :]] for row in (head, *rows))
            text = table(rows, head)
    return text


def watch_runs(selection: Selection, console: Console, interval: float) -> Exit:
    """Show tables, and ask the hosts again every `interval` seconds.

    Redraw the tables on a terminal; elsewhere, print them whenever they have changed. Return after
    Ctrl-C or when nobody reads stdout anymore.
    """
    text = ""
    listing: Listing | None = None

    def shown(columns: float = math.inf) -> str:
        if listing is None:
            return ""
        parts = [str(NodesFailed(listing.failures))] if listing.failures else []
        parts.append(remark(listing, selection))
        return "\n\n".join(filter(None, [*parts, *tables(listing, selection, columns)]))

    def render(columns: int, rows: int) -> list[str]:
        return live.fitted(f"{timestamp()[:19]}Z\n{shown(columns)}", columns, rows)

    try:
        with (
            connected_to(clusters_of(selection, console)) as clusters,
            console.live(live.Live(render, share=0.9)) as redrawn,
        ):
            while not console.reader_left:
                listing = finish_stops_and_list(
                    clusters, selection, console, slow=selection.per_node
                )
                before, text = text, shown()
                if redrawn:
                    console.flush()
                elif text != before:
                    console.print(text + "\n")
                time.sleep(interval)
            return Exit.DONE
    except KeyboardInterrupt:
        if console.shows_live:
            console.print(text)  # keep the newest table on the screen
        return Exit.INTERRUPTED
