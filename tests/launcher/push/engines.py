"""Docker Engines of the tests' own, beside the machine's: each with a root folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

START = 30.0  # seconds
BRIDGE = "ddpctl-none0"  # nothing is on it; --bridge=none would take the machine's docker0 away


def make_bridge() -> None:
    if Path("/sys/class/net", BRIDGE).exists():
        return
    add = ["ip", "link", "add", BRIDGE, "type", "bridge"]
    subprocess.run(add, check=False, capture_output=True)  # another test may be first
    address = ["ip", "address", "replace", "198.18.255.1/24", "dev", BRIDGE]
    subprocess.run(address, check=True, capture_output=True)


def missing() -> str:
    """Why no engine can be had here; "" when one can."""
    if os.geteuid() != 0:
        return "a second dockerd needs root"
    if not shutil.which("dockerd"):
        return "no dockerd"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no Docker Engine answers"
    return ""


@dataclass
class Engine:
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def start(self) -> Engine:
        self.folder.mkdir(parents=True)
        make_bridge()
        argv = ["dockerd", "--host", self.address, f"--bridge={BRIDGE}", "--iptables=false"]
        argv += ["--ip-masq=false", "--ip-forward=false"]
        for flag in ("data-root", "exec-root", "pidfile"):
            argv.append(f"--{flag}={self.folder / flag}")
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START
        while subprocess.run(self.argv("info"), capture_output=True, check=False).returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < end
            time.sleep(0.1)
        return self

    def argv(self, *words: str) -> list[str]:
        return ["docker", "--host", self.address, *words]

    def ask(self, *words: str) -> str:
        done = subprocess.run(self.argv(*words), capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(START)
            mounts = Path("/proc/mounts").read_text().splitlines()
            for line in reversed(mounts):
                if line.split()[1].startswith(f"{self.folder}/"):
                    subprocess.run(["umount", "-l", line.split()[1]], check=False)
