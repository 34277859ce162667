"""`ddpctl exec` on simulated hosts: over SSH, in real containers, from any machine."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import termios
from pathlib import Path

import pytest
from cluster import TRAINER_IMAGE, Cluster, Home, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ON_TERMINAL = """
trap 'exit 42' INT
until stty size | grep -x '17 93'; do sleep 0.1; done
test -t 1 && echo first
until stty size | grep -x '30 40'; do sleep 0.1; done
echo second
while :; do sleep 0.1; done
"""


def test_a_command_in_a_container_of_a_live_run(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml", image=TRAINER_IMAGE, workdir=str(code), command=["train.py"]
    )
    launched = home.ddpctl("launch", hosts, "--detach", "--no-check", "--env", "TOKEN=a b")
    assert launched.returncode == 0, launched.stderr
    run_id = launched.stdout.strip()

    script = 'echo "$DDPCTL_NODE_RANK $TOKEN $(pwd)"; seq 100000; echo err >&2; exit 3'
    done = home.ddpctl("exec", "--node", "1", "--", "sh", "-c", script)
    first, *numbers = done.stdout.splitlines()
    assert (done.returncode, first, done.stderr) == (3, "1 a b /workspace", "err\n")
    assert numbers == [str(i) for i in range(1, 100001)]

    shutil.rmtree(home.state)  # the launching machine is lost; another one asks
    other = cluster.home_at(tmp_path / "machine B")
    every = other.ddpctl("exec", "--hosts", hosts, "--all", "--", "sh", "-c", "echo $HOSTNAME")
    assert every.returncode == 0, every.stderr
    assert sorted(every.stdout.splitlines()) == [f"[node{i}] node{i}" for i in range(3)]

    given = "x\n" * 200_000
    piped = other.ddpctl("exec", "-i", "--rank", "2", "--", "sha256sum", input=given)
    here = subprocess.run(["sha256sum"], input=given, capture_output=True, text=True)
    assert piped.stdout == here.stdout, piped.stderr

    assert other.ddpctl("exec", "--", "no-such-command").returncode in (126, 127)
    with_terminal(other)
    assert other.ddpctl("kill", run_id).returncode == 0
    ended = other.ddpctl("exec", run_id, "--", "true")
    assert ended.returncode == 2 and "is not running" in ended.stderr


def with_terminal(home: Home, *where: str) -> None:
    """The command gets the size of the terminal, its changes, and Ctrl-C."""
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (17, 93))
    line = ["exec", "-t", *where, "--", "sh", "-c", ON_TERMINAL]
    before = termios.tcgetattr(inside)
    process = home.start(
        *line, stdin=inside, stdout=inside, stderr=inside, preexec_fn=_take_terminal
    )
    shown = b""

    def shows(word: bytes) -> bool:
        nonlocal shown
        shown += os.read(terminal, 4096)
        return word in shown

    try:
        until(lambda: shows(b"first"), 60, "the command sees the terminal's size")
        termios.tcsetwinsize(terminal, (30, 40))
        until(lambda: shows(b"second"), 30, "the command sees the new size")
        os.write(terminal, b"\x03")
        assert process.wait(30) == 42, shown
        assert termios.tcgetattr(inside) == before
    finally:
        process.kill()
        os.close(inside)
        os.close(terminal)


def _take_terminal() -> None:
    """stdin becomes the controlling terminal of the new process, which gets its SIGWINCH."""
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))
