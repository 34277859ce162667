"""The live panel: what it says, where it is drawn, and that the lines above it stay whole."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from local_machine import Machine

from launcher.errors import HostUnreachable
from launcher.follow.followed_node import FollowedNode
from launcher.follow.panel import Panel, gpu_words, state_of
from launcher.follow.trainer_progress import parse_progress
from launcher.logs.log_entry import OutputLines
from launcher.supervisor.events import End, EndState, GpuLoad, Usage
from launcher.supervisor.usage import parse_gpus
from launcher.terminal.console import Console

START = {"kind": "start", "attempt": 2, "total_steps": 400, "steps_per_epoch": 100}
TRAIN = {"kind": "train", "epoch": 1, "step": 120, "loss": 1.25, "img_s": 512.4, "eta_s": 3725}


def lines_of(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def print_line(node: FollowedNode, time: float, rank: int, text: bytes) -> None:
    node.newest_lines.append(OutputLines(node.host, node.node_rank, time, rank, [text]))


def test_the_trainers_numbers_are_read_and_those_of_an_earlier_attempt_are_not() -> None:
    text = lines_of(START, {**TRAIN, "step": 20}, TRAIN, {"kind": "eval", "top1": 0.5}) + b'{"to'
    progress = parse_progress(text, attempt=2)
    assert progress is not None
    shown = Panel("r", 2, 0, {}, progress).below(0)
    assert shown == "epoch 1/4  step 120/400  loss 1.2500  top1 50.00%  512 images/s  eta 1:02:05"
    assert parse_progress(text, attempt=3) is None
    assert parse_progress(lines_of(TRAIN, START), attempt=2) is None


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([b"Epoch: 3/10", b"step 120/500 loss 1.2", b"saved"], "epoch 3/10  step 120/500"),
        ([b"Epoch 2/10, Iter 7/9", b"epoch 3 / 10"], "epoch 3/10  step 7/9"),
        (
            [b" 24%|##4  | 24/100 [00:01<00:03]\r 25%|##5  | 25/100 [00:01<00:03]"],
            "progress 25/100",
        ),
        ([b"loss 3/10"], "[a:0] loss 3/10"),
    ],
)
def test_progress_of_any_script_is_read_from_its_lines(texts: list[bytes], words: str) -> None:
    node = FollowedNode(0, "a")
    for n, text in enumerate(texts):
        print_line(node, 100.0 + n, 0, text)
    last = 99.0 + len(texts)
    panel = Panel("r", 1, 0, {0: node})
    assert panel.below(last + 9) == words
    assert panel.below(last + 75) == f"no output for 0:01:15  {words}"


def test_the_silence_of_a_script_does_not_depend_on_the_hosts_clocks() -> None:
    nodes = {0: FollowedNode(0, "a", clock_skew=-3600.0), 1: FollowedNode(1, "b")}
    print_line(nodes[0], 100.0 - 3600.0, 0, b"newest")
    print_line(nodes[1], 99.0, 1, b"older")
    assert Panel("r", 1, 0, nodes).below(105.0) == "[a:0] newest"


def test_a_node_with_a_slow_rank_says_so_instead_of_running() -> None:
    nodes = {rank: FollowedNode(rank, f"gpu{rank}") for rank in range(5)}
    for rank, node in nodes.items():
        print_line(node, 1.0, rank, b"x")
        node.usage = Usage(1.0, ranks=(rank,))
    text = lines_of(START, {**TRAIN, "ranks": {"slow": {"2": 1.6}}})
    panel = Panel("r", 2, 0, nodes, parse_progress(text, attempt=2))
    assert [state for _, state, _ in panel.rows(folded=False)] == [
        *["running"] * 2,
        "slow: rank 2 at 1.6 times the median step time",
        *["running"] * 2,
    ]
    assert next(panel.rows(folded=True))[:2] == (
        "2 gpu2",
        "slow: rank 2 at 1.6 times the median step time",
    )
    nodes[2].contact.lose(HostUnreachable("no answer"))
    assert [state for _, state, _ in panel.rows(folded=False)][2] == "contact lost"


def test_gpus_of_a_host_share_a_line() -> None:
    gpus = parse_gpus(b"50, 1024, 81920\n[N/A], 3072, 81920\n")
    assert gpus == (GpuLoad(50, 1024, 81920), GpuLoad(0, 3072, 81920))
    assert parse_gpus(b"NVIDIA-SMI has failed\n") == ()
    assert parse_gpus(b"1, 1, " + b"9" * 5000) == ()
    spark = parse_gpus(b"50, [N/A], [N/A]\n")  # its memory is the CPU's
    assert gpu_words(spark) == "1 GPU 50%"
    nodes = {0: FollowedNode(0, "a", usage=Usage(1.0, gpus))}
    [shown] = Panel("r", 1, 0, nodes).rows(folded=False)
    assert shown == ("0 a", "starting", "2 GPUs 25%, 4.0 of 160 GiB")


def test_a_scripts_newest_line_is_shown_without_its_cursor_movements() -> None:
    nodes = {rank: FollowedNode(rank, f"h{rank}") for rank in range(2)}
    print_line(nodes[0], 1.0, 0, b"older")
    print_line(nodes[1], 2.0, 3, b"10%\r20% \x1b[2Jdone")
    nodes[0].contact.lose(HostUnreachable("no answer"))
    panel = Panel("r", 1, time.time() - 3600.1, nodes)
    assert "r  up 1:00:00" in panel.lines(80, 9)[1]
    assert panel.below(3.0) == "[h1:3] 20% done"
    assert [state for _, state, _ in panel.rows(folded=False)] == ["contact lost", "running"]
    # starts of escape sequences; to search them all for an end would take an hour
    print_line(nodes[1], 3.0, 3, "\x90".encode() * 1_000_000)
    assert panel.below(3.0) == "[h1:3] \ufffd"  # the text is cut within a character


def test_a_panel_is_never_larger_than_its_room() -> None:
    nodes = {rank: FollowedNode(rank, "host-with-a-long-name" * 3) for rank in range(50)}
    lines = Panel("r" * 90, 1, 0, nodes).lines(40, 8)
    assert len(lines) == 4
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert max(map(len, plain)) < 40
    assert plain[-1].split()[:4] == ["50", "nodes", "starting", "0-49"]


def plain_panel(nodes: dict[int, FollowedNode], *size: int) -> list[str]:
    lines = Panel("r1", 1, 0, nodes).lines(*size)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in lines]


@pytest.mark.parametrize(
    ("state", "words"),
    [("succeeded", "succeeded"), ("failed", "failed (3)"), ("cancelled", "cancelled (3)")],
)
def test_an_ended_node_shows_how_it_ended(state: str, words: str) -> None:
    node = FollowedNode(0, "gpu1", done=True, exit_code=3)
    node.events.append((1.0, End(EndState(state), 3)))
    assert state_of(node) == words


@pytest.mark.parametrize("size", [(80, 12), (120, 20)])  # half of the terminal's height
def test_at_64_nodes_the_panel_has_a_row_for_each_state_the_odd_ones_first(
    size: tuple[int, int],
) -> None:
    busy, idle = ((GpuLoad(use, 61000, 81920),) * 8 for use in (97, 1))
    nodes = {rank: FollowedNode(rank, f"gpu{rank + 1:02}") for rank in range(64)}
    for node in nodes.values():
        print_line(node, 1.0, 0, b"x")
        node.usage = Usage(1.0, busy, busy)
    nodes[7].contact.lose(HostUnreachable("no answer"))
    nodes[20].usage = Usage(1.0, idle, idle)
    shown = plain_panel(nodes, *size)[3:]
    assert [" ".join(row.split()) for row in shown] == [
        "7 gpu08 contact lost 8 GPUs 97%, 477 of 640 GiB",
        "20 gpu21 slow: GPU 0 at 1% use, median 97% 8 GPUs 1%, 477 of 640 GiB",
        f"62 nodes running 496 GPUs 97%, 29547 of 39680 GiB {FOLDED[size[0]]}",
    ]
    assert max(map(len, shown)) < size[0]


FOLDED = {80: "…", 120: "0-6,8-19,21-63 gpu[01-07,09-20,22-64]"}


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "CI": "true"}, False),
    ],
)
def test_the_panel_is_for_terminals_that_can(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], shown: bool
) -> None:
    for name in ("TERM", "CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    with os.fdopen(leader), os.fdopen(follower, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        assert Console().shows_live is shown
        assert not Console(plain=True).shows_live
        assert not Console(quiet=True).shows_live


# --- on a pseudo terminal -------------------------------------------------------------------------

SCRIPT = """
import json, os, time
rank = int(os.environ["RANK"])
for i in range(200):
    print(f"line {i} of {rank}", "#" * 60, flush=True)
