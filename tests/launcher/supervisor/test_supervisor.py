"""One node: lines, exits, signals, and what is left afterwards."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisors import NPROC, WITH_TORCH, Attempt, Node, attempt, spec, until

from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import events_in, output_in
from launcher.start.fill_node_folders import SUPERVISOR, supervisor_file
from launcher.supervisor.events import End, EndState, Environment, Reason
from launcher.supervisor.journal import BALLAST, Journal
from launcher.supervisor.proc import children

WIDTH = 200


@pytest.fixture(scope="module")
def wrote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose two ranks wrote 1,000 long lines each, and some that are no ordinary lines."""
    folder = tmp_path_factory.mktemp("lines")
    with attempt(folder, 1, ["lines", "1000", str(WIDTH)], python=WITH_TORCH) as made:
        assert made.wait() == [0]
        yield made.nodes[0]


def expected_lines(rank: int, count: int) -> list[bytes]:
    numbered = [b"%d %d " % (rank, number) + b"x" * WIDTH for number in range(count)]
    odd = [b"\xff\xfe is no text", b"torn and joined\r", b"y" * 1_000_000, b"no newline"]
    return numbered + odd


@pytest.mark.parametrize("rank", range(NPROC))
def test_every_line_arrives_complete_in_order_and_once(wrote: Node, rank: int) -> None:
    assert wrote.lines(rank) == expected_lines(rank, 1000)


def test_stdout_carries_the_same_lines_with_their_rank(wrote: Node) -> None:
    printed = (wrote.folder / "stdout").read_bytes().split(b"\n")
    mine = [line.partition(b"] ")[2] for line in printed if line.startswith(b"[gpu1:1] ")]
    assert mine == expected_lines(1, 1000)


def test_the_journal_has_what_the_node_runs_on(wrote: Node) -> None:
    assert {"python", "torch", "kernel"} <= set(wrote.event(Environment).versions)


def test_the_last_record_is_the_end(wrote: Node) -> None:
    assert events_in(wrote.entries())[-1][1] == End(EndState.SUCCEEDED, 0)


def test_times_never_go_back(wrote: Node) -> None:
    times = [entry.time for entry in wrote.entries()]
    assert times == sorted(times)


def test_the_token_is_written_nowhere_but_in_the_spec(wrote: Node) -> None:
    secret = wrote.spec["token"].encode()
    holding = [p.name for p in wrote.folder.rglob("*") if p.is_file() and secret in p.read_bytes()]
    assert holding == ["spec.json"]


@pytest.mark.slow
def test_a_flood_of_output_loses_no_line_and_costs_little(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with attempt(tmp_path, 1, ["lines", "50000", "360"]) as made:  # more than FREE_SIZE
        made.wait()
        [node] = made.nodes
        for rank in range(NPROC):
            numbers = [int(line.split()[1]) for line in node.lines(rank)[:50_000]]
            assert numbers == list(range(50_000))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU of supervisor, torchrun and ranks: {after.ru_utime - before.ru_utime:.2f} s")


def test_sigterm_is_passed_on_and_the_ranks_may_save(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["gentle"], python=WITH_TORCH) as made:
        made.ranks_running()
        [node] = made.nodes
        os.kill(node.pid, signal.SIGTERM)
        assert node.wait() == 143
        assert [node.lines(rank)[-1] for rank in range(NPROC)] == [b"saved"] * NPROC
        assert node.end.state == "stopped"
        assert made.survivors() == []


def test_a_run_that_was_cancelled_says_so(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["wait"]) as made:
        made.ranks_running()
        (made.nodes[0].folder / "cancelled").touch()
        os.kill(made.nodes[0].pid, signal.SIGTERM)
        made.wait()
        assert made.nodes[0].end.state == "cancelled"


def test_ranks_that_ignore_sigterm_are_killed_in_time_and_nothing_is_left(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["stubborn"], stop_timeout=2) as made:
        pids = made.ranks_running()
        os.kill(made.nodes[0].pid, signal.SIGTERM)
        made.wait()
        assert made.nodes[0].end.state == "stopped"
        assert made.survivors() == []
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_a_killed_torchrun_leaves_no_rank(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["wait"]) as made:
        made.ranks_running()
        [node] = made.nodes
        [torchrun] = children(node.pid)
        os.kill(torchrun, signal.SIGKILL)
        assert node.wait() != 0
        assert (node.end.state, node.end.exit_code) == ("failed", -9)
        assert made.survivors() == []


def test_a_taken_master_port_is_named(tmp_path: Path) -> None:
    made = Attempt(tmp_path, python=WITH_TORCH)
    [node] = made.add(1, ["wait"])
    port = int(node.spec["argv"][node.spec["argv"].index("--master-port") + 1])
    with socket.create_server(("127.0.0.1", port)):
        made.start()
        try:
            assert made.wait() == [1]
        finally:
            made.close()
    cause = made.cause()
    assert cause is not None
    assert (cause.kind, cause.host, cause.rank) == ("port-in-use", "gpu1", None)


def test_a_command_that_cannot_be_started_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["wait"], cwd="/nowhere/at/all") as made:
        assert made.wait() == [127]
        assert made.nodes[0].end.state == "failed"
        assert "/nowhere/at/all" in made.nodes[0].reason.message


def test_a_fault_of_the_supervisor_itself_leaves_nothing_running(tmp_path: Path) -> None:
    with attempt(tmp_path, 1, ["wait"], hang_timeout="soon") as made:
        assert made.wait() == [1]
        assert made.survivors() == []
        cause = made.cause()
        assert cause is not None and cause.kind == "supervisor"


