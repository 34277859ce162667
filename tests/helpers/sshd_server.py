"""A real sshd on loopback with its own keys and folders. It runs as the user who runs the tests."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.hosts import Host

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
PS = shutil.which("ps") or "ps"  # a test may empty PATH
START = 20.0  # seconds
USER = pwd.getpwuid(os.getuid()).pw_name


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


@dataclass
class Sshd:
    """One server. options: the values of sshd_config, by keyword."""

    folder: Path
    home: Path
    address: str = "127.0.0.1"
    options: dict[str, str] = field(default_factory=dict)
    host_key_kinds: tuple[str, ...] = ("ed25519",)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        if not Path(SSHD).exists():
            absent = pytest.fail if os.environ.get("CI") else pytest.skip
            absent("NO SSHD: install openssh-server, or run scripts/test-setup")
        self.folder.mkdir(parents=True)
        self.port = self.port or free_port(self.address)
        self.host_keys = [keygen(self.folder / f"host_{k}", k) for k in self.host_key_kinds]
        self.authorized = self.folder / "authorized_keys"
        self.user_key = keygen(self.folder / "user")
        self.authorize(self.user_key)

    def authorize(self, key: Path) -> None:
        with self.authorized.open("a") as file:
            file.write(Path(f"{key}.pub").read_text())

    def start(self) -> Sshd:
        lines = {
            "Port": str(self.port),
            "ListenAddress": self.address,
            "AuthorizedKeysFile": str(self.authorized),
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PidFile": "none",
            "LogLevel": "VERBOSE",
            "SetEnv": f"HOME={self.home}",  # the login shell must not read your ~/.bashrc
            **self.options,
        }
        config = self.folder / "sshd_config"
        rows = [f"{key} {value}" for key, value in lines.items()]
        rows += [f"HostKey {key}" for key in self.host_keys]
        config.write_text("\n".join(rows) + "\n")
        self.log = self.folder / "sshd.log"
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd drops its privileges
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        self.until("Server listening")
        return self

    def until(self, sign: str, count: int = 1) -> None:
        """Wait until the server has logged `sign` `count` times."""
        end = time.monotonic() + START
        while self.log.read_text().count(sign) < count:
            assert self.process and self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, f"no {sign!r} in {self.log.read_text()}"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process:
            for pid in self.descendants():
                with_suppress_kill(pid)
            self.process.kill()
            self.process.wait()
            self.process = None

    def descendants(self) -> list[int]:
        """Return the ids of all running processes that this server started."""
        assert self.process
        found, todo = [], [self.process.pid]
        while todo:
            done = subprocess.run(
                [PS, "-o", "pid=", "--ppid", str(todo.pop())], capture_output=True, check=False
            )
            children = [int(pid) for pid in done.stdout.split()]
            found += children
            todo += children
        return found

    def know(self, name: str | None = None, *, kinds: tuple[str, ...] | None = None) -> None:
        """Write this server's host keys to ~/.ssh/known_hosts."""
        with (self.home / ".ssh" / "known_hosts").open("a") as file:
            for key in self.host_keys:
                kind, blob, *_ = Path(f"{key}.pub").read_text().split()
                if kinds is None or kind in kinds:
                    file.write(f"{name or self.known_as} {kind} {blob}\n")

    @property
    def known_as(self) -> str:
        return f"[{self.address}]:{self.port}"

    def fingerprint(self, index: int = 0) -> str:
        done = subprocess.run(
            ["ssh-keygen", "-l", "-f", f"{self.host_keys[index]}.pub"],
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout.split()[1]

    def host(self, **changes: object) -> Host:
        values: dict[str, object] = {
            "host": self.address,
            "port": self.port,
            "identity_file": str(self.user_key),
        }
        return Host(**(values | changes))  # type: ignore[arg-type]


def with_suppress_kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


@contextmanager
def ssh_agent(folder: Path) -> Iterator[Path]:
    """Context manager: run an ssh-agent and yield its socket."""
    path = folder / "agent.sock"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        yield path
    finally:
        agent.terminate()
        agent.wait()


def add_to_agent(agent: Path, key: Path, passphrase: str = "") -> None:
    """Add a key to the agent, as a user who types its passphrase would."""
    answer = key.parent / "answer"
    answer.write_text(f"#!/bin/sh\necho '{passphrase}'\n")
    answer.chmod(0o700)
    environment = {
        "SSH_AUTH_SOCK": str(agent),
        "SSH_ASKPASS": str(answer),
        "SSH_ASKPASS_REQUIRE": "force",
        "DISPLAY": ":0",
        "PATH": os.environ["PATH"],
    }
    subprocess.run(
        ["ssh-add", "-q", str(key)],
        env=environment,
        check=True,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