with open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "metrics.jsonl"), "a") as file:
    if rank == 0:
        file.write('{"kind": "start", "total_steps": 40, "steps_per_epoch": 10}\\n')
        file.write('{"kind": "train", "epoch": 2, "step": 23, "loss": 0.5, "img_s": 99}\\n')
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
print(f"bye from {rank}", flush=True)
"""


class Terminal:
    """A pseudo terminal with its paper: what a person would see, scrolled lines included."""

    def __init__(self, machine: Machine, *argv: str) -> None:
        self.leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        env = {
            k: v for k, v in machine.env.items() if k not in ("CI", "NO_COLOR", "COLUMNS", "LINES")
        }
        self.process = subprocess.Popen(
            [machine.python, "-m", "launcher", *argv],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=machine.folder,
            env={**env, "TERM": "xterm", "GO": str(machine.folder / "go")},
            start_new_session=True,
        )
        os.close(follower)
        self.raw = b""

    def paper(self) -> list[str]:
        """The lines after cursor movements: \\r, up and erasing are all that is used."""
        lines, row, column = [""], 0, 0
        whole = re.sub(rb"\x1b\[?[?0-9;]*$", b"", self.raw)  # a sequence may be read in two parts
        whole = re.sub(rb"\x1b\[(\?25[lh]|[0-9;]*m)", b"", whole)  # cursor on and off, colors
        text = whole.decode(errors="replace")
        for piece in re.split(r"(\r|\n|\x1b\[1A|\x1b\[J|\x1b\[2K)", text):
            if piece == "\r":
                column = 0
            elif piece == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif piece == "\x1b[1A":
                row -= 1
            elif piece == "\x1b[J":
                lines = [*lines[:row], lines[row][:column]]
            elif piece == "\x1b[2K":
                lines[row] = ""
            else:
                assert "\x1b" not in piece, piece
                before = lines[row]
                lines[row] = before[:column].ljust(column) + piece + before[column + len(piece) :]
                column += len(piece)
        return lines

    def read_until(self, true: Callable[[list[str]], bool], what: str) -> None:
        deadline = time.monotonic() + 120
        while not true(self.paper()):
            assert time.monotonic() < deadline, (what, self.paper()[-20:])
            if not self._read():
                raise AssertionError((what, self.paper()[-20:]))

    def read_to_the_end(self) -> int:
        while self._read():
            pass
        return self.process.wait(timeout=60)

    def _read(self) -> bool:
        try:
            data = os.read(self.leader, 65536)
        except OSError:  # how a pseudo terminal says that nobody holds its other side
            return False
        self.raw += data
        return bool(data)


def expected(hosts: int = 2, each: int = 2) -> dict[int, list[str]]:
    return {
        rank: [f"[local:{rank}] line {i} of {rank} {'#' * 60}" for i in range(200)]
        + [f"[local:{rank}] bye from {rank}"]
        for rank in range(hosts * each)
    }


def said(paper: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in paper:
        if match := re.match(r"\[local:(\d+)\] ", line):
            found.setdefault(int(match[1]), []).append(line)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    return machine


def test_on_a_terminal_a_panel_stands_below_lines_that_stay_whole(machine: Machine) -> None:
    terminal = Terminal(machine, "launch", "hosts.yaml", "--env", "GO")
    try:
        terminal.read_until(
            lambda paper: "epoch 2/4  step 23/40  loss 0.5000  99 images/s" in "".join(paper[-6:]),
            "the trainer's numbers in the panel",
        )
        panel = terminal.paper()[-6:]
        assert panel[0] == "─" * 119
        assert " up 0:" in panel[1]
        assert [row.split() for row in panel[3:5]] == [
            ["0", "local", "running"],
            ["1", "local", "running"],
        ]
    finally:
        (machine.folder / "go").touch()
    assert terminal.read_to_the_end() == 0
    paper = terminal.paper()
    assert said(paper) == expected()
    assert not [line for line in paper if "─" in line or " up 0:" in line]


def test_plain_moves_no_cursor(machine: Machine) -> None:
    (machine.folder / "go").touch()
    terminal = Terminal(machine, "launch", "hosts.yaml", "--plain", "--env", "GO")
    assert terminal.read_to_the_end() == 0
    assert b"\x1b" not in terminal.raw
    assert said(terminal.paper()) == expected()


def test_ps_watch_replaces_its_table_on_a_terminal(machine: Machine) -> None:
    run_id = machine.ddpctl("launch", "hosts.yaml", "-d", "--env", f"GO={machine.folder / 'go'}")
    name = run_id.stdout.strip()
    terminal = Terminal(machine, "ps", "hosts.yaml", "--nodes", "--watch", "--interval", "1s")

    def rows(paper: list[str]) -> list[str]:
        return [line for line in paper if name in line]

    try:
        terminal.read_until(lambda paper: len(rows(paper)) == 2, "the run's two nodes")
    finally:
        (machine.folder / "go").touch()
    terminal.read_until(
        lambda paper: "no live run on local; --all shows finished runs too" in paper, "their end"
    )
    assert rows(terminal.paper()) == []
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.read_to_the_end() == 130
    assert (
        "no live run on local; --all shows finished runs too" in terminal.paper()
        and rows(terminal.paper()) == []
    )


def test_ps_watch_without_a_terminal_prints_each_table_that_differs(machine: Machine) -> None:
    watching = machine.start("ps", "hosts.yaml", "--all", "--nodes", "--watch", "--interval", "1s")
    assert watching.stdout is not None
    assert watching.stdout.readline() == "no run on local\n"
    (machine.folder / "go").touch()
    go = f"GO={machine.folder / 'go'}"
    done = machine.ddpctl("launch", "hosts.yaml", "--name", "w", "--env", go)
    name = re.findall(r"run (\S+) started", done.stderr)[0]
    while "exited" not in (line := watching.stdout.readline()):
        assert line == "\n" or line.startswith(("RUN ", name)), line
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 130 and "\x1b" not in out + err
    assert "interrupted" not in err
