"""A user on this machine with a home folder, a hosts file for `engine: process` and the real CLI."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from forked_ddpctl import forked_ddpctl
from quick_torchrun import python_with_quick_torchrun

SCRIPT = """
import os, sys, time
rank = int(os.environ["RANK"])
print(f"up {rank} {sys.argv[1:]} attempt {os.environ['DDPCTL_ATTEMPT']}", flush=True)
if os.environ.get("WRITE") and rank == 0:
    open(os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "kept.txt"), "w").write("x" * 1000)
time.sleep(float(os.environ.get("SLEEP", "0")))
if os.environ.get("BAD") == str(rank):
    time.sleep(0.5)
    raise ValueError("boom on purpose")
if os.environ.get("BAD"):
    time.sleep(60)
"""

ON_TERMINAL = """
trap 'exit 42' INT
until stty size | grep -x '17 93'; do sleep 0.1; done
test -t 0 && test -t 2 && echo "$TERM ready"
while :; do sleep 0.1; done
"""


class Machine:
    """One user on this machine: a home, a hosts file, the real CLI, and a torchrun without torch.

    forks: whether commands are forked from this process; otherwise they may be another launcher's.
    """

    forks = True

    def __init__(self, folder: Path, *, real_torchrun: bool = False) -> None:
        self.folder = folder
        self.python = sys.executable if real_torchrun else python_with_quick_torchrun(folder)
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(SCRIPT)
        hosts = [{"host": "local", "gpus": 0}, {"host": "local", "gpus": 0}]
        job = {
            "engine": "process",
            "nproc_per_node": 2,
            "master_port": "auto",
            "command": ["train.py", "two words", "$(x)"],
            "workdir": "code",
        }
        (folder / "hosts.yaml").write_text(json.dumps({"hosts": hosts, "job": job}))
        self.env = {
            **os.environ,
            "HOME": str(folder / "home"),
            "XDG_STATE_HOME": str(folder / "state"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        (folder / "home").mkdir()

    def start(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        line, env = [self.python, "-m", "launcher", *argv], env or self.env
        return subprocess.Popen(
            line,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=env,
            preexec_fn=forked_ddpctl(line, env) if self.forks else None,
        )

    def ddpctl(self, *argv: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        process = self.start(*argv)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, out + err
        return subprocess.CompletedProcess(argv, code, out, err)

    def in_terminal(self, *argv: str) -> tuple[int, str]:
        """Run ddpctl in a terminal of 17 rows and 93 columns. Press Ctrl-C once it shows `ready`."""
        terminal, inside = pty.openpty()
        termios.tcsetwinsize(inside, (17, 93))
        process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "launcher", *argv],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=self.env,
            cwd=self.folder,
        )
        os.close(inside)
        shown = b""
        deadline = time.monotonic() + 60
        try:
            while b"ready" not in shown and time.monotonic() < deadline:
                shown += os.read(terminal, 4096)
            os.write(terminal, b"\x03")
            code = process.wait(60)
        finally:
            process.kill()
            os.close(terminal)
        return code, shown.decode()

    def wait_for_ranks(self) -> None:
        """Wait until all four ranks of the newest run have printed."""
        end = time.monotonic() + 120
        journals = (self.folder / "home" / ".ddpctl" / "runs").glob
        while b"".join(p.read_bytes() for p in journals("*/nodes/*/*/journal")).count(b"\tup ") < 4:
            assert time.monotonic() < end
            time.sleep(0.1)

    def record(self) -> dict[str, Any]:
        [path] = (self.folder / "state" / "ddpctl" / "runs").glob("*/run.json")
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def left(self) -> list[str]:
        """Return the processes with this home in their environment, except this test's own."""
        mark = f"HOME={self.folder / 'home'}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().decode())
            except OSError:
                continue
        return found
