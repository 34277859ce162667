"""The real command as a process, with a real sshd that answers nonsense beside an honest one: it needs
little memory, ends with the documented exit code, and Ctrl-C ends it at once.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import attempt_record, run_record
from evil_host import force_command
from sshd_server import Sshd

from launcher.outcomes import Exit
from launcher.plan.plan import place_in
from launcher.runs.record import NodeRecord
from launcher.runs.run_folder import RunFolder

MOST_MEMORY = 300_000  # kB
CTRL_C = 3.0  # seconds; a tenth of one on an idle machine
LONGEST = 60.0  # seconds
RUN = "20261122-100000-abcd"
Server = Callable[..., Sshd]
ENDLESS, DEEP = ("endless", "a gzip bomb"), ("deep event", "deep")
COMMANDS = {  # what is nonsense for each, and its exit code
    "check hosts.yaml": (ENDLESS, Exit.UNREACHABLE),
    "ps hosts.yaml": (ENDLESS, Exit.UNREACHABLE),
    f"kill {RUN}": (ENDLESS, Exit.UNCONFIRMED),
    f"logs {RUN}": (DEEP, Exit.DONE),  # an endless journal is copied for minutes
    f"fetch {RUN} --to fetched": (("many rows", "deep"), Exit.UNREACHABLE),
}


@dataclass
class Ended:
    code: int
    text: str
    memory: int  # kB, at most


class Machine:
    """A user whose run is on an honest and on an evil host."""

    def __init__(self, sshd: Server, folder: Path) -> None:
        self.folder, self.kinds, self.output = folder, folder / "kinds", folder / "output"
        (folder / "there").mkdir()
        (folder / "honest").write_text("nothing\nhonest")
        honest = force_command(folder / "honest")
        asked = '"$SSH_ORIGINAL_COMMAND"'
        engine = f"case {asked} in *dial-stdio*) exec {honest};; esac; exec sh -c {asked}"
        self.good = sshd(ForceCommand=engine, SetEnv=f"HOME={folder / 'there'}")
        self.evil = sshd(ForceCommand=force_command(self.kinds))
        config = [
            f"Host {name}\n HostName 127.0.0.1\n Port {server.port}\n IdentityFile {server.user_key}\n"
            for name, server in (("good", self.good), ("evil", self.evil))
        ]
        (self.good.home / ".ssh" / "config").write_text("".join(config))
        hosts = "hosts: [good, evil]\njob: {image: x, command: [train.py]}\n"
        (folder / "hosts.yaml").write_text(hosts)

    def remember_the_run(self) -> None:
        kept = RunFolder(self.folder / "state" / "ddpctl" / "runs" / RUN)
        run_dir = f"{self.folder}/there/.ddpctl/runs/{RUN}"
        nodes = [NodeRecord(0, "good", run_dir), NodeRecord(1, "evil", run_dir)]
        kept.save(run_record(attempt_record(nodes=nodes), hosts=["good", "evil"]))
        kept.hosts_file.write_text((self.folder / "hosts.yaml").read_text())
        place = place_in(run_dir, RUN, 0, 1)
        Path(place.control_dir).mkdir(parents=True, exist_ok=True)
        Path(place.journal).write_text("1700000000.0\t0\tan honest line\n")
        (Path(run_dir) / "output").mkdir(exist_ok=True)
        (Path(run_dir) / "output" / "honest.txt").touch()

    def start(self, line: str, scripts: str, docker: str) -> subprocess.Popen[bytes]:
        self.kinds.write_text(f"{scripts}\n{docker}")
        self.remember_the_run()
        return subprocess.Popen(
            [sys.executable, "-m", "launcher", *line.split()],
            stdout=self.output.open("w"),
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={**os.environ, "XDG_STATE_HOME": str(self.folder / "state")},
        )

    def ended(self, process: subprocess.Popen[bytes]) -> Ended:
        """Wait for its end, and watch its memory meanwhile."""
        memory, end = 0, time.monotonic() + LONGEST
        while process.poll() is None:
            memory = max(memory, peak_memory(process.pid))
            assert memory < 3 * MOST_MEMORY and time.monotonic() < end, f"{memory} kB"
            time.sleep(0.02)
        return Ended(process.returncode, self.output.read_text(), memory)


def peak_memory(pid: int) -> int:
    """The most memory that a process has had so far, in kB; 0 once it has ended."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) if match else 0


@pytest.fixture
def machine(sshd: Server, tmp_path: Path) -> Machine:
    return Machine(sshd, tmp_path)


def test_no_command_grows_beyond_its_budget(machine: Machine) -> None:
    for line, (kinds, code) in COMMANDS.items():
        done = machine.ended(machine.start(line, *kinds))
        assert done.code == code, (line, done)
        assert "internal error" not in done.text and "Traceback" not in done.text, (line, done)
        assert done.memory < MOST_MEMORY, (line, done)
        assert "evil" in done.text, (line, done)
        if line.startswith("logs"):
            assert "[good:0] an honest line\n" in done.text
    assert [*machine.folder.rglob("fetched/**/honest.txt")]


def test_ctrl_c_ends_every_command_while_a_host_is_silent(machine: Machine) -> None:
    for line in COMMANDS:
        sessions = machine.evil.log.read_text().count("Starting session")
        process = machine.start(line, "silent", "silent")
        machine.evil.until("Starting session", sessions + 1)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert machine.ended(process).code == Exit.INTERRUPTED, line
        assert time.monotonic() - began < CTRL_C, line
