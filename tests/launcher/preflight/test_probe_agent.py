"""The probe agent for real, on loopback."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.preflight import probe
from launcher.preflight.probe import AGENT, START_AGENT, parse_dialed
from launcher.preflight.reach import Dial


class Agent:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None and process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout

    def listen(self, port: int = 0) -> int:
        """The actual port, or 0."""
        self.stdin.write(f"listen {port}\n")
        self.stdin.flush()
        order, asked, actual = self.stdout.readline().split()
        assert (order, asked) == ("listening", str(port))
        return int(actual)

    def dial(self, *targets: tuple[str, int]) -> list[str]:
        """Each report, without the seconds of the good ones."""
        for key, (address, port) in enumerate(targets):
            self.stdin.write(f"dial {key} {address} {port}\n")
        self.stdin.flush()
        lines = [self.stdout.readline().strip() for _ in targets]
        return sorted(re.sub(r" \d+\.\d{3}$", "", line) for line in lines)


@contextmanager
def agent(name: int, token: str = "tok") -> Iterator[Agent]:
    argv = [sys.executable, "-c", probe.AGENT, str(name), token]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        made = Agent(process)
        try:
            yield made
        finally:
            made.stdin.close()  # is what ends an agent
            assert process.wait(10) == 0


def test_an_agent_dials_as_often_as_it_is_told_and_reports_each_dial() -> None:
    with agent(0) as a, agent(1) as b:
        port = a.listen()
        assert b.dial(("127.0.0.1", port), ("127.0.0.1", port), ("::1", port)) == [
            "dialed 0 ok 0",
            "dialed 1 ok 0",
            "dialed 2 ok 0",
        ]
        with socket.create_server(("127.0.0.1", 0)) as closed:
            refused = closed.getsockname()[1]
        assert b.dial(("127.0.0.1", refused)) == ["dialed 0 refused"]


def test_an_answer_with_another_token_is_another_machine() -> None:
    with agent(0, token="other") as a, agent(1) as b:
        port = a.listen()
        assert b.dial(("127.0.0.1", port)) == ["dialed 0 wrong"]


@pytest.mark.parametrize("greeting", [b"\xff\xfe\n", b"tok zzz\n", b"tok 1 2\n", b"tok " * 99])
def test_an_answer_that_is_nonsense_is_another_machine(greeting: bytes) -> None:
    """Otherwise, this host would report nothing and count as the one that is slow."""
    with socket.create_server(("127.0.0.1", 0)) as odd, agent(0) as a:
        a.stdin.write(f"dial 0 127.0.0.1 {odd.getsockname()[1]}\n")
        a.stdin.flush()
        with odd.accept()[0] as peer:
            peer.sendall(greeting)
        assert a.stdout.readline() == "dialed 0 wrong\n"


def test_an_answer_that_drips_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as slow, agent(0) as a:
        a.stdin.write(f"dial 0 127.0.0.1 {slow.getsockname()[1]}\n")
        a.stdin.flush()
        for _ in range(2):  # it is tried once more
            with slow.accept()[0] as peer, contextlib.suppress(ConnectionError):
                for _ in range(40):
                    peer.sendall(b"t")
                    time.sleep(0.05)
        assert a.stdout.readline() == "dialed 0 timeout\n"


def reserved_port() -> socket.socket:
    """Outside the range that the kernel hands out, so that it is still free later."""
    for port in random.sample(range(10_000, 20_000), 100):
        with contextlib.suppress(OSError):
            return socket.create_server(("0.0.0.0", port))
    raise AssertionError("no free port")


def test_a_taken_port_is_not_listened_on_and_a_probed_one_is_free_at_once() -> None:
    with reserved_port() as held:
        taken = held.getsockname()[1]
        with agent(0) as a:
            assert a.listen(taken) == 0
    with agent(0) as a, agent(1) as b:
        assert a.listen(taken) == taken
        assert b.dial(("127.0.0.1", taken)) == ["dialed 0 ok 0"]
    with socket.socket() as again:  # without SO_REUSEADDR: not even TIME_WAIT may be left
        again.bind(("0.0.0.0", taken))


def test_a_silent_port_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as mute, agent(0) as a:
        assert a.dial(("127.0.0.1", mute.getsockname()[1])) == ["dialed 0 timeout"]


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an agent wait for an answer only a moment."""
    short = probe.AGENT.replace("DIAL_TIMEOUT = 3.0", "DIAL_TIMEOUT = 0.2")
    monkeypatch.setattr(probe, "AGENT", short)


def test_a_timeout_is_tried_once_more_and_the_time_of_both_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as slow, agent(0) as a:
        a.stdin.write(f"dial 0 127.0.0.1 {slow.getsockname()[1]}\n")
        a.stdin.flush()
        _silent, (second, _) = slow.accept(), slow.accept()
        second.sendall(b"tok 7\n")
        line = a.stdout.readline().strip()
    dial = Dial(0, 7, "127.0.0.1")
    result = parse_dialed(line, [dial])[dial]
    assert result.ok and 0.2 <= result.seconds < 2


def started(path: Path, *in_image: str) -> str:
    """What the script prints with these programs and this command for the image."""
    done = subprocess.run(
        ["/bin/sh", "-c", START_AGENT, "sh", AGENT, "3", "tok", *in_image],
        env={"PATH": str(path)},
        input="listen 0\n",
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.stdout


@pytest.mark.skipif(
    Path("/usr/libexec/platform-python").exists(), reason="this machine always has a Python"
)
def test_the_agent_runs_on_the_hosts_python_or_in_the_image_or_not_at_all(tmp_path: Path) -> None:
    assert started(tmp_path) == ""
    assert started(tmp_path, "/bin/echo", "in the image").startswith("in the image -ISc")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")  # there, but of no use
    (tmp_path / "python3").chmod(0o755)
    assert started(tmp_path) == ""
    (tmp_path / "python3").unlink()
    (tmp_path / "python3").symlink_to(sys.executable)
    assert re.fullmatch(r"listening 0 \d+\n", started(tmp_path, "/bin/echo", "in the image"))
