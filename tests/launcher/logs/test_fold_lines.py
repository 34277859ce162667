"""Folding loses and doubles nothing, and keeps each rank's order."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from local_machine import Machine

from launcher.logs.fold_lines import Fold
from launcher.logs.log_entry import OutputLines, parse, render

LINES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([b"a", b"b", b"c: [0-3] d", b""])), max_size=60
)


def entries(*lines: bytes) -> list[OutputLines]:
    return parse(b"".join(lines), node_rank=0, time=0.0)


def unfolded(line: bytes, host: str = r"h\d") -> list[tuple[int, bytes]]:
    """(rank, text) of a line as it was written, or of a folded one."""
    match = re.match(rb"\[(?:%b:(\d+)|([\d,-]+))\] (.*)\n" % host.encode(), line)
    assert match, line
    if match[1]:
        return [(int(match[1]), match[3])]
    found = []
    for span in match[2].decode().split(","):
        low, _, high = span.partition("-")
        found += [(rank, match[3]) for rank in range(int(low), int(high or low) + 1)]
    return found


def by_rank(pairs: list[tuple[int, bytes]]) -> dict[int, list[bytes]]:
    texts = defaultdict(list)
    for rank, text in pairs:
        texts[rank].append(text)
    return dict(texts)


@given(LINES, st.integers(1, 8), st.lists(st.integers(0, 60)))
def test_each_rank_keeps_its_lines_in_their_order(
    lines: list[tuple[int, bytes]], limit: int, pauses: list[int]
) -> None:
    fold = Fold(limit)
    out: list[OutputLines] = []
    for at, (rank, text) in enumerate(lines):
        out += fold.feed(entries(b"[h%d:%d] %b\n" % (rank // 2, rank, text)), now=float(at))
        if at in pauses:
            out += fold.take_older(now=float(at), wait=3.0)
    out += fold.take_all()
    shown = render(out).splitlines(keepends=True)
    assert by_rank([pair for line in shown for pair in unfolded(line)]) == by_rank(lines)


def test_identical_lines_of_ranks_are_one_line() -> None:
    fold = Fold()
    lines = [b"[a:%d] step %d\n" % (rank, step) for rank in range(6) for step in (1, 2)]
    lines += [b"[gpu1] torchrun\n", b"[gpu2] torchrun\n", b"[a:3] alone \r\x1b[0m\n"]
    assert fold.feed(entries(*lines)) == []
    assert render(fold.take_all()) == (
        b"[0-5] step 1\n[0-5] step 2\n[gpu[1-2]] torchrun\n[a:3] alone \r\x1b[0m\n"
    )


def test_a_line_that_a_rank_repeats_is_not_folded() -> None:
    fold = Fold()
    fold.feed(entries(b"[a:0] x\n", b"[a:0] x\n"))
    assert render(fold.take_all()) == b"[a:0] x\n[a:0] x\n"


def test_lines_wait_no_longer_than_they_should() -> None:
    fold = Fold()
    fold.feed(entries(b"[a:0] x\n"), now=1.0)
    fold.feed(entries(b"[a:1] y\n"), now=2.0)
    assert render(fold.take_older(now=2.0, wait=1.0)) == b"[a:0] x\n"
    fold.feed(entries(b"[a:1] x\n"), now=2.0)
    assert render(fold.take_all()) == b"[a:1] y\n[a:1] x\n"


def test_logs_and_launch_fold_lines_of_real_ranks(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    script = "import os\nfor i in range(3): print('step', i)\nprint('I am', os.environ['RANK'])\n"
    (tmp_path / "code" / "train.py").write_text(script)
    launched, whole, folded = (
        machine.ddpctl(*argv).stdout.splitlines()
        for argv in (("launch", "hosts.yaml", "--fold"), ("logs",), ("logs", "--fold"))
    )
    assert folded[:3] == [f"[0-3] step {i}" for i in range(3)]
    assert sorted(folded[3:]) == [f"[local:{rank}] I am {rank}" for rank in range(4)]
    for lines in (whole, launched):
        pairs = [pair for line in lines for pair in unfolded(line.encode() + b"\n", "local")]
        assert by_rank(pairs) == {
            rank: [b"step 0", b"step 1", b"step 2", b"I am %d" % rank] for rank in range(4)
        }
