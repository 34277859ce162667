"""Hosts on this machine without a container engine: network namespaces with an sshd each.

hub (a bridge) --- this machine  10.213.N.254
               --- host 1        10.213.N.1     own names, own firewall, own interfaces
               --- host 2 ...
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

NEEDED = ("ip", "iptables", "ssh", "sshd", "ssh-keygen", "unshare")


def lacking() -> str:
    """Why this machine cannot have such hosts, or nothing."""
    missing = [tool for tool in NEEDED if shutil.which(tool, path=_PATH) is None]
    if os.geteuid() != 0:
        return "not root"
    return f"no {', '.join(missing)}" if missing else ""


_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def run(*argv: str) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**os.environ, "PATH": _PATH}, timeout=30
    )
    if done.returncode != 0:
        raise RuntimeError(f"{argv}: {done.stderr}")
    return done.stdout


class Namespaces:
    """Made by `up`, gone after `down`. Hosts are counted from 1."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self.tag = f"dc{os.getpid() % 10000}"
        self.net = f"10.213.{os.getpid() % 250}"
        self.home = folder / "home"  # of this machine's user; also where hosts keep ~/.ddpctl
        self.sshds: list[subprocess.Popen[bytes]] = []

    def address(self, host: int) -> str:
        return f"{self.net}.{host}"

    def inside(self, host: int, *argv: str) -> str:
        return run("ip", "netns", "exec", f"{self.tag}-{host}", *argv)

    def up(self) -> None:
        self._keys()
        run("ip", "netns", "add", f"{self.tag}-hub")
        run("ip", "-n", f"{self.tag}-hub", "link", "add", "name", "hub0", "type", "bridge")
        run("ip", "-n", f"{self.tag}-hub", "link", "set", "hub0", "up")
        self._plug(f"{self.tag}-up", None, 254)
        for host in range(1, self.count + 1):
            run("ip", "netns", "add", f"{self.tag}-{host}")
            run("ip", "-n", f"{self.tag}-{host}", "link", "set", "lo", "up")
            self._plug("eth0", f"{self.tag}-{host}", host)
            self._decoy(host)
            self._sshd(host)
        for host in range(1, self.count + 1):
            self._await(host)

    def down(self) -> None:
        for sshd in self.sshds:
            sshd.terminate()
            sshd.wait(10)
        for name in ("hub", *range(1, self.count + 1)):
            subprocess.run(
                ["ip", "netns", "del", f"{self.tag}-{name}"], env={"PATH": _PATH}, check=False
            )

    def _keys(self) -> None:
        (self.home / ".ssh").mkdir(parents=True)
        for name in ("host_key", "home/.ssh/id_ed25519"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        shutil.copy(self.home / ".ssh/id_ed25519.pub", self.folder / "authorized_keys")
        public = (self.folder / "host_key.pub").read_text().split()[:2]
        known = [f"{self.address(h)} {' '.join(public)}\n" for h in range(1, self.count + 1)]
        (self.home / ".ssh/known_hosts").write_text("".join(known))

    def _plug(self, nic: str, namespace: str | None, number: int) -> None:
        """A cable from the hub's bridge to `nic` in `namespace` (None: here)."""
        hub, other = f"{self.tag}-hub", f"v{number}"
        run(
            "ip",
            "-n",
            hub,
            "link",
            "add",
            "name",
            other,
            "type",
            "veth",
            "peer",
            "name",
            f"p{number}",
        )
        there = namespace or str(os.getpid())
        run("ip", "-n", hub, "link", "set", f"p{number}", "netns", there, "name", nic)
        run("ip", "-n", hub, "link", "set", other, "master", "hub0", "up")
        at = ("ip", "-n", namespace) if namespace else ("ip",)
        run(*at, "addr", "add", f"{self.address(number)}/24", "dev", nic)
        run(*at, "link", "set", nic, "up")

    def _decoy(self, host: int) -> None:
        """The bridge that every host with Docker has, with the same address on each."""
        at = ("ip", "-n", f"{self.tag}-{host}")
        run(*at, "link", "add", "name", "docker0", "type", "bridge")
        run(*at, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        run(*at, "link", "set", "docker0", "up")

    def _sshd(self, host: int) -> None:
        """Under its own host name and its own /etc/hosts."""
        Path("/run/sshd").mkdir(exist_ok=True)
        names = self.folder / f"hosts-{host}"
        names.write_text(f"127.0.0.1 localhost\n{self.address(host)} node{host}\n")
        options = [
            f"HostKey={self.folder}/host_key",
            f"AuthorizedKeysFile={self.folder}/authorized_keys",
            "StrictModes=no",
            "PermitRootLogin=yes",
            f"SetEnv=HOME={self.home}",
            "PidFile=none",
        ]
        script = (
            f'mount --bind {names} /etc/hosts; hostname node{host}; exec /usr/sbin/sshd -D "$@"'
        )
        argv = ["ip", "netns", "exec", f"{self.tag}-{host}", "unshare", "-m", "-u", "sh", "-c"]
        argv += [script, "sh", "-f", "/dev/null", *(w for o in options for w in ("-o", o))]
        env = {**os.environ, "PATH": _PATH}
        self.sshds.append(subprocess.Popen(argv, env=env, stderr=subprocess.DEVNULL))

    def _await(self, host: int) -> None:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((self.address(host), 22), timeout=1) as s:
                    if s.recv(4) == b"SSH-":
                        return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"the sshd of host {host} does not answer")
