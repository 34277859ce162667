"""No input puts an escape sequence other than a color on the terminal."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import launcher
from launcher.logs.log_entry import parse, render
from launcher.look.exec import Sanitizer
from launcher.terminal.sanitize import colored, visible
from launcher.text import printable

PIECES = st.sampled_from(
    ["\x1b", "[", "]", "0", ";", "52", "m", "J", "\x07", "\x1b\\", "\x9b", "\x9d", "\x9c", "\x90",
     "P", "?", "31", " ", "\r", "\n", "\b", "\x00", "\x7f", "a", "é", "\x1b[31m", "\x1b[2J", "\t",
     "[gpu1:0] ", "\u202e"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(PIECES).map("".join), st.text())
SAFE = re.compile(r"(?:\x1b\[[0-9;:]*m|[^\x00-\x08\x0b-\x1f\x7f-\x9f])*")


@given(st.lists(st.one_of(TEXTS.map(lambda text: text.encode(errors="replace")), st.binary())))
def test_output_in_pieces_puts_only_colors_on_a_terminal(pieces: list[bytes]) -> None:
    sanitizer = Sanitizer()
    assert SAFE.fullmatch(b"".join(sanitizer.feed(piece) for piece in pieces).decode())
    assert SAFE.fullmatch("".join(colored(piece.decode(errors="replace")) for piece in pieces))


@given(TEXTS)
def test_of_all_escape_sequences_only_colors_stay(text: str) -> None:
    assert SAFE.fullmatch(colored(text))


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])), st.integers(0, 50))
def test_ordinary_text_stays_as_it_is_wherever_it_is_cut(text: str, cut: int) -> None:
    data = f"[gpu1:0] {text}\t\x1b[1;31mred\x1b[0m\n".encode()
    sanitizer = Sanitizer()
    assert sanitizer.feed(data[:cut]) + sanitizer.feed(data[cut:]) == data


@given(TEXTS, st.lists(st.integers(0, 5), max_size=30))
def test_text_in_pieces_gives_the_same_result(text: str, sizes: list[int]) -> None:
    """But for carriage returns, where what has been written cannot be taken back."""
    data = (text.replace("\r", "") + "end\n").encode(errors="replace")
    cuts = [0, *itertools.accumulate(sizes), len(data)]
    whole, pieces = Sanitizer(), Sanitizer()
    parts = [pieces.feed(data[low:high]) for low, high in itertools.pairwise(cuts)]
    assert b"".join(parts) == whole.feed(data)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b]0;owned\x07a", "a"),
        ("\x1b]52;c;ZXZpbA==\x1b\\a", "a"),
        ("\x1b[2J\x1b[1;1Ha", "a"),
        ("\x9b2Ja\x9d0;t\x9c", "a"),
        ("\x1bc\x1b(0a\x1b[?25l", "a"),
        ("\x1bPq...\x1b\\a", "a"),
        ("\x1b]0;never ends\nnext", "0;never ends\nnext"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[31;\x1b[2Jm", "31;m"),
        ("10%\r20%\r30%\n", "30%\n"),
        ("a\r\n", "a\n"),
        ("10%\r", "10%"),
    ],
)
def test_text_is_reduced_to_what_a_terminal_would_show(written: str, shown: str) -> None:
    sanitizer = Sanitizer()
    assert sanitizer.feed(written.encode()) == shown.encode()


@pytest.mark.parametrize(
    ("written", "shown"),
    [("10%\r20%\r30%", "30%"), ("a\r", "a"), ("[x] \xff\r\r\x1b[31mred", "\x1b[31mred")],
)
def test_the_label_of_an_overwritten_line_stays(written: str, shown: str) -> None:
    label = b"[gpu1:3] "
    entries = parse(label + written.encode("latin-1") + b"\n", node_rank=0, time=1.0)
    text = render(map(visible, entries)).decode(errors="replace")
    assert colored(text) == f"{label.decode()}{shown}\n"


def test_text_after_an_endless_escape_sequence_is_shown_in_the_end() -> None:
    sanitizer = Sanitizer()
    shown = sanitizer.feed(b"\x1b]0;") + b"".join(sanitizer.feed(b"x" * 100) for _ in range(100))
    assert len(shown) > 5000 and b"\x1b" not in shown
    assert sanitizer.feed(b"\nnext\n").endswith(b"\nnext\n")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("start", ["\x90", "\x9d", "\x1b]", "\x9b", "\x1b"])
def test_many_starts_of_sequences_do_not_hold_up_a_message(start: str) -> None:
    many = start * 500_000
    assert printable(many).strip("]") == ""
    assert Sanitizer().feed(many.encode()).strip(b"]") == b""


GATES = ["follow/hooks.py", "look/exec.py", "push/push_progress.py", "terminal/ask.py",
         "terminal/live.py", "terminal/streams.py"]  # fmt: skip
OWN_WORDS = ["__main__.py", "cli.py", "commands/clean.py", "commands/init.py", "commands/push.py",
             "start/recorder.py"]  # fmt: skip
ON_HOSTS = ["preflight/container_test.py", "preflight/probe_agent.py",
            "push/transfer/relay_agent.py", "sanity/collectives.py"]  # fmt: skip
WRITES = re.compile(
    r"sys\.std(?:out|err)(?!\.(?:isatty|flush|encoding))|typer\.(?:echo|confirm|prompt)"
    r"|RichConsole\(|(?<!def )(?<![.\w])print\("
)


def test_only_modules_with_a_gate_write_to_the_terminal_what_hosts_say() -> None:
    """See launcher.terminal.sanitize. A new writer belongs behind one of the gates."""
    source = Path(launcher.__file__).parent
    writers = [path for path in source.rglob("*.py") if WRITES.search(path.read_text())]
    names = {str(path.relative_to(source)) for path in writers}
    assert names == {*GATES, *OWN_WORDS, *ON_HOSTS}
