"""The live panel of `launch` and `attach`: the lines that show the nodes and the progress.

`launcher.terminal.live` draws the lines.
"""

import contextlib
import io
import itertools
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import rich.console
from rich.table import Table
from rich.text import Text

from ..engines.node_handle import NodeHandle
from ..engines.status import ContainerState
from ..logs.log_entry import render
from ..runs.record import RunRecord, parse_timestamp
from ..supervisor.events import GpuLoad, RestartInPlace, Stopping
from ..terminal.console import Console
from ..terminal.live import Live
from ..terminal.sanitize import visible
from ..text import counted, names, printable, ranges
from .followed_node import FollowedNode
from .slow_ranks import slow_nodes
from .trainer_progress import Progress, read_progress

COLORS = {"succeeded": "green", "failed": "bold red"}
COLORS |= dict.fromkeys(("contact", "stopping", "slow:"), "yellow")
LAST_LINE = 300  # maximum characters of a log line; the terminal may cut it further
RECENT_LINES = 50  # how many of each node's last lines are searched for progress
LONGEST = 2000  # how many bytes of a line are searched or cleaned
SILENT = 10.0  # seconds without a line after which the panel reports silence
INTERVAL = 3.0  # seconds between polls of the trainer's progress
TIMEOUT = 10.0  # seconds for a host to answer
BACKOFF = 60.0  # seconds until a host that did not answer is polled again
PROGRESS = {
    "epoch": re.compile(rb"\bepoch\W{0,3}(\d{1,9}) ?/ ?(\d{1,9})\b", re.IGNORECASE),
    "step": re.compile(
        rb"\b(?:step|iter|iteration)\W{0,3}(\d{1,9}) ?/ ?(\d{1,9})\b", re.IGNORECASE
    ),
    "progress": re.compile(rb"%\|[^|\r]{0,200}\| (\d{1,9})/(\d{1,9}) \["),  # tqdm's format
}

Row = tuple[str, str, str]


@contextlib.contextmanager
def live_panel(
    record: RunRecord, first: NodeHandle, nodes: Mapping[int, FollowedNode], console: Console
) -> Iterator[None]:
    """Context manager: show nodes and progress below the log lines on a terminal. first: node 0."""
    attempt = record.attempt
    began = parse_timestamp(attempt.started) or time.time()
    panel = Panel(record.run_id, attempt.number, began, nodes)
    closed = threading.Event()
    with console.live(Live(panel.lines)) as shown:
        if shown:
            threading.Thread(target=panel.poll_progress, args=(first, closed), daemon=True).start()
        try:
            yield
        finally:
            closed.set()


@dataclass
class Panel:
    """The contents of the panel for one attempt. began: unix seconds. nodes: by node rank."""

    run_id: str
    attempt: int
    began: float
    nodes: Mapping[int, FollowedNode]
    progress: Progress | None = None  # None: the script writes no metrics

    def poll_progress(self, member: NodeHandle, closed: threading.Event) -> None:
        """Update `progress` until `closed` is set. member: node 0. Blocks if its host is slow."""
        wait = 0.0
        while not closed.wait(wait):
            try:
                newest = read_progress(
                    member.connection, member.place.run_dir, self.attempt, TIMEOUT
                )
                self.progress, wait = newest or self.progress, INTERVAL
            except Exception:  # the monitor reports a lost contact
                wait = BACKOFF

    def lines(self, columns: int, height: int) -> list[str]:
        """Return the panel as at most `height` lines, each narrower than `columns`."""
        out = io.StringIO()
        # some terminals wrap a full line, which would break the redraw
        terminal = rich.console.Console(file=out, force_terminal=True, width=max(20, columns - 1))
        now = time.time()
        which = f"  attempt {self.attempt}" if self.attempt > 1 else ""
        head = f"{self.run_id}{which}  up {clock(now - self.began)}  (Ctrl-\\ leaves it running)"
        for text, style in (("─" * terminal.width, "dim"), (head, "bold"), (self.below(now), "")):
            terminal.print(Text(text, style), no_wrap=True, overflow="ellipsis")
        table = Table.grid(padding=(0, 2))
        for no_wrap in (True, True, False):  # if space is short, the last column is cut first
            table.add_column(no_wrap=no_wrap)
        room = max(0, height - 3)
        rows = [*self.rows(folded=len(self.nodes) > room)]
        shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
        for node, state, gpus in shown:
            cells = Text(node), Text(state, COLORS.get(state.split()[0], "")), Text(gpus)
            for cell in cells:
                cell.no_wrap, cell.overflow = True, "ellipsis"
            table.add_row(*cells)
        if shown:
            terminal.print(table)
        if hidden := len(rows) - len(shown):
            terminal.print(Text(f"and {hidden} more", style="dim"))
        return out.getvalue().split("\n")[:-1]

    def below(self, now: float) -> str:
        """Return the line below the head: the progress at the unix time `now`."""
        return progress_words(self.progress) if self.progress else script_words(self.nodes, now)

    def states(self) -> dict[int, str]:
        """Return the state of each node, or why it is slow."""
        states = {node_rank: state_of(node) for node_rank, node in self.nodes.items()}
        usages = {node_rank: node.usage for node_rank, node in self.nodes.items() if node.usage}
        ratios = self.progress.slow if self.progress else {}
        for node_rank, words in slow_nodes(ratios, usages).items():
            if states[node_rank] == ContainerState.RUNNING:
                states[node_rank] = words
        return states

    def rows(self, *, folded: bool) -> Iterator[Row]:
        """Yield one row per node: the node, its state and its GPUs.

        folded: yield one row per group of nodes in the same state, the smallest group first.
        """
        groups: dict[object, list[FollowedNode]] = {}
        states = self.states()
        for node_rank, node in sorted(self.nodes.items()):
            groups.setdefault(states[node_rank] if folded else node_rank, []).append(node)
        for nodes in sorted(groups.values(), key=len):
            node_ranks = [node.node_rank for node in nodes]
            hosts = names(dict.fromkeys(node.host for node in nodes))
            words = gpu_words([gpu for node in nodes if node.usage for gpu in node.usage.gpus])
            state = states[node_ranks[0]]
            if len(nodes) == 1:
                yield f"{node_ranks[0]} {hosts}", state, words
            else:
                where = f"{ranges(node_ranks)} {hosts}"
                yield f"{len(nodes)} nodes", state, f"{words}  {where}".strip()


