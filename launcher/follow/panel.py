"""The live panel of `launch` and `attach`: turns outcomes and metrics into terminal lines.

`launcher.terminal.live` draws them.
"""

import io
import itertools
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..engines.running import RunningNode
from ..engines.status import ContainerState
from ..facts.nvidia import BUSY, IDLE
from ..supervisor.events import GpuLoad, RestartInPlace, Stopping
from ..text import counted, names, printable, ranges
from .monitor import NodeOutcome
from .slow_ranks import slow_nodes
from .trainer_progress import Progress, read_progress

COLORS = {"succeeded": "green", "failed": "bold red"}
COLORS |= dict.fromkeys(("contact", "stopping", "slow:"), "yellow")
LAST_LINE = 300  # maximum characters of a log line; the terminal may cut it further
RECENT_LINES = 50  # lines of each node that are searched for progress
LONGEST = 2000  # bytes of a line that are searched or cleaned
SILENT = 10.0  # seconds without a line after which the panel reports silence
INTERVAL = 3.0  # seconds between two polls of the trainer's progress
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


@dataclass
class Panel:
    """The state of an attempt that is followed. began: unix seconds. outcomes: by node rank."""

    run_id: str
    attempt: int
    began: float
    outcomes: Mapping[int, NodeOutcome]
    progress: Progress | None = None  # None: the script writes no metrics

    def poll_progress(self, member: RunningNode, closed: threading.Event) -> None:
        """Keep `progress` up to date until `closed` is set. Blocks while the host is slow."""
        wait = 0.0
        while not closed.wait(wait):
            try:
                newest = read_progress(member.node, member.place.run_dir, self.attempt, TIMEOUT)
                self.progress, wait = newest or self.progress, INTERVAL
            except Exception:  # the monitor reports lost contact
                wait = BACKOFF

    def lines(self, columns: int, height: int) -> list[str]:
        """Return the panel as at most `height` lines that fit the terminal's width."""
        out = io.StringIO()
        # some terminals wrap a full line, which would break the redraw
        terminal = Console(
            file=out, force_terminal=True, width=max(20, columns - 1), highlight=False, markup=False
        )
        now = time.time()
        which = f"  attempt {self.attempt}" if self.attempt > 1 else ""
        head = f"{self.run_id}{which}  up {clock(now - self.began)}  (Ctrl-\\ leaves it running)"
        terminal.print(Text("─" * terminal.width, style="dim"), no_wrap=True, overflow="crop")
        terminal.print(Text(head, style="bold"), no_wrap=True, overflow="ellipsis")
        terminal.print(Text(self.below(now)), no_wrap=True, overflow="ellipsis")
        table = Table.grid(padding=(0, 2))
        for no_wrap in (True, True, False):  # if space is short, the last column is cut first
            table.add_column(no_wrap=no_wrap)
        room = max(0, height - 3)
        rows = [*(self.rows() if len(self.outcomes) <= room else self.folded())]
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
        """Describe the progress at unix time `now`."""
        return progress_words(self.progress) if self.progress else script_words(self.outcomes, now)

    def rows(self) -> Iterator[Row]:
        """Yield one row per node: the node, its state and its GPUs."""
        states = self.states()
        for rank, outcome in sorted(self.outcomes.items()):
            gpus = outcome.usage.gpus if outcome.usage else ()
            yield f"{rank} {outcome.host}", states[rank], gpu_words(gpus)

    def states(self) -> dict[int, str]:
        """Return the state of each node, or why it is slow."""
        states = {rank: state_of(outcome) for rank, outcome in self.outcomes.items()}
        usages = {rank: outcome.usage for rank, outcome in self.outcomes.items() if outcome.usage}
        for rank, words in slow_nodes(self.progress.slow if self.progress else {}, usages).items():
            if states[rank] == ContainerState.RUNNING:
                states[rank] = words
        return states

    def folded(self) -> Iterator[Row]:
        """Yield one row per group of nodes in the same state, the smallest group first.

        If GPUs elsewhere in the run are busy, nodes with idle GPUs form groups of their own.
        """
        gpus = {n: o.usage.gpus for n, o in self.outcomes.items() if o.usage and o.usage.gpus}
        use = {rank: sum(gpu.use for gpu in own) / len(own) for rank, own in gpus.items()}
        busy = max(use.values(), default=0.0) >= BUSY
        groups: dict[tuple[str, bool], list[int]] = {}
        states = self.states()
        for rank, outcome in sorted(self.outcomes.items()):
            idle = busy and not outcome.done and use.get(rank, BUSY) < IDLE
            groups.setdefault((states[rank], idle), []).append(rank)
        for (state, _), ranks in sorted(groups.items(), key=lambda group: len(group[1])):
            hosts = names(dict.fromkeys(self.outcomes[rank].host for rank in ranks))
            words = gpu_words([gpu for rank in ranks for gpu in gpus.get(rank, ())])
            if len(ranks) == 1:
                yield f"{ranks[0]} {hosts}", state, words
            else:
                yield f"{len(ranks)} nodes", state, f"{words}  {ranges(ranks)} {hosts}".strip()


