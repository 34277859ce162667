"""A push shows one row for each host and part, and what it waits for."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rich.console import Console as RichConsole

from launcher.errors import DdpctlError
from launcher.hosts import Host
from launcher.push import push_progress
from launcher.push.push_progress import PushProgress
from launcher.push.push_report import HostReport, HostsNotReady, PushReport
from launcher.push.transfer.fanout import Fanout
from launcher.push.transfer.payload import Payload
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console


class Sink:
    """A command on a host that reads everything, or fails."""

    def __init__(self, code: int) -> None:
        self.code = code

    def write(self, data: bytes, timeout: float) -> None: ...
    def close_stdin(self) -> None: ...
    def close(self) -> None: ...

    def read(self, *, timeout: float) -> bytes:
        return b""

    def wait(self, timeout: float) -> int:
        return self.code

    def stderr_tail(self) -> str:
        return "no space left on device"


class SinkNode(HostConnection):
    def __init__(self, name: str, code: int = 0) -> None:
        super().__init__(Host(name))
        self.code = code

    def open(self, *_: Any, **__: Any) -> Any:
        return Sink(self.code)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def payload(part: str, size: int) -> Payload:
    return Payload(part, lambda connection: ("load",), size, lambda: iter([b"x" * size]))


def stderr_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())


def rows(progress: PushProgress) -> list[str]:
    """The bars as they are drawn now."""
    paper = RichConsole(file=io.StringIO(), width=150)
    with paper.capture() as drawn:
        paper.print(progress._bars.get_renderable())
    return [line.rstrip() for line in drawn.get().splitlines()]


def test_an_image_in_many_layers_is_one_line_per_host(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [SinkNode("gpu1"), SinkNode("gpu2")]
    progress = PushProgress(nodes, Console())
    layers = [payload("image", 1000) for _ in range(5)]
    assert Fanout({}, progress).send("image", layers, nodes, None) == {}
    Fanout({}, progress).send("dataset", [payload("dataset", 20)], nodes[:1], 20)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" in ")[0] for line in lines] == [
        "ddpctl: gpu1: image: 5.0 kB",
        "ddpctl: gpu2: image: 5.0 kB",
        "ddpctl: gpu1: dataset: 20 bytes",
    ]


def test_the_summary_counts_what_this_machine_copied_for_itself() -> None:
    report = PushReport([HostReport("local", files_sent=1), HostReport("gpu1")])
    assert report.summary().startswith("2 hosts ready") and "1 file)" in report.summary()
    assert PushReport([HostReport("local")]).summary().endswith(": nothing to send")
    failed = PushReport([HostReport("gpu1", error="full")])
    assert failed.summary().startswith("0 of 1 host ready") and "to send" not in failed.summary()


def test_a_host_that_fails_gets_no_line_of_success(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [SinkNode("gpu1", code=1), SinkNode("gpu2")]
    progress = PushProgress(nodes, Console())
    failures: dict[HostConnection, DdpctlError]
    failures = Fanout({}, progress).send("image", [payload("image", 10)] * 2, nodes, 20)
    assert list(failures) == nodes[:1]
    assert "gpu1" not in capsys.readouterr().err


def test_nobody_waits_for_the_next_layer_once_all_hosts_have_failed() -> None:
    nodes = [SinkNode("gpu1", code=1), SinkNode("gpu2", code=1)]

    def layers() -> Iterator[Payload]:
        yield payload("image", 10)
        raise AssertionError("the next layer is not needed")

    progress = PushProgress(nodes, Console(quiet=True))
    assert list(Fanout({}, progress).send("image", layers(), nodes, None)) == nodes


def test_a_terminal_has_one_bar_per_host_over_the_whole_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr_is_a_terminal(monkeypatch)
    nodes = [SinkNode("gpu1"), SinkNode("gpu2")]
    progress = PushProgress(nodes, Console())
    drawn: list[list[str]] = []

    def layers() -> Iterator[Payload]:
        for number in range(1, 4):
            progress.update("image", doing=f"compressing layer {number} of 3")
            drawn.append(rows(progress))
            if number == 3:
                progress.update("image", total=3_000_000, doing="")
            yield payload("image", 1_000_000)

    Fanout({}, progress).send("image", layers(), nodes, None)
    drawn.append(rows(progress))
    progress.close()
    assert {len(each) for each in drawn} == {2}
    assert all("gpu2 image" in each[1] for each in drawn)
    assert "0/? bytes" in drawn[0][0] and drawn[0][0].endswith("compressing layer 1 of 3")
    assert "2.0/? MB" in drawn[2][0] and drawn[2][0].endswith("compressing layer 3 of 3")
    assert "3.0/3.0 MB" in drawn[-1][0]


def test_while_a_host_unpacks_what_has_arrived_its_bar_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr_is_a_terminal(monkeypatch)
    node = SinkNode("gpu1")
    progress = PushProgress([node], Console())
    progress.begin("image", [node], 1000)
    progress.received(node, "image", 999)
    assert "unpacking" not in rows(progress)[0]
    progress.received(node, "image", 1)
    assert rows(progress)[0].endswith("unpacking")
    progress.end("image", [node])
    assert "unpacking" not in rows(progress)[0]
    progress.close()


def test_an_image_that_is_sent_again_begins_at_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr_is_a_terminal(monkeypatch)
    nodes = [SinkNode("gpu1")]
    progress = PushProgress(nodes, Console())
    for _ in range(2):
        Fanout({}, progress).send("image", [payload("image", 1_000_000)], nodes, 1_000_000)
        assert "1.0/1.0 MB" in rows(progress)[0]
    progress.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """clock(11): so many seconds pass."""
    now = [100.0]
    monkeypatch.setattr(push_progress.time, "monotonic", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_a_log_shows_every_ten_seconds_what_a_push_waits_for(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [SinkNode("gpu1"), SinkNode("gpu2")]
    progress = PushProgress(nodes, Console())
    progress.begin("image", nodes, None)
    for number in range(1, 5):
        progress.update("image", doing=f"compressing layer {number} of 4")
        clock(6.0)
    assert capsys.readouterr().err == "ddpctl: image: compressing layer 3 of 4\n"


def test_hosts_that_have_the_whole_image_do_not_wait_for_the_next_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr_is_a_terminal(monkeypatch)
    done, waiting = SinkNode("gpu1"), SinkNode("gpu2")
    progress = PushProgress([done, waiting], Console())
    for node in (done, waiting):
        progress.begin("image", [node], None)
    progress.end("image", [done])
    progress.update("image", doing="compressing layer 1 of 4")
    assert ["compressing" in row for row in rows(progress)] == [False, True]
    progress.close()


def test_a_log_leaves_out_what_is_not_known_yet(
    clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    node = SinkNode("gpu1")
    progress = PushProgress([node], Console())
    progress.begin("image", [node], None)
    clock(11.0)
    progress.received(node, "image", 2_000_000)
    assert capsys.readouterr().err == "ddpctl: gpu1: image: 2.0 MB\n"


def test_of_two_accounts_on_a_host_each_has_its_error() -> None:
    alice, bob = (HostConnection(Host("gpu1", user=user)) for user in ("alice", "bob"))
    failures = {alice: DdpctlError("its disk is full", ""), bob: DdpctlError("no such group", "")}
    text = str(HostsNotReady(failures, PushReport([])))
    assert "its disk is full" in text and "no such group" in text
