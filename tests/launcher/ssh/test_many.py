"""Running functions in the background."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from launcher.errors import CommandFailed
from launcher.hosts import Host
from launcher.outcomes import Exit
from launcher.ssh.background import in_background
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.many import try_each


def test_background_processes_do_not_delay_the_exit() -> None:
    """The interpreter waits for all threads but daemons before it exits."""
    release = threading.Event()

    def is_daemon() -> bool:
        assert release.wait(10)
        return threading.current_thread().daemon

    result = in_background(is_daemon)
    release.set()
    assert result.result(10)


def test_an_error_in_the_background_is_raised_where_the_result_is_asked_for() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_background(fail).result(10)


@pytest.mark.parametrize("odd", [RecursionError("deep"), KeyError("Config"), MemoryError()])
def test_whatever_one_host_causes_is_the_error_of_that_host(
    odd: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    evil, plain, good = connections = [
        HostConnection(Host(name)) for name in ("evil", "plain", "good")
    ]
    causes = {evil: odd, plain: CommandFailed("no space")}

    def ask(connection: HostConnection) -> str:
        if connection in causes:
            raise causes[connection]
        return "fine"

    for _ in range(2):
        results, failures = try_each(connections, ask)
        assert results == {good: "fine"}
        assert [*failures] == [evil, plain]
        assert failures[evil].exit_code is Exit.UNREACHABLE
        assert str(failures[plain]) == "no space"
    [kept] = (tmp_path / "ddpctl").iterdir()  # one, however often the host is asked
    assert str(kept) in str(failures[evil])
    assert type(odd).__name__ in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_what_ends_ddpctl_itself_is_no_hosts_error() -> None:
    def leave(_: HostConnection) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        try_each([HostConnection(Host("gpu0"))], leave)


def test_an_error_keeps_no_answer_in_memory() -> None:
    """`launch --wait` asks for hours, and an answer may have 16 MB."""

    class Answer:
        """What a host has printed."""

    answers = []

    def ask(_: HostConnection) -> None:
        answer = Answer()
        answers.append(weakref.ref(answer))
        try:
            raise ValueError(answer)
        except ValueError:
            raise CommandFailed("not JSON") from None

    gc.disable()
    try:
        _, failures = try_each([HostConnection(Host("gpu1"))], ask)
        assert len(failures) == 1 and answers[0]() is None
    finally:
        gc.enable()