def state_of(outcome: NodeOutcome) -> str:
    if outcome.done:
        if outcome.succeeded:
            return "succeeded"
        code = outcome.exit_code
        return "failed" if code is None else f"failed ({code})"
    if outcome.lost_since is not None:
        return "contact lost"
    phases = [e for _, e in outcome.events if isinstance(e, Stopping | RestartInPlace)]
    if phases and isinstance(phases[-1], Stopping):
        return "stopping"
    return ContainerState.RUNNING if outcome.events or outcome.tail else "starting"


def progress_words(progress: Progress) -> str:
    """Format progress: `epoch 3/10  step 120/400  loss 1.2345  5120 images/s  eta 0:12:30`."""
    words = [
        progress.brief,
        "" if progress.loss is None else f"loss {progress.loss:.4f}",
        "" if progress.top1 is None else f"top1 {100 * progress.top1:.2f} %",
        "" if progress.img_s is None else f"{progress.img_s:.0f} images/s",
        "" if progress.eta is None else f"eta {clock(progress.eta)}",
    ]
    return "  ".join(filter(None, words))


def script_words(outcomes: Mapping[int, NodeOutcome], now: float) -> str:
    """Describe a script without metrics: its progress or last line, and how long it has been silent.

    The progress, such as `epoch 3/10  step 120/500`, is from the newest lines that contain it.
    """
    recent = [
        (line, outcome.host)
        for outcome in outcomes.values()
        for line in itertools.islice(reversed(outcome.tail), RECENT_LINES)
    ]
    if not recent:
        return "no output yet"
    recent.sort(key=lambda row: row[0].time, reverse=True)
    counts: dict[str, str] = {}
    for line, _ in recent:
        for name, pattern in PROGRESS.items():
            if name not in counts and (matches := pattern.findall(line.text[-LONGEST:])):
                done, total = (number.decode() for number in matches[-1])
                counts[name] = f"{name} {done}/{total}"
    if len(counts) > 1:
        counts.pop("progress", None)
    words = "  ".join(counts[name] for name in PROGRESS if name in counts)
    line, host = recent[0]
    if not words:
        who = host if line.rank is None else f"{host}:{line.rank}"
        text = line.text.rpartition(b"\r")[2] or line.text  # the newest state of a progress bar
        words = f"[{who}] {printable(text[:LONGEST].decode(errors='replace'))[:LAST_LINE].strip()}"
    silent = now - line.time
    return f"no output for {clock(silent)}  {words}" if silent >= SILENT else words


def gpu_words(gpus: Sequence[GpuLoad]) -> str:
    """Format GPU use: `2 GPUs 97 %, 12.5 of 160 GiB`."""
    if not gpus:
        return ""
    words = f"{counted(len(gpus), 'GPU')} {sum(gpu.use for gpu in gpus) / len(gpus):.0f} %"
    used, total = sum(gpu.used for gpu in gpus) / 1024, sum(gpu.total for gpu in gpus) / 1024
    return f"{words}, {used:.{1 if used < 100 else 0}f} of {total:.0f} GiB" if total else words


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
