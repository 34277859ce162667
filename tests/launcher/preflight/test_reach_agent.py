"""The probe agents for real, on loopback: python3 and perl, each against each."""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.preflight.reach_agent import (
    PERL,
    PYTHON,
    SHELL,
    Dial,
    agent_args,
    parse_answer,
    parse_ready,
)

AGENTS = {"python": [sys.executable, "-c", PYTHON], "perl": ["perl", "-e", PERL]}
pytestmark = pytest.mark.skipif(not shutil.which("perl"), reason="no perl here")


class Agent:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None and process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    def until(self, word: str) -> list[str]:
        lines = []
        for line in self.stdout:
            lines.append(line.strip())
            if lines[-1] == word:
                return lines
        raise AssertionError(f"ended without {word!r}: {lines}")

    def listening(self) -> dict[int, int]:
        ready = parse_ready(self.until("ready"))
        assert ready is not None
        return ready

    def listen(self, port: int) -> dict[int, int]:
        self.stdin.write(f"listen {port}\n")
        self.stdin.flush()
        return self.listening()

    def dial(self, *targets: tuple[str, int]) -> list[str]:
        for key, (address, port) in enumerate(targets):
            self.stdin.write(f"dial {key} {address} {port}\n")
        self.stdin.write("go\n")
        self.stdin.flush()
        return sorted(self.until("done")[:-1])


@contextmanager
def agent(kind: str, name: int, ports: str = "0", token: str = "tok") -> Iterator[Agent]:
    argv = [*AGENTS[kind], str(name), token, ports]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        made = Agent(process)
        try:
            yield made
        finally:
            made.stdin.close()  # is what ends an agent
            assert process.wait(10) == 0


@pytest.mark.parametrize("listener", AGENTS)
@pytest.mark.parametrize("dialer", AGENTS)
def test_each_kind_reaches_each(listener: str, dialer: str) -> None:
    with agent(listener, 0) as a, agent(dialer, 1) as b:
        port = a.listening()[0]
        b.listening()
        assert b.dial(("127.0.0.1", port), ("127.0.0.1", port)) == [
            "dialed 0 ok 0",
            "dialed 1 ok 0",
        ]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refused = closed.getsockname()[1]
        assert b.dial(("127.0.0.1", refused)) == ["dialed 0 refused"]


@pytest.mark.parametrize("kind", AGENTS)
def test_what_answers_with_another_token_is_another_machine(kind: str) -> None:
    with agent("python", 0, token="other") as a, agent(kind, 1) as b:
        port = a.listening()[0]
        b.listening()
        assert b.dial(("127.0.0.1", port)) == ["dialed 0 wrong"]


def reserved_port() -> socket.socket:
    """One that the kernel gives to nobody who asks for any, so that it is still free later."""
    for port in random.sample(range(10_000, 20_000), 100):
        with contextlib.suppress(OSError):
            return socket.create_server(("0.0.0.0", port))
    raise AssertionError("no free port")


@pytest.mark.parametrize("kind", AGENTS)
def test_a_port_in_use_is_said_and_one_that_was_probed_is_free_at_once(kind: str) -> None:
    with reserved_port() as held:
        taken = held.getsockname()[1]
        with agent(kind, 0, f"0,{taken}") as a:
            assert set(a.listening()) == {0}
            assert a.listen(taken) == {}
    with agent(kind, 0) as a, agent("python", 1) as b:
        a.listening()
        assert a.listen(taken) == {taken: taken}
        b.listening()
        assert b.dial(("127.0.0.1", taken)) == ["dialed 0 ok 0"]
    with socket.socket() as again:  # without SO_REUSEADDR: not even TIME_WAIT may be left
        again.bind(("0.0.0.0", taken))


@pytest.mark.parametrize("kind", AGENTS)
def test_a_silent_port_is_a_timeout(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, agent(kind, 0) as a:
        a.listening()
        assert a.dial(("127.0.0.1", mute.getsockname()[1])) == ["dialed 0 timeout"]


def test_the_shell_takes_what_is_there(tmp_path: Path) -> None:
    def first_word(folder: Path) -> str:
        args = agent_args(3, "tok", [0], "")
        done = subprocess.run(
            ["/bin/sh", "-c", SHELL, "sh", *args],
            env={"PATH": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
        )
        return done.stdout.split()[0]

    assert first_word(tmp_path) == "none"
    (tmp_path / "perl").symlink_to(str(shutil.which("perl")))
    assert first_word(tmp_path) == "listening"


def test_dials_are_told_apart_by_their_key() -> None:
    dials = [Dial(1, 0, "10.0.0.1"), Dial(1, 0, "10.0.0.1", is_master_port=True)]
    assert parse_answer("dialed 1 refused", dials) == (dials[1], "refused")


def test_a_perl_without_its_modules_gives_way_to_python(tmp_path: Path) -> None:
    perl = shutil.which("perl")
    (tmp_path / "perl").write_text(
        f'#!/bin/sh\nshift; program=$1; shift\nexec {perl} -e "BEGIN {{ @INC = () }} $program" -- "$@"\n'
    )
    (tmp_path / "perl").chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    argv = ["sh", "-c", SHELL, "sh", *agent_args(0, "tok", [0], "")]
    done = subprocess.run(argv, input="", capture_output=True, text=True, env=env, timeout=60)
    ready = parse_ready(done.stdout.splitlines())
    assert ready is not None and ready[0] > 0, done.stderr