def test_a_journal_that_cannot_be_written_leaves_nothing_running(tmp_path: Path) -> None:
    made, read = Attempt(tmp_path), bytearray()
    [node] = made.add(1, ["chatter"])
    os.mkfifo(node.folder / "journal")  # writing fails once nobody has it open for reading
    journal = os.open(node.folder / "journal", os.O_RDONLY | os.O_NONBLOCK)

    def working() -> bool:
        with contextlib.suppress(BlockingIOError):
            read.extend(os.read(journal, 1 << 20))
        return read.count(b"working") == NPROC

    made.start()
    try:
        until(working, 60)
        os.close(journal)
        assert made.wait() == [1]
        assert made.survivors() == []
    finally:
        made.close()


def test_the_trainers_progress_counts_more_than_its_output(tmp_path: Path) -> None:
    made = Attempt(tmp_path)
    [node] = made.add(1, ["chatter"], hang_timeout=1.0)
    output = Path(node.spec["output_dir"])
    output.mkdir()
    made.start()
    try:
        made.ranks_running()
        (output / "status.json").write_text(json.dumps({"state": "training"}))
        until(lambda: bool(node.events(End)), 15)
        assert node.end.state == "hung"
    finally:
        made.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this machine does not let root mount")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(disk: Path) -> Path:
    """Write a file until the disk is full. Return it."""
    hog = disk / "hog"
    with contextlib.suppress(OSError), hog.open("wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass
    return hog


@pytest.mark.parametrize("freed", [False, True])
def test_a_full_disk_costs_lines_which_are_counted_but_no_event(
    small_disk: Path, freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, write = [], os.write

    def note(file: int, data: bytes) -> int:
        sizes.append((small_disk / "journal").stat().st_size)
        return write(file, data)

    monkeypatch.setattr(os, "write", note)
    journal = Journal(str(small_disk), "gpu1")
    assert (small_disk / "ballast").stat().st_size == BALLAST
    journal.write_lines(b"0", b"before\n")
    hog = fill(small_disk)
    for _ in range(2):
        journal.write_lines(b"0", b"x" * 100_000 + b"\ny\n")
    if freed:
        hog.unlink()
        journal.write_lines(b"0", b"after\n")
    journal.write_event(End(EndState.FAILED, 1))
    journal.close()
    entries = JournalReader().feed((small_disk / "journal").read_bytes())
    missing = b"ddpctl: the disk was full; lines of output missing here: 3"
    shown = [(entry.rank, line) for entry in output_in(entries) for line in entry.lines]
    cut_off = (0, b"x" * 100_000)  # but completed later
    expected = [(0, b"before"), cut_off, (None, missing), (0, b"after")]
    assert shown == expected[: 4 if freed else 3]
    assert events_in(entries[-1:])[0][1] == End(EndState.FAILED, 1)
    assert sizes == sorted(sizes), "after a truncation, `tail -F` prints the whole file again"


@pytest.mark.parametrize("cut_off", ["the event", "a line longer than the ballast"])
def test_on_a_full_disk_the_last_event_is_whole(small_disk: Path, cut_off: str) -> None:
    journal = Journal(str(small_disk), "gpu1")
    journal.write_lines(b"0", b"before\n")
    fill(small_disk)
    if cut_off != "the event":
        journal.write_lines(b"0", b"x" * (BALLAST + 10_000) + b"\n")
    end = End(EndState.FAILED, 1, Reason("torchrun", "y" * 5000, 0))
    journal.write_event(end)
    journal.close()
    entries = JournalReader().feed((small_disk / "journal").read_bytes())
    assert events_in(entries[-1:])[0][1] == end


@pytest.mark.parametrize("path", sorted(SUPERVISOR.glob("*.py")), ids=lambda path: path.name)
def test_it_is_python_3_8_and_nothing_but_its_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    imports = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and not n.level]
    assert imports | {str(n.module) for n in froms} <= set(sys.stdlib_module_names)
    newer = {"removeprefix", "removesuffix", "cache", "zip_longest", "pairwise"}
    assert not newer & {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}


def test_a_python_path_that_breaks_torchrun_does_not_break_its_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectors.py").write_text("raise ImportError('this is not the library')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with attempt(tmp_path, 1, ["exit"], python=WITH_TORCH) as made:
        assert made.wait() == [1]
        [node] = made.nodes
        assert node.end.state == "failed"
        assert b"ImportError: this is not the library" in node.lines(None)


def test_the_bundle_is_the_same_from_the_same_sources() -> None:
    assert supervisor_file() == supervisor_file()


def test_the_bundle_is_compressed_as_every_host_is_sent_one() -> None:
    assert len(supervisor_file()) < sum(path.stat().st_size for path in SUPERVISOR.glob("*.py")) / 2


def test_each_file_of_the_bundle_is_compiled_once(tmp_path: Path) -> None:
    bundle = tmp_path / "supervisor.pyz"
    bundle.write_bytes(supervisor_file())
    code = """
import runpy, sys
compiled = []
sys.addaudithook(lambda event, about: event == "compile" and compiled.append(str(about[1])))
try:
    runpy.run_path(sys.argv.pop())
except IndexError:  # no spec.json was given
    print(*(path for path in compiled if "/supervisor/" in path), sep="\\n")
"""
    command = [sys.executable, "-I", "-S", "-c", code, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = [f"{bundle}/supervisor/{path.name}" for path in SUPERVISOR.glob("*.py")]
    assert sorted(done.stdout.split()) == sorted(expected)


def test_a_run_that_is_stopped_has_its_stop_timeout_to_save() -> None:
    given = spec(stop_timeout=60.0, failure_grace=3.0)
    assert given.time_to_save() == 57.0
    assert given.time_to_save(failed=True) == 3.0
