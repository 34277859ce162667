"""Simulate hundreds of hosts with one sshd: each has a loopback address, a home and an engine.

SSH is real, and so are all commands on a host except two. `docker system dial-stdio` passes bytes
to a process that answers like a Docker Engine and starts nothing. Searches for processes of a run
find nothing. Everything is in a network namespace and runs as root. A started container writes its
journal: an event, optional lines, and its end.

python -m benchmarks.simulated FOLDER COUNT    runs the engines until they are killed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launcher.supervisor.events import End, Event, RankPids, document

PORT = 2222
IMAGE = "scale:latest"
LAYER = "sha256:" + "0" * 64
SOURCE = Path(__file__).parents[1]
# sshd runs this for every command. $3 of SSH_CONNECTION is the server's address.
HOST = """#!/bin/sh
set -- $SSH_CONNECTION
export HOME=%(folder)s/hosts/$3 PATH=%(folder)s/bin:/usr/sbin:/usr/bin:/sbin:/bin
cd "$HOME" || exit 1
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
# `docker system dial-stdio` in Perl, because a thousand of them must fit into memory.
DOCKER = r"""#!/usr/bin/perl
use Socket;
socket(S, PF_UNIX, SOCK_STREAM, 0) and connect(S, pack_sockaddr_un("$ENV{HOME}/engine.sock"))
    or die "Cannot connect to the Docker daemon\n";
my ($in, $engine) = ("", "");
vec($in, 0, 1) = vec($engine, fileno(S), 1) = 1;
my $open = $in | $engine;
while (select(my $ready = $open, undef, undef, undef)) {
    for my $pair ([*S, *STDOUT, $engine], [*STDIN, *S, $in]) {
        my ($from, $to, $bit) = @$pair;
        next if ($ready & $bit) =~ /^\0*$/;
        my $data;
        if (!sysread($from, $data, 65536)) {
            exit if $bit eq $engine;
            $open = $engine; shutdown(S, 1); next;
        }
        my $at = 0;
        $at += syswrite($to, $data, length($data) - $at, $at) // exit while $at < length($data);
    }
}
"""
# When `kill` looks for leftover processes on a host, it finds none, not those of all hosts.
GREP = """#!/bin/sh
case $1 in -lzxF) exit 1 ;; esac
exec /usr/bin/grep "$@"
"""
INFO = {"ServerVersion": "28.2.2", "Driver": "overlay2", "SecurityOptions": [], "CgroupDriver": "systemd",
        "DockerRootDir": "/var/lib/docker", "Runtimes": {"runc": {}}}  # fmt: skip
INSPECTED_IMAGE = {
    "Id": LAYER,
    "RootFS": {"Layers": [LAYER]},
    "Config": {"Env": []},
    "Architecture": "amd64",
}
CHECKED = b'ddpctl-check {"python": "3.13.5", "torch": "2.9.0", "cuda": "", "gpus": 0}\n'


def address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


@dataclass
class Simulated:
    """The hosts from the point of view of the launching machine."""

    folder: Path
    count: int
    namespace: str

    def ddpctl(self, *words: str | Path, **how: Any) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "PYTHONPATH": str(SOURCE),
            "DOCKER_HOST": f"unix://{self.folder}/none.sock",
        }
        inside = ["ip", "netns", "exec", self.namespace]
        argv = [*inside, sys.executable, "-m", "launcher", *map(str, words)]
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, cwd=self.folder, env=environment, **{**given, **how})

    def hosts_file(self, nproc: int = 1) -> Path:
        hosts = [address(number) for number in range(self.count)]
        key = str(self.folder / "key")
        defaults = {"user": "root", "port": PORT, "identity_file": key, "gpus": 0}
        job = {"image": IMAGE, "command": ["train.py"], "nproc_per_node": nproc, "user": "root"}
        path = self.folder / "hosts.yaml"
        path.write_text(yaml.safe_dump({"defaults": defaults, "hosts": hosts, "job": job}))
        return path


