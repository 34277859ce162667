"""The launching machine's copy of the logs: each line once, even if a writer is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import StateError
from launcher.logs.log_entry import OutputLines, parse, render
from launcher.logs.query import LogFilter, merged
from launcher.logs.store import LogStore, Mark, Marks, NodeLog, known_marks, offset_in
from launcher.text import numbers_in


def write(
    store: LogStore, node: int, *lines: str, time: float, offset: int, attempt: int = 1
) -> None:
    text = "".join(f"{line}\n" for line in lines).encode()
    entries = [entry._replace(offset=offset) for entry in parse(text, node, time)]
    store.node(node).append(entries, attempt)


def acquired(folder: Path) -> LogStore:
    store = LogStore.acquire(folder, pytest.fail)
    assert store is not None
    return store


def test_lines_and_marks_are_on_disk(tmp_path: Path) -> None:
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", "[a:0] two", time=10.0, offset=100)
    store.close()
    assert (tmp_path / "node-0.log").read_text() == "[a:0] one\n[a:0] two\n"
    assert known_marks(tmp_path) == {0: Mark(10.0, 1, 100, 20)}


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    store = acquired(tmp_path)
    assert LogStore.acquire(tmp_path, pytest.fail) is None
    store.close()
    acquired(tmp_path).close()


def test_a_file_system_without_locks_is_no_writing_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(StateError, match=r"\.lock: cannot be locked: function not implemented; "):
        LogStore.acquire(tmp_path, pytest.fail)


def test_a_store_that_cannot_be_written_says_so_once(tmp_path: Path) -> None:
    warnings: list[str] = []
    store = LogStore.acquire(tmp_path, warnings.append)
    assert store
    (tmp_path / "node-0.log").mkdir()  # in the way
    for offset in (20, 40):
        store.append(0, [OutputLines("a", 0, 10.0, 0, [b"one"], offset)], attempt=1)
    assert warnings == [
        f"the rest of the logs is not recorded: {tmp_path}/node-0.log: Is a directory"
    ]


def test_a_full_disk_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: NodeLog) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(NodeLog, "close", fail)
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    assert LogStore.acquire(tmp_path, pytest.fail)


def test_an_unfinished_file_of_a_killed_writer_is_written_again(tmp_path: Path) -> None:
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    with (tmp_path / "node-0.log").open("a") as log:
        log.write("[a:0] two\n[a:0] thr")  # written, but not in the index yet
    with (tmp_path / ".node-0.index").open("a") as index:
        index.write("11.0 1 9")
    store = acquired(tmp_path)
    assert store.node(0).mark == Mark(10.0, 1, 50, 10)
    write(store, 0, "[a:0] two", time=11.0, offset=90)
    store.close()
    assert (tmp_path / "node-0.log").read_text() == "[a:0] one\n[a:0] two\n"
    assert known_marks(tmp_path)[0].offset == 90


def test_entries_up_to_the_mark_are_already_in_the_log(tmp_path: Path) -> None:
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=100)
    for offset in (0, 60, 100):
        write(store, 0, "[a:0] again", time=9.0, offset=offset)
    assert store.node(0).mark == Mark(10.0, 1, 100, 10)
    write(store, 0, "[a:0] two", time=11.0, offset=40, attempt=2)
    store.close()
    assert (tmp_path / "node-0.log").read_text() == "[a:0] one\n[a:0] two\n"


def test_once_a_newer_attempt_has_lines_an_earlier_one_gets_no_more(tmp_path: Path) -> None:
    """A command that follows the earlier one may have read them before."""
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    write(store, 0, "[a:0] two", time=20.0, offset=50, attempt=2)
    write(store, 0, "[a:0] one", time=10.0, offset=50, attempt=1)
    store.close()
    assert shown(tmp_path, LogFilter()) == [b"[a:0] one\n", b"[a:0] two\n"]


def test_another_attempt_begins_its_own_journal() -> None:
    mark = Mark(10.0, 1, 500, 20)
    assert offset_in(1, mark) == 500
    assert offset_in(2, mark) == 0
    assert offset_in(1, None) == 0


def two_nodes(folder: Path) -> Path:
    store = acquired(folder)
    write(store, 0, "[a:0] first", time=10.0, offset=1)
    write(store, 1, "[b:1] second", "[b] torchrun's own", time=11.0, offset=1)
    write(store, 0, "[a:0] third\rwith a return", time=12.0, offset=2)
    store.close()
    return folder


def shown(folder: Path, log_filter: LogFilter, known: Marks | None = None) -> list[bytes]:
    known = known_marks(folder) if known is None else known
    text = b"".join(map(render, merged(folder, log_filter, known)))
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


def test_nodes_are_merged_by_time(tmp_path: Path) -> None:
    assert shown(two_nodes(tmp_path), LogFilter()) == [
        b"[a:0] first\n",
        b"[b:1] second\n",
        b"[b] torchrun's own\n",
        b"[a:0] third\rwith a return\n",
    ]


def test_a_clock_that_is_set_back_does_not_change_the_order_of_lines(tmp_path: Path) -> None:
    """The lines of one rank, and those of one attempt before the next, which may be on other hosts."""
    store = acquired(tmp_path)
    write(store, 0, "[a:0] 1", time=1000.0, offset=1)
    write(store, 1, "[b:1] 2", time=500.0, offset=1)
    write(store, 0, "[a:0] 3", time=510.0, offset=2)
    write(store, 1, "[b:1] 4", time=520.0, offset=2)
    write(store, 0, "[c:0] 5", time=400.0, offset=1, attempt=2)
    store.close()
    lines = shown(tmp_path, LogFilter())
    assert [line[-2:-1] for line in lines] == [b"2", b"1", b"3", b"4", b"5"]
    assert shown(tmp_path, LogFilter(tail=1)) == [b"[c:0] 5\n"]


def test_lines_are_chosen_by_node_rank_time_words_and_number(tmp_path: Path) -> None:
    folder = two_nodes(tmp_path)
    assert len(shown(folder, LogFilter(nodes={1}))) == 2
    assert shown(folder, LogFilter(ranks={1})) == [b"[b:1] second\n"]
    assert len(shown(folder, LogFilter(since=11.5))) == 1
    [last] = shown(folder, LogFilter(grep=re.compile(b"fir|thi"), tail=1))
    assert last.startswith(b"[a:0] thi")
    assert shown(folder, LogFilter(grep=re.compile(rb"^\[b\] ")))[0].startswith(b"[b] ")
    for count in range(6):
        last_lines = shown(folder, LogFilter())[-count:] if count else []
        assert shown(folder, LogFilter(tail=count)) == last_lines


def test_lines_after_the_given_positions_are_not_shown(tmp_path: Path) -> None:
    known = known_marks(two_nodes(tmp_path))
    store = acquired(tmp_path)
    write(store, 1, "[b:1] later", time=13.0, offset=2)
    store.close()
    assert b"[b:1] later\n" not in shown(tmp_path, LogFilter(), known)
    assert b"[b:1] later\n" in shown(tmp_path, LogFilter())


def test_lines_are_chosen_by_their_labels_only() -> None:
    lines = b"[gpu1.lab:12] text\n[gpu1.lab] text [x:12] y\n12\n"
    entries = parse(lines, 0, 1.0)
    assert render(LogFilter(ranks={12}).choose(entries)) == b"[gpu1.lab:12] text\n"
    assert render(LogFilter(hosts={"gpu1.lab"}).choose(entries)) == lines[:-3]


GARBAGE = [
    b"garbage\n",
    b"\xff\xfe\x00\n",
    b"nan 1 5 5\n",
    b"1.000000 1 99 4\n",  # the log was longer before
    b"1.000000 1 99 999999999999\n",  # the log is not that long
    b"1e300 1 9 20\n",
    b"1.000000 1 9 " + b"9" * 5000 + b"\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_damaged_index_is_ignored_from_there_on_and_repaired_with_one_warning(
    tmp_path: Path, garbage: bytes
) -> None:
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    with (tmp_path / ".node-0.index").open("ab") as index:
        index.write(garbage + b"12.000000 1 70 20\n")
    with (tmp_path / "node-0.log").open("ab") as log:
        log.write(b"[a:0] two\n")
    assert shown(tmp_path, LogFilter()) == [b"[a:0] one\n"]
    warnings: list[str] = []
    store = LogStore.acquire(tmp_path, warnings.append)
    assert store and store.node(0).mark == Mark(10.0, 1, 50, 10)
    write(store, 0, "[a:0] two", time=11.0, offset=90)
    store.close()
    [warning] = warnings
    assert "node-0.log: its index was damaged" in warning
    assert (tmp_path / "node-0.log.damaged").read_text() == "[a:0] one\n[a:0] two\n"
    store = acquired(tmp_path)
    store.node(0)  # no second warning
    store.close()
    assert shown(tmp_path, LogFilter()) == [b"[a:0] one\n", b"[a:0] two\n"]


def test_a_log_without_its_index_is_kept_as_a_copy(tmp_path: Path) -> None:
    """As in a run folder that was copied without its hidden files."""
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    (tmp_path / ".node-0.index").unlink()
    warnings: list[str] = []
    store = LogStore.acquire(tmp_path, warnings.append)
    assert store and store.node(0).mark.offset == 0
    store.close()
    assert (tmp_path / "node-0.log.damaged").read_text() == "[a:0] one\n"
    assert len(warnings) == 1 and "node-0.log.damaged" in warnings[0]


def test_a_log_whose_index_cannot_be_read_now_is_not_written(tmp_path: Path) -> None:
    """As on a network file system that fails once."""
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    index = tmp_path / ".node-0.index"
    index.rename(tmp_path / "aside")
    index.symlink_to(index)  # a loop, which not even root can read
    warnings: list[str] = []
    store = LogStore.acquire(tmp_path, warnings.append)
    assert store
    store.append(0, [OutputLines("a", 0, 11.0, 0, [b"two"], 90)], attempt=1)
    store.close()
    assert (tmp_path / "node-0.log").read_text() == "[a:0] one\n"
    assert warnings == [
        f"the rest of the logs is not recorded: {index}: Too many levels of symbolic links"
    ]
    (tmp_path / "aside").rename(index)
    assert shown(tmp_path, LogFilter()) == [b"[a:0] one\n"]


def test_an_index_without_its_log_begins_a_new_log(tmp_path: Path) -> None:
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    (tmp_path / "node-0.log").unlink()
    store = acquired(tmp_path)
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    assert shown(tmp_path, LogFilter()) == [b"[a:0] one\n"]


def test_a_file_that_is_no_index_of_a_node_is_no_node(tmp_path: Path) -> None:
    for name in (".node-x.index", ".node-.index", ".node-1.2.index"):
        (tmp_path / name).write_text("1.000000 1 1 1\n")
    assert known_marks(tmp_path) == {}
    acquired(tmp_path).close()


@given(st.binary(max_size=60), st.binary(max_size=60))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_index_and_no_log_is_an_exception(tmp_path: Path, index: bytes, log: bytes) -> None:
    (tmp_path / ".node-0.index").write_bytes(index)
    (tmp_path / "node-0.log").write_bytes(log)
    store = LogStore.acquire(tmp_path, lambda _: None)
    assert store
    write(store, 0, "[a:0] one", time=10.0, offset=50)
    store.close()
    assert shown(tmp_path, LogFilter())[-1:] == [b"[a:0] one\n"]


def test_ranks_are_lists_and_ranges_of_what_exists() -> None:
    assert numbers_in("0-2,5", 6) == {0, 1, 2, 5}
    for text in ("6", "-1", "2-1", "2-", "", "a", "0,", "0-999999999999", "1-2-3"):
        with pytest.raises(ValueError, match="is not a number or range within 0-5"):
            numbers_in(text, 6)
