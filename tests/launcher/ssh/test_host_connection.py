"""Commands and streams, over SSH and on this machine."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paramiko import Message
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_EOF
from sshd_server import Sshd
from supervisors import until

from launcher.errors import CommandFailed, CommandTimeout, HostUnreachable, NodesFailed
from launcher.hosts import Host
from launcher.ssh.background import in_background
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.local import LocalMachine, LocalStream
from launcher.ssh.many import ask_each, each_node
from launcher.ssh.shell import command_line, framed

MIB = 1024 * 1024


@pytest.fixture(params=["ssh", "local"])
def machine(
    request: pytest.FixtureRequest,
    sshd: Callable[..., Sshd],
    connect_to: Callable[..., HostConnection],
) -> HostConnection:
    return connect_to(sshd().host() if request.param == "ssh" else Host("local"))


def test_a_command_returns_both_outputs_and_its_code(machine: HostConnection) -> None:
    done = machine.run(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (done.code, done.stdout, done.stderr) == (3, b"in", b"err\n")


def test_closing_does_not_wait_for_a_resource_that_a_silent_host_delays() -> None:
    """As with Ctrl-C in `ps` while an engine or sshd does not answer."""
    connection = HostConnection(Host("local"))
    asked, answered = threading.Event(), threading.Event()

    def make() -> None:
        asked.set()
        answered.wait(60)

    threading.Thread(target=connection.resource, args=[make], daemon=True).start()
    assert asked.wait(20)
    closing = threading.Thread(target=connection.close, daemon=True)
    closing.start()
    closing.join(20)
    is_waiting = closing.is_alive()
    answered.set()
    assert not is_waiting


def test_a_command_runs_while_a_thousand_descriptors_are_open(machine: HostConnection) -> None:
    """As while hundreds of hosts are connected."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert machine.run(["cat"], stdin=b"in").stdout == b"in"
        with machine.open(["cat"]) as stream:
            stream.write(b"in", timeout=20)
            assert stream.read(timeout=20) == b"in"
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_large_outputs_on_both_streams_do_not_block(
    machine: HostConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * MIB
    monkeypatch.setattr("launcher.ssh.stream.STDERR_TAIL", 2 * size)
    script = f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero; head -c {size} /dev/zero >&2"
    done = machine.run(["sh", "-c", script])
    assert (done.code, len(done.stdout), len(done.stderr)) == (0, size, 2 * size)


def test_key_exchanges_during_large_outputs_do_not_block(
    sshd: Callable[..., Sshd],
    connect_to: Callable[..., HostConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paramiko.packet.Packetizer.REKEY_BYTES", MIB)  # 512 MiB by default
    size = 8 * MIB
    monkeypatch.setattr("launcher.ssh.stream.STDERR_TAIL", size)
    script = f"head -c {size} /dev/zero >&2; head -c {size} /dev/zero"
    done = connect_to(sshd(RekeyLimit="1500K").host()).script(script, limit=size)
    assert (len(done.stdout), len(done.stderr)) == (size, size)


def test_input_larger_than_any_buffer_arrives(machine: HostConnection) -> None:
    data = os.urandom(8 * MIB)
    assert machine.run(["cat"], stdin=data, limit=len(data)).stdout == data


def test_a_command_need_not_read_its_input(machine: HostConnection) -> None:
    done = machine.run(["sh", "-c", "exit 4"], stdin=b"x" * (4 * MIB))
    assert done.code == 4


def test_a_late_end_of_input_does_not_break_the_connection(
    sshd: Callable[..., Sshd],
    connect_to: Callable[..., HostConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = connect_to(sshd().host())
    watching = machine.open(["sleep", "60"])
    transport = machine._machine._connections[0]  # type: ignore[attr-defined]
    send, closed = transport._send_user_message, threading.Event()

    def late(message: Message) -> None:
        kind = message.asbytes()[0]
        if kind == MSG_CHANNEL_EOF:
            closed.wait(0.5)  # the command has ended and paramiko has sent its CLOSE
        send(message)
        if kind == MSG_CHANNEL_CLOSE:
            closed.set()

    monkeypatch.setattr(transport, "_send_user_message", late)
    assert machine.run(["true"]).code == 0
    monkeypatch.undo()
    assert machine.run(["true"]).code == 0
    assert transport.is_active() and watching.is_alive()
    watching.close()


AWKWARD = [
    "a b",
    "",
    "'single' \"double\"",
    "$(touch oops) `touch oops` $HOME",
    "line\nline\n",
    "back\\slash\\n \\0101 \\\\",
    "!history! *?[a] ~ # ; & | < >",
    "-n",
    "%s%d",
    "tab\tcr\rbell\a",
    os.fsdecode(b"latin1 \xe9\xff\x80"),
    "ünïcode ☃",
]


def test_arguments_arrive_unchanged(machine: HostConnection) -> None:
    done = machine.run(["printf", "%s\\0", *AWKWARD])
    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in AWKWARD]
    assert machine.run(["ls"]).stdout == b""  # nothing was expanded into a command


SHELLS = ("bash", "dash", "zsh", "tcsh", "fish")  # those that are installed


@given(st.lists(st.text(alphabet="a !'\\\n$`\"", max_size=9), max_size=3))
def test_a_command_line_has_no_characters_that_shells_read_differently(words: list[str]) -> None:
    line = command_line(["printf", *words])
    assert not set(b"!\n") & set(line)  # csh interprets these in single quotes
    assert re.sub(rb"\\0[0-7]{3}", b"", line).count(b"\\") == 0  # and fish backslashes


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.binary(min_size=0, max_size=40).filter(lambda b: b"\0" not in b), max_size=4))
def test_any_bytes_pass_through_a_login_shell(words: list[bytes]) -> None:
    command, frame = framed(["printf", "%s\\0", *map(os.fsdecode, words)])
    line = command_line(command)
    for shell in filter(shutil.which, SHELLS):
        done = subprocess.run([shell, "-c", line], capture_output=True, check=True)
        assert done.stdout.removeprefix(frame).split(b"\0")[:-1] == (words or [b""])


GREETINGS = {
    "a line": "echo 'Welcome to gpu1'",
    "a line without an end": "printf 'Welcome'",
    "the command": 'echo "$SSH_ORIGINAL_COMMAND"',
    "200 KB": "head -c 200000 /dev/zero",
}


@pytest.mark.parametrize("greeting", GREETINGS)
def test_output_of_the_login_shell_is_not_output_of_the_command(
    sshd: Callable[..., Sshd],
    connect_to: Callable[..., HostConnection],
    tmp_path: Path,
    greeting: str,
) -> None:
    server = sshd(ForceCommand=f'{GREETINGS[greeting]}; exec sh -c "$SSH_ORIGINAL_COMMAND"')
    machine = connect_to(server.host())
    assert machine.run(["printf", "%s", "a\nb"]).stdout == b"a\nb"
    done = machine.script('printf %s "$1"; cat; exit 3', "x y", stdin=b"in")
    assert (done.code, done.stdout) == (3, b"x yin")
    journal = tmp_path / "journal"
    journal.write_bytes(b"0123456789")
    with machine.open_script('tail -c "+$1" -F "$2"', "4", str(journal), stdin=False) as stream:
        assert stream.read(2) == b"34"
        assert stream.read() == b"56789"


@pytest.mark.parametrize("shell", ["echo 'Not available.'; exit 1", "yes"])
def test_a_login_shell_that_runs_no_command_is_named(
    sshd: Callable[..., Sshd], connect_to: Callable[..., HostConnection], shell: str
) -> None:
    machine = connect_to(sshd(ForceCommand=shell).host())
    for use in (lambda: machine.run(["true"]), lambda: machine.open(["cat"])):
        with pytest.raises(
            CommandFailed, match=r"^127.*the login shell does not run `sh`: it"
        ) as e:
            use()
        assert len(str(e.value)) < 400


def test_no_terminal_escape_of_a_host_is_in_an_error(
    sshd: Callable[..., Sshd], connect_to: Callable[..., HostConnection]
) -> None:
    machine = connect_to(
        sshd(ForceCommand=r"printf '\033]0;owned\007\033[31mhello\r'; exit 1").host()
    )
    with pytest.raises(CommandFailed) as caught:
        machine.run(["true"])
    assert "hello" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("folder", ["nowhere", ""])
def test_a_home_folder_that_is_not_absolute_is_an_error(
    sshd: Callable[..., Sshd], connect_to: Callable[..., HostConnection], folder: str
) -> None:
    machine = connect_to(
        sshd(ForceCommand=f'HOME={folder} exec sh -c "$SSH_ORIGINAL_COMMAND"').host()
    )
    with pytest.raises(CommandFailed, match=r"\$HOME is `.*`, which is not an absolute path"):
        machine.home()


def test_a_login_shell_that_hangs_is_named(
    sshd: Callable[..., Sshd],
    connect_to: Callable[..., HostConnection],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("launcher.ssh.host_connection.START_TIMEOUT", 0.3)
    machine = connect_to(sshd(ForceCommand="sleep 60").host())
    with pytest.raises(CommandTimeout, match="the login shell did not start `cat` within"):
        machine.open(["cat"])


def test_an_argument_with_a_null_byte_is_an_error(machine: HostConnection) -> None:
    with pytest.raises(ValueError, match="null byte"):
        machine.run(["echo", "a\0b"])


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_a_signal_is_reported_as_128_plus_its_number(machine: HostConnection, name: str) -> None:
    done = machine.run(["sh", "-c", f"kill -{name} $$"])
    assert done.code == 128 + signal.Signals[f"SIG{name}"]


def test_a_missing_command_exits_with_127(machine: HostConnection) -> None:
    done = machine.run(["no-such-command-here"])
    assert done.code == 127
    assert b"not found" in done.stderr


def test_a_command_that_hangs_times_out(machine: HostConnection) -> None:
    start = time.monotonic()
    with pytest.raises(CommandTimeout, match=r"`sleep` did not end within 0\.3s"):
        machine.run(["sleep", "60"], timeout=0.3)
    assert time.monotonic() - start < 5
    assert machine.run(["echo", "still here"]).stdout == b"still here\n"


def test_a_command_that_prints_without_end_is_stopped(
    machine: HostConnection, tmp_path: Path
) -> None:
    script = 'echo $$ > "$1"; exec cat /dev/zero'
    with pytest.raises(
        CommandFailed, match=r"`sh` printed more than 1 MB and was stopped; .*"
    ) as error:
        machine.script(script, str(tmp_path / "pid"), limit=1_000_000)
    assert "\n" not in str(error.value)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_running(pid), 20)


def test_the_deadline_holds_for_a_command_that_never_pauses(
    machine: HostConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(LocalStream):
        def read(self, size: int = 0, timeout: float | None = None) -> bytes:
            return b"x"

    endless = Endless(["sleep", "600"], stdin=True, tty=None)
    monkeypatch.setattr(machine._machine, "open", lambda *_, **__: endless)
    with pytest.raises(CommandTimeout, match=r"did not end within 0\.1s"):
        machine.run(["sleep"], timeout=0.1, limit=10_000_000)
    assert not endless.is_alive()


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_command_starts_in_the_home_folder(machine: HostConnection) -> None:
    account = machine.run(["sh", "-c", 'getent passwd "$(id -u)" | cut -d: -f6']).stdout
    expected = machine.home().encode() if machine.host.is_local else account.strip()
    assert machine.run(["pwd"]).stdout.strip() == expected


def test_a_stream_is_read_written_and_waited_for(machine: HostConnection) -> None:
    with machine.open(["sh", "-c", "echo ready >&2; cat; exit 7"]) as stream:
        stream.write(b"one")
        assert stream.read() == b"one"
        with pytest.raises(TimeoutError):
            stream.read(timeout=0.1)
        stream.write(b"two")
        assert stream.read() == b"two"
        with pytest.raises(TimeoutError):
            stream.wait(0.1)
        stream.close_stdin()
        assert stream.read() == b""
        assert stream.wait(5) == 7
        assert stream.stderr_tail() == "ready"


def test_writing_to_a_command_that_has_ended_is_a_broken_pipe(machine: HostConnection) -> None:
    with machine.open(["true"]) as stream:
        assert stream.read() == b""
        assert stream.wait(5) == 0
        with pytest.raises(BrokenPipeError):
            for _ in range(200):
                stream.write(b"x" * MIB)


def test_stderr_does_not_block_a_command_that_is_only_written_to(machine: HostConnection) -> None:
    with machine.open(["sh", "-c", f"head -c {4 * MIB} /dev/zero >&2; cat; echo end >&2"]) as s:
        s.write(b"x")
        assert s.read(timeout=20) == b"x"
        s.close_stdin()
        assert s.wait(10) == 0
        assert s.stderr_tail().endswith("end")


def test_tail_follows_a_file_and_ends_with_the_stream(
    machine: HostConnection, tmp_path: Path
) -> None:
    journal = tmp_path / "journal with space"
    journal.write_text("first\n")
    with machine.open(["tail", "-c", "+1", "-F", str(journal)], stdin=False) as stream:
        assert stream.read() == b"first\n"
        with journal.open("a") as file:
            file.write("second\n")
        assert stream.read(timeout=10) == b"second\n"
        assert _running(str(journal))
    until(lambda: not _running(str(journal)), 10)


def test_a_silent_command_ends_with_its_stream(machine: HostConnection) -> None:
    with machine.open(["sh", "-c", "echo $$; exec sleep 600"], stdin=False) as stream:
        pid = int(stream.read())
        os.kill(pid, 0)
    until(lambda: not is_running(pid), 10)


def test_on_a_terminal_a_command_gets_its_size_and_ctrl_c_and_its_exit_code_arrives(
    machine: HostConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TERM": "vt102", "COLUMNS": "93", "LINES": "17"}.items():
        monkeypatch.setenv(name, value)
    script = """
        trap 'exit 42' INT
        echo "$TERM $(stty size)"
        until stty size | grep -x '30 40'; do sleep 0.05; done
        test -t 0 && test -t 2 && echo ready >/dev/tty
        while :; do sleep 0.05; done
    """
    with machine.open(["sh", "-c", script], tty=True) as stream:
        shown = stream.read(timeout=10)
        stream.resize(30, 40)
        while b"ready" not in shown:
            shown += stream.read(timeout=10)
        stream.write(b"\x03")
        while stream.read(timeout=10):
            pass
        first = shown.partition(b"\r\n")[0]
        assert (first, stream.wait(10), stream.read_stderr()) == (b"vt102 17 93", 42, b"")


@pytest.mark.parametrize("how", [{"tty": True}, {"stdin": False}, {"stdin": False, "tty": False}])
def test_what_a_command_has_started_ends_with_its_stream(
    machine: HostConnection, how: dict[str, bool]
) -> None:
    with machine.open(["sh", "-c", "sleep 600 & echo $$ $!; wait"], **how) as stream:  # type: ignore[arg-type]
        pids = [int(word) for word in stream.read(timeout=10).split()]
        assert len(pids) == 2
    until(lambda: not any(map(is_running, pids)), 10)


def test_stderr_that_nobody_collects_is_read_as_it_arrives(machine: HostConnection) -> None:
    script = f"echo out; head -c {4 * MIB} /dev/zero >&2; exit 3"
    with machine.open(["sh", "-c", script], stdin=False, tty=False) as stream:
        size = 0
        while data := stream.read_stderr():
            size += len(data)
        assert (stream.read(), stream.read(), size, stream.wait(10)) == (b"out\n", b"", 4 * MIB, 3)


def test_without_stdin_the_exit_code_is_still_reported(machine: HostConnection) -> None:
    for script, code in (("cat; exit 9", 9), ("kill -9 $$", 137)):
        with machine.open(["sh", "-c", script], stdin=False) as stream:
            assert stream.read(timeout=10) == b""
            assert stream.wait(10) == code


def test_many_threads_share_one_node(machine: HostConnection) -> None:
    def work(n: int) -> bytes:
        return machine.run(["sh", "-c", f"sleep 0.2; echo {n}"]).stdout

    with ThreadPoolExecutor(25) as pool:
        assert [*map(int, pool.map(work, range(25)))] == [*range(25)]


def test_all_results_and_all_errors_are_returned(
    sshd: Callable[..., Sshd], connect_to: Callable[..., HostConnection]
) -> None:
    server = sshd()
    good = [connect_to(server.host()), connect_to(Host("local")), connect_to(server.host())]
    refused = connect_to(server.host(port=1))
    unnamed = connect_to(Host("no-such-host.invalid"))
    connections = [good[0], refused, good[1], unnamed, good[2]]
    answers, failures = ask_each(connections, lambda n: n.run(["echo", n.name]).stdout)
    assert answers == {
        "127.0.0.1": b"127.0.0.1\n",
        "local": b"local\n",
        "127.0.0.1 (3)": b"127.0.0.1\n",
    }
    assert set(failures) == {"127.0.0.1 (2)", "no-such-host.invalid"}
    assert "connection refused" in str(failures["127.0.0.1 (2)"])
    with pytest.raises(NodesFailed) as caught:
        each_node(connections, HostConnection.connect)
    assert caught.value.exit_code == 4
    assert set(caught.value.failures) == set(failures)
    assert len(str(caught.value).splitlines()) == 2


def test_each_node_runs_concurrently_and_returns_in_order(
    connect_to: Callable[..., HostConnection],
) -> None:
    connections = [connect_to(Host("local")) for _ in range(6)]
    together = threading.Barrier(6, timeout=10)
    found = each_node(connections, lambda n: (together.wait(), connections.index(n))[1])
    assert list(found) == connections
    assert list(found.values()) == list(range(6))


def test_what_ddpctl_cannot_handle_is_the_error_of_the_host_that_caused_it(
    connect_to: Callable[..., HostConnection],
) -> None:
    with pytest.raises(NodesFailed, match="local: ddpctl could not handle its answer"):
        each_node([connect_to(Host("local"))], lambda n: 1 // 0)


def test_a_lost_connection_is_an_error_not_an_exit_code(
    sshd: Callable[..., Sshd], connect_to: Callable[..., HostConnection]
) -> None:
    server = sshd()
    machine = connect_to(server.host())
    with machine.open(["sh", "-c", "echo up; sleep 60"]) as stream:
        assert stream.read() == b"up\n"
        server.stop()
        with pytest.raises(HostUnreachable, match=r"127\.0\.0\.1: connection lost"):
            stream.read(timeout=10)
        with pytest.raises(HostUnreachable, match="connection lost"):
            stream.wait(10)
    with pytest.raises(HostUnreachable, match="connection refused"):
        machine.run(["true"])


def test_a_lost_connection_is_replaced(
    sshd: Callable[..., Sshd], connect_to: Callable[..., HostConnection]
) -> None:
    server = sshd()
    machine = connect_to(server.host())
    machine.connect()
    server.stop()
    server.start()
    assert machine.run(["echo", "back"]).stdout == b"back\n"


def _running(word: str) -> bool:
    found = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True)
    return any(line.startswith("tail") and word in line for line in found.stdout.splitlines())


@pytest.mark.parametrize(("stdin", "tty"), [(False, None), (True, True)])
def test_a_command_that_starts_while_this_machine_is_closed_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, stdin: bool, tty: bool | None
) -> None:
    """After `close`, ddpctl exits, and no thread could end what another thread has started."""
    machine, started = LocalMachine(), list[subprocess.Popen[bytes]]()

    class Slow(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            started.append(self)
            time.sleep(0.5)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    opening = in_background(machine.open, ["sleep", "60"], stdin=stdin, tty=tty, timeout=5)
    until(lambda: bool(started), 10)
    machine.close()
    assert started[0].poll() is not None
    opening.result(5).close()


def test_nothing_starts_once_this_machine_is_closed(tmp_path: Path) -> None:
    machine = LocalMachine()
    machine.close()
    with pytest.raises(CommandFailed, match="cannot start touch: the connection has been closed"):
        machine.open(["touch", str(tmp_path / "started")], stdin=False, tty=None, timeout=5)
    machine.connect()
    assert machine.open(["true"], stdin=False, tty=None, timeout=5).wait(5) == 0
    assert not (tmp_path / "started").exists()
