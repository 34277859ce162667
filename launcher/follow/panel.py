"""The live panel of `launch` and `attach`: turns outcomes and metrics into terminal lines.

`launcher.terminal.live` draws them.
"""

from __future__ import annotations

import io
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..hosts.fold import names, ranges
from ..supervisor.events import Gpu, Stopping
from .monitor import NodeOutcome
from .progress import Progress

COLOURS = {"succeeded": "green", "failed": "bold red", "contact": "yellow", "stopping": "yellow"}
LAST_LINE = 300  # maximum characters of a log line; the terminal may cut it further
RECENT_LINES = 50  # lines of each node that are searched for progress
LONGEST = 2000  # bytes of a line that are searched
SILENT = 10.0  # seconds without a line after which the panel reports silence
PROGRESS = {
    "epoch": re.compile(rb"\bepoch\W{0,3}(\d{1,9}) ?/ ?(\d{1,9})\b", re.IGNORECASE),
    "step": re.compile(
        rb"\b(?:step|iter|iteration)\W{0,3}(\d{1,9}) ?/ ?(\d{1,9})\b", re.IGNORECASE
    ),
    "progress": re.compile(rb"%\|[^|\r]{0,200}\| (\d{1,9})/(\d{1,9}) \["),  # tqdm's format
}


Row = tuple[str, str, str]
IDLE, BUSY = 5, 50  # percent: a node's GPUs are idle below IDLE while another node's are above BUSY


@dataclass(frozen=True)
class View:
    """The contents of the panel. head: the run. below: its progress. rows: node, state and GPUs.

    folded: replaces `rows` if they do not fit; one row for all nodes that are alike.
    """

    head: str
    below: str
    rows: tuple[Row, ...]
    folded: tuple[Row, ...]


def view(
    run_id: str,
    attempt: int,
    outcomes: Mapping[int, NodeOutcome],
    progress: Progress | None,
    uptime: float,
    now: float = 0.0,  # unix seconds
) -> View:
    which = f"  attempt {attempt}" if attempt > 1 else ""
    return View(
        head=f"{run_id}{which}  up {clock(uptime)}",
        below=progress_words(progress) if progress else script_words(outcomes, now),
        rows=tuple(
            (
                f"{rank} {outcome.host}",
                state_of(outcome),
                gpu_words(outcome.usage.gpus) if outcome.usage else "",
            )
            for rank, outcome in sorted(outcomes.items())
        ),
        folded=tuple(folded(outcomes)),
    )


def folded(outcomes: Mapping[int, NodeOutcome]) -> Iterator[Row]:
    """Yield one row per state, with nodes whose GPUs are idle apart; the smallest group first."""
    gpus = {rank: o.usage.gpus for rank, o in outcomes.items() if o.usage and o.usage.gpus}
    use = {rank: sum(gpu.use for gpu in found) / len(found) for rank, found in gpus.items()}
    busy = max(use.values(), default=0.0) >= BUSY
    groups: dict[tuple[str, bool], list[int]] = {}
    for rank, outcome in sorted(outcomes.items()):
        idle = busy and not outcome.done and use.get(rank, BUSY) < IDLE
        groups.setdefault((state_of(outcome), idle), []).append(rank)
    for (state, _), ranks in sorted(groups.items(), key=lambda group: len(group[1])):
        where = f"{ranges(ranks)} {names(dict.fromkeys(outcomes[rank].host for rank in ranks))}"
        words = gpu_words([gpu for rank in ranks for gpu in gpus.get(rank, ())])
        if len(ranks) == 1:
            yield where, state, words
        else:
            yield f"{len(ranks)} nodes", state, f"{words}  {where}".strip()


def state_of(outcome: NodeOutcome) -> str:
    if outcome.done:
        if outcome.succeeded:
            return "succeeded"
        code = outcome.exit_code
        return "failed" if code is None else f"failed ({code})"
    if outcome.lost_since is not None:
        return "contact lost"
    if any(isinstance(event, Stopping) for _, event in outcome.events):
        return "stopping"
    return "running" if outcome.events or outcome.tail else "starting"