@contextmanager
def simulated(folder: Path, count: int, **generate: str) -> Iterator[Simulated]:
    """Start simulated hosts. generate: environment variables of the engines, see `Engines`."""
    namespace = f"scale{os.getpid()}"
    for name in ("bin", "home/.ssh"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        (folder / "hosts" / address(number)).mkdir(parents=True)
    for name in ("key", "host"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    kind, blob, *_ = (folder / "host.pub").read_text().split()
    (folder / "home/.ssh/known_hosts").write_text(f"[127.1.*]:{PORT} {kind} {blob}\n")
    for path, text in (("host.sh", HOST), ("bin/docker", DOCKER), ("bin/grep", GREP)):
        (folder / path).write_text(text % {"folder": folder} if path == "host.sh" else text)
        (folder / path).chmod(0o755)
    (folder / "sshd_config").write_text(
        f"Port {PORT}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/key.pub\nStrictModes no\n"
        f"UsePAM no\nPidFile none\nMaxStartups 1000\nPermitRootLogin yes\nForceCommand {folder}/host.sh\n"
        f"SetEnv HOME={folder}/home\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    engines = [sys.executable, "-m", "benchmarks.simulated", str(folder), str(count)]
    inside = ["ip", "netns", "exec", namespace]
    subprocess.run(["ip", "netns", "add", namespace], check=True)
    processes = []
    try:
        subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
        config = folder / "sshd_config"
        processes.append(
            subprocess.Popen(
                [*inside, sshd, "-D", "-e", "-f", config], stderr=(folder / "sshd.log").open("w")
            )
        )
        processes.append(subprocess.Popen(engines, cwd=SOURCE, env=os.environ | generate))
        while not (folder / "ready").exists():
            assert processes[1].poll() is None
            time.sleep(0.1)
        yield Simulated(folder, count, namespace)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        left = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        for pid in left.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), 9)
        subprocess.run(["ip", "netns", "del", namespace], check=False)


# --- the engines --------------------------------------------------------------------------------


@dataclass(eq=False)
class Container:
    arguments: dict[str, Any]
    name: str
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    state: str = "created"
    code: int = 0

    @property
    def journal(self) -> Path | None:
        binds = [bind.split(":") for bind in self.arguments["HostConfig"]["Binds"]]
        return next(
            (Path(source, "journal") for source, target, _ in binds if target == "/ddpctl"), None
        )

    def inspected(self) -> dict[str, Any]:
        return {
            "Id": self.name,
            "Name": f"/{self.name}",
            "State": {"Status": self.state, "ExitCode": self.code},
            "Config": {"Labels": self.arguments["Labels"], "Image": IMAGE, "Tty": True},
        }

    def start(self) -> None:
        self.state = "running"
        if self.journal is None:
            self.end(0)
        else:
            self.write(RankPids({}))
            self.lines(b"first line")

    def lines(self, *lines: bytes) -> None:
        rank = self.arguments["Labels"]["io.ddpctl.node-rank"].encode()
        with self.journal.open("ab") as file:
            file.write(b"".join(b"%.6f\t%b\t%b\n" % (time.time(), rank, line) for line in lines))

    def write(self, event: Event) -> None:
        with self.journal.open("ab") as file:
            file.write(b"%.6f\t!\t%b\n" % (time.time(), json.dumps(document(event)).encode()))

    def end(self, code: int) -> None:
        if self.state != "running":
            return
        if self.journal and self.journal.exists():
            self.write(End("cancelled" if code else "succeeded", code))
        self.state, self.code = "exited", code
        self.ended.set()


class Engine:
    """The engine of one host. Implements the calls that ddpctl makes."""

    def __init__(self) -> None:
        self.containers: dict[str, Container] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = request.split(" ", 2)
                size = re.search(r"(?i)content-length: *(\d+)", request)
                body = await reader.readexactly(int(size[1]) if size else 0)
                status, answer = await self.answer(method, target, json.loads(body) if body else {})
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                length = b"" if status == 204 else b"Content-Length: %d\r\n" % len(text)
                head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\n"
                writer.write(head % status + length + b"\r\n" + (b"" if status == 204 else text))
                await writer.drain()
        writer.close()

    async def answer(self, method: str, target: str, body: dict[str, Any]) -> tuple[int, Any]:
        url = urllib.parse.urlsplit(target)
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        _, *words = url.path.split("/")
        if words[0].startswith("v1"):
            words = words[1:]
        match [method, *words]:
            case ["GET", "version"]:
                return 200, {"ApiVersion": "1.41"}
            case ["GET", "info"]:
                return 200, INFO
            case ["GET", "volumes"]:
                return 200, {"Volumes": []}
            case ["GET", "images", *_]:
                return 200, INSPECTED_IMAGE
            case ["GET", "containers", "json"]:
                key, _, value = json.loads(query["filters"])["label"][0].partition("=")
                return 200, [
                    {"Id": each.name, "Labels": each.arguments["Labels"], "Mounts": []}
                    for each in self.containers.values()
                    if key in each.arguments["Labels"]
                    and value in ("", each.arguments["Labels"][key])
                ]
            case ["POST", "containers", "create"]:
                self.containers[query["name"]] = Container(body, query["name"])
                return 201, {"Id": query["name"], "Warnings": []}
        container = self.containers.get(words[1]) if len(words) > 1 else None
        if container is None:
            return 404, {"message": f"No such container: {target}"}
        match [method, *words[2:]]:
            case ["GET", "json"]:
                return 200, container.inspected()
            case ["GET", "logs"]:
                return 200, CHECKED
            case ["POST", "start"]:
                container.start()
            case ["POST", "stop"]:
                container.end(143)
            case ["POST", "wait"]:
                await container.ended.wait()
                return 200, {"StatusCode": container.code}
            case ["DELETE"]:
                container.end(137)
                del self.containers[words[1]]
            case _:
                return 400, {"message": f"not simulated: {method} {target}"}
        return 204, b""


async def engines(folder: Path, count: int) -> None:
    every = [Engine() for _ in range(count)]
    for number, engine in enumerate(every):
        await asyncio.start_unix_server(
            engine.serve, folder / "hosts" / address(number) / "engine.sock"
        )
    (folder / "ready").touch()
    if seconds := os.environ.get("SCALE_LOG_SECONDS"):
        await speak(
            folder,
            every,
            float(seconds),
            int(os.environ["SCALE_LOG_RANKS"]),
            int(os.environ["SCALE_LOG_RATE"]),
        )
    await asyncio.Event().wait()


TICK = 0.1  # seconds between blocks of lines
BLOCK = b"########"


def block_of(node_rank: int, ranks: int, lines: int) -> bytes:
    """Return a block of a node's output, as recorded by a supervisor; BLOCK stands for its number."""
    text = b"x" * 40
    return b"".join(
        b"@TIME\t%d\t@%d/%b/%d %b\n" % (rank, rank, BLOCK, line, text)
        for rank in range(node_rank * ranks, (node_rank + 1) * ranks)
        for line in range(lines)
    )


def expected_log(node_rank: int, ranks: int, rate: int, seconds: float) -> Iterator[bytes]:
    """Yield a node's log as the launcher must write it, in parts."""
    host = address(node_rank).encode()
    rows = (row.split(b"\t") for row in block_of(node_rank, ranks, int(rate * TICK)).splitlines())
    block = b"".join(b"[%b:%b] %b\n" % (host, rank, text) for _, rank, text in rows)
    yield b"[%b:%d] first line\n" % (host, node_rank)
    for number in range(int(seconds / TICK)):
        yield block.replace(BLOCK, b"%08d" % number)


async def speak(folder: Path, every: list[Engine], seconds: float, ranks: int, rate: int) -> None:
    """Once all containers run, write `rate` lines a second for each of a node's `ranks`, then end."""

    def running() -> list[Container]:
        found = [c for engine in every for c in engine.containers.values() if c.state == "running"]
        return sorted(found, key=lambda c: int(c.arguments["Labels"]["io.ddpctl.node-rank"]))

    while len(running()) < len(every):
        await asyncio.sleep(0.2)
    await asyncio.sleep(2)
    containers, began = running(), time.monotonic()
    blocks = [block_of(rank, ranks, int(rate * TICK)) for rank in range(len(containers))]
    files = [c.journal.open("ab", buffering=0) for c in containers]
    for number in range(int(seconds / TICK)):
        for file, block in zip(files, blocks, strict=True):
            stamp = b"%.6f" % time.time()
            file.write(block.replace(b"@TIME", stamp).replace(BLOCK, b"%08d" % number))
            await asyncio.sleep(0)
        await asyncio.sleep(max(0.0, began + (number + 1) * TICK - time.monotonic()))
    spoken = {
        "began": time.time() - (time.monotonic() - began),
        "seconds": time.monotonic() - began,
    }
    (folder / "spoken").write_text(json.dumps(spoken))
    for container in containers:
        container.end(0)


if __name__ == "__main__":
    asyncio.run(engines(Path(sys.argv[1]), int(sys.argv[2])))
