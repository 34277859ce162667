"""What of a run's lines the console shows, and what it says about the rest."""

from __future__ import annotations

import pytest

from launcher.follow.run_lines import RunLines
from launcher.logs.log_entry import parse
from launcher.terminal.console import Console

RANK = b"[gpu1:1] ValueError: boom\n"
STOPPED = b"""[gpu0] Traceback (most recent call last):
[gpu0]   File "/usr/local/bin/torchrun", line 8, in <module>
[gpu0] torch.distributed.elastic.multiprocessing.api.SignalException: Process 2 got signal: 15
"""
UNFINISHED = b"[gpu0] Traceback (most recent call last):\n[gpu0]   File\n"


class Screen(Console):
    """A console on a terminal, and what it shows."""

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.shown: list[object] = []  # bytes of results, str of messages

    on_terminal = True

    def write(self, data: bytes) -> None:
        if data:
            self.shown.append(data)

    def say(self, text: str) -> None:
        self.shown.append(text)


def shown(console: Screen, *, brief: bool = True) -> list[object]:
    """Show lines of two nodes."""
    lines = RunLines(console, brief=brief)
    for node_rank, text in [(0, STOPPED), (1, RANK), (1, STOPPED)]:
        lines.show(parse(text, node_rank, 1.0))
    lines.settle()
    return console.shown


def test_a_note_says_on_how_many_nodes_torchruns_report_is_hidden() -> None:
    note = "torchrun's own report from 2 nodes is hidden; `ddpctl logs` shows it"
    assert shown(Screen()) == [RANK, note]
    assert shown(Screen(fold=True)) == [RANK, note]


@pytest.mark.parametrize(("options", "brief"), [({"verbose": True}, True), ({}, False)])
def test_verbose_and_logs_show_torchruns_report(options: dict[str, bool], brief: bool) -> None:
    assert shown(Screen(**options), brief=brief) == [STOPPED, RANK, STOPPED]


def test_all_lines_that_were_held_back_are_shown_at_the_end() -> None:
    console = Screen(fold=True)
    lines = RunLines(console)
    lines.show(parse(RANK + UNFINISHED, 0, 1.0))
    assert console.shown == []
    lines.settle()
    assert console.shown == [RANK + UNFINISHED]