def progress_words(progress: Progress) -> str:
    """Format progress: `epoch 3/10  step 120/400  loss 1.2345  5120 images/s  eta 0:12:30`."""
    words = [progress.brief] if progress.brief else []
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.4f}")
    if progress.top1 is not None:
        words.append(f"top1 {100 * progress.top1:.2f} %")
    if progress.img_s is not None:
        words.append(f"{progress.img_s:.0f} images/s")
    if progress.eta is not None:
        words.append(f"eta {clock(progress.eta)}")
    return "  ".join(words)


def script_words(outcomes: Mapping[int, NodeOutcome], now: float) -> str:
    """Describe a script without metrics: its progress or last line, and how long it has been silent."""
    newest = [outcome.tail[-1].time for outcome in outcomes.values() if outcome.tail]
    silent = now - max(newest, default=now)
    words = script_progress(outcomes) or last_line(outcomes)
    return f"no output for {clock(silent)}  {words}" if silent >= SILENT else words


def script_progress(outcomes: Mapping[int, NodeOutcome]) -> str:
    """Return `epoch 3/10  step 120/500` from the newest lines that contain it, or ""."""
    recent = [
        line
        for outcome in outcomes.values()
        for line in itertools.islice(reversed(outcome.tail), RECENT_LINES)
    ]
    found: dict[str, str] = {}
    for line in sorted(recent, key=lambda line: line.time, reverse=True):
        for name, pattern in PROGRESS.items():
            if name not in found and (matches := pattern.findall(line.text[-LONGEST:])):
                done, total = (number.decode() for number in matches[-1])
                found[name] = f"{name} {done}/{total}"
    return "  ".join(found[name] for name in ("epoch", "step") if name in found) or found.get(
        "progress", ""
    )


def last_line(outcomes: Mapping[int, NodeOutcome]) -> str:
    """Return the newest line of any rank, which shows progress if a script writes no metrics."""
    newest = [(outcome.tail[-1], outcome.host) for outcome in outcomes.values() if outcome.tail]
    if not newest:
        return "no output yet"
    line, host = max(newest, key=lambda found: found[0].time)
    who = host if line.rank is None else f"{host}:{line.rank}"
    text = line.text.rpartition(b"\r")[2] or line.text  # the newest state of a progress bar
    return f"[{who}] {printable(text.decode(errors='replace'))}"


def printable(text: str) -> str:
    """Remove characters that move the cursor or change colours."""
    kept = (
        " " if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") else char for char in text
    )
    return "".join(kept)[:LAST_LINE].strip()


def gpu_words(gpus: Sequence[Gpu]) -> str:
    """Format GPU use: `2 GPUs 97 %, 12.5 of 160 GiB`."""
    if not gpus:
        return ""
    gib, count = 1024, len(gpus)
    used, total = sum(gpu.used for gpu in gpus), sum(gpu.total for gpu in gpus)
    memory = (
        f", {used / gib:.{1 if used < 100 * gib else 0}f} of {total / gib:.0f} GiB" if total else ""
    )
    return f"{count} {'GPU' if count == 1 else 'GPUs'} {sum(gpu.use for gpu in gpus) / count:.0f} %{memory}"


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def panel_lines(view: View, columns: int, height: int) -> list[str]:
    """Return the panel as at most `height` lines that fit the terminal's width."""
    out = io.StringIO()
    # some terminals wrap a full line, which would break the redraw
    terminal = Console(
        file=out, force_terminal=True, width=max(20, columns - 1), highlight=False, markup=False
    )
    terminal.print(Text("─" * (terminal.width), style="dim"), no_wrap=True, overflow="crop")
    terminal.print(Text(view.head, style="bold"), no_wrap=True, overflow="ellipsis")
    terminal.print(Text(view.below), no_wrap=True, overflow="ellipsis")
    table = Table.grid(padding=(0, 2))
    for no_wrap in (True, True, False):  # if space is short, the last column is cut first
        table.add_column(no_wrap=no_wrap)
    room = max(0, height - 3)
    rows = view.rows if len(view.rows) <= room else view.folded
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    for node, state, gpus in shown:
        cells = Text(node), Text(state, COLOURS.get(state.split()[0], "")), Text(gpus)
        for cell in cells:
            cell.no_wrap, cell.overflow = True, "ellipsis"
        table.add_row(*cells)
    if shown:
        terminal.print(table)
    if hidden := len(rows) - len(shown):
        terminal.print(Text(f"and {hidden} more", style="dim"))
    return out.getvalue().split("\n")[:-1]