def state_of(node: FollowedNode) -> str:
    if node.done:
        code = "" if node.exit_code is None else f" ({node.exit_code})"
        return "succeeded" if node.succeeded else f"{node.end_state.lower()}{code}"
    if node.contact.lost:
        return "contact lost"
    phases = [e for _, e in node.events if isinstance(e, Stopping | RestartInPlace)]
    if phases and isinstance(phases[-1], Stopping):
        return "stopping"
    return ContainerState.RUNNING if node.events or node.newest_lines else "starting"


def progress_words(progress: Progress) -> str:
    """Format progress: `epoch 3/10  step 120/400  loss 1.2345  5120 images/s  eta 0:12:30`."""
    words = [
        progress.brief,
        "" if progress.loss is None else f"loss {progress.loss:.4f}",
        "" if progress.top1 is None else f"top1 {100 * progress.top1:.2f}%",
        "" if progress.img_s is None else f"{progress.img_s:.0f} images/s",
        "" if progress.eta is None else f"eta {clock(progress.eta)}",
    ]
    return "  ".join(filter(None, words))


def script_words(nodes: Mapping[int, FollowedNode], now: float) -> str:
    """Describe a script without metrics: its progress or last line, and how long it has been silent.

    The progress, such as `epoch 3/10  step 120/500`, comes from the newest lines that mention it.
    """
    recent = [  # with the times by this machine's clock
        (entry.time - node.clock_skew, entry)
        for node in nodes.values()
        for entry in itertools.islice(reversed(node.newest_lines), RECENT_LINES)
    ]
    if not recent:
        return "no output yet"
    recent.sort(key=lambda each: each[0], reverse=True)
    counts: dict[str, str] = {}
    for _, entry in recent:
        for name, pattern in PROGRESS.items():
            if name not in counts and (matches := pattern.findall(entry.lines[-1][-LONGEST:])):
                done, total = (number.decode() for number in matches[-1])
                counts[name] = f"{name} {done}/{total}"
    if len(counts) > 1:
        counts.pop("progress", None)
    words = "  ".join(counts[name] for name in PROGRESS if name in counts)
    written, newest = recent[0]
    if not words:
        line = render([visible(newest)])[:LONGEST].decode(errors="replace")
        words = printable(line)[:LAST_LINE].strip()
    silent = now - written
    return f"no output for {clock(silent)}  {words}" if silent >= SILENT else words


def gpu_words(gpus: Sequence[GpuLoad]) -> str:
    """Format GPU use: `2 GPUs 97%, 12.5 of 160 GiB`."""
    if not gpus:
        return ""
    words = f"{counted(len(gpus), 'GPU')} {sum(gpu.use for gpu in gpus) / len(gpus):.0f}%"
    used, total = sum(gpu.used for gpu in gpus) / 1024, sum(gpu.total for gpu in gpus) / 1024
    return f"{words}, {used:.{1 if used < 100 else 0}f} of {total:.0f} GiB" if total else words


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
