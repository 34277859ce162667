"""Fakes for orchestration: hosts that are folders on this machine, whose engines are dicts.

`FakeCluster` replaces SSH and the Docker API. Scripts for a host run here in a real `sh`,
in the home folder of that host. Its engine runs nothing: the test says how each node ends, and the
journal says so as a supervisor would. Hosts and engines record what they were asked.

    cluster = FakeCluster(tmp_path, monkeypatch, ["gpu0", "gpu1"])
    cluster.nodes_end(exit_code=0)
    code, out, err = cluster.launch()
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any

import docker.errors
import pytest
import requests
import typer

from launcher import cli
from launcher.engines import command, docker_client
from launcher.engines import docker as docker_engine
from launcher.engines.docker_client import Api
from launcher.errors import HostUnreachable
from launcher.hosts import Host
from launcher.plan.labels import LABEL
from launcher.plan.plan import CONTROL_DIR
from launcher.ssh import client, connect, host_connection, recently_silent
from launcher.ssh.background import in_background
from launcher.ssh.client import SshMachine
from launcher.ssh.connection import Connection
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.local import LocalMachine
from launcher.ssh.stream import Stream

IMAGE = {"Id": "sha256:" + "1" * 64, "Architecture": "amd64", "RootFS": {"Layers": ["sha256:2"]}}
CONNECT_DOCKER = docker_client._connect
STOPPED = 143  # 128 + SIGTERM


@dataclass
class FakeNode:
    """One node of a run: a container that FakeDocker created and that the test ends."""

    arguments: Mapping[str, Any]  # of create_container
    host: str
    state: str = "created"
    exit_code: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    created: float = 0.0  # unix seconds, the host's clock

    @property
    def node_rank(self) -> int:
        return int(self.arguments["labels"][f"{LABEL}.node-rank"])

    @property
    def attempt(self) -> int:
        return int(self.arguments["labels"][f"{LABEL}.attempt"])

    @property
    def run_id(self) -> str:
        return str(self.arguments["labels"][f"{LABEL}.run-id"])

    @property
    def journal(self) -> Path:
        binds = (bind.split(":") for bind in self.arguments["host_config"]["Binds"])
        return next(Path(source) for source, to, *_ in binds if to == CONTROL_DIR) / "journal"

    @property
    def mounts(self) -> list[dict[str, str]]:
        return [{"Source": bind.split(":")[0]} for bind in self.arguments["host_config"]["Binds"]]

    @property
    def inspected(self) -> dict[str, Any]:
        return {
            "Name": "/" + self.arguments["name"],
            "Config": {"Labels": self.arguments["labels"], "Image": self.arguments["image"]},
            "State": {"Status": self.state, "ExitCode": self.exit_code},
            "Created": rfc3339(self.created),
        }

    def say(self, text: str, rank: int | str = "-") -> None:
        """Write a line of a rank, or of the supervisor ("-"), into the journal."""
        with self.journal.open("a") as journal:
            journal.write(f"{time.time():.6f}\t{rank}\t{text}\n")

    def event(self, kind: str, **fields: Any) -> None:
        self.say(json.dumps({"kind": kind, **fields}), "!")

    def end(self, exit_code: int, state: str | None = None, reason: Any = None) -> None:
        """End as a supervisor does: write the last event, then let the container exit."""
        if self.ended.is_set():
            return
        state = state or ("succeeded" if exit_code == 0 else "failed")
        self.event("end", state=state, exit_code=exit_code, reason=reason, left=[])
        self.exit(exit_code)

    def stop(self) -> None:
        """End as a supervisor does on SIGTERM, after a kill has marked the run as cancelled."""
        cancelled = self.journal.with_name("cancelled").exists()
        if cancelled:
            self.event("stopping", reason={"kind": "cancelled"})
        self.end(STOPPED, "cancelled" if cancelled else "stopped")

    def kill(self) -> None:
        """End as if `ddpctl kill` had run on another machine."""
        self.journal.with_name("cancelled").touch()
        self.stop()

    def exit(self, exit_code: int) -> None:
        """Let the container exit without a last event."""
        self.state, self.exit_code = "exited", exit_code
        self.ended.set()


def answer(status: int) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    return response


def rfc3339(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()


class FakeHost:
    """A host that is a folder on this machine."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home = name, home
        home.mkdir(parents=True)
        self.tools = home.with_name(f"{home.name}-tools")  # first in its PATH
        self.tools.mkdir()
        self.reachable = True
        self.nodes: dict[str, FakeNode] = {}  # by container name
        self.tickets: dict[str, dict[str, Any]] = {}  # volumes, by name
        self.ahead = 0.0  # seconds by which the clock of this host is ahead
        self.asked: list[tuple[str, ...]] = []  # commands and engine calls, in order
        self.refuses: dict[str, str] = {}  # engine call -> the error that it raises
        self.lies: dict[str, Any] = {}  # engine call -> what it answers or raises instead
        self.ignores_stop = False
        self.on_start: Callable[[FakeNode], object] = lambda node: None
        self.on_stop: Callable[[FakeNode], object] = FakeNode.stop
        self.exec_script = ":"  # acts as `docker exec`

    def give_gpus(self, count: int) -> None:
        """Install a stand-in for nvidia-smi."""
        rows = "".join(f"{i}, GPU-{self.name}-{i}, NVIDIA H100, 81559\\n" for i in range(count))
        self.install("nvidia-smi", f"#!/bin/sh\ncase $* in *index,uuid*) printf '{rows}' ;; esac\n")

    def install(self, name: str, script: str) -> None:
        """Install a program that this host finds before this machine's own of that name."""
        program = self.tools / name
        program.write_text(script)
        program.chmod(0o755)

    def ask(self, *call: str) -> None:
        """Record a call. Raises HostUnreachable while the host is down, APIError if the engine refuses."""
        self.asked.append(call)
        if not self.reachable:
            raise HostUnreachable("no answer within 10s", "is it up?", host=self.name)
        if call[0] in self.refuses:
            response = requests.Response()
            response.status_code = 500
            raise docker.errors.APIError("", response, explanation=self.refuses[call[0]])

    def lie(self, call: str, truth: Any) -> Any:
        answer = self.lies.get(call, truth)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def count(self, call: str) -> int:
        """Return how often the host received `call`."""
        return sum(words[0] == call for words in self.asked)


class FakeMachine(LocalMachine):
    """What a HostConnection uses instead of SSH: processes on this machine, in the host's home."""

    def __init__(self, host: FakeHost) -> None:
        super().__init__()
        self.host = host

    def connect(self) -> None:
        self.host.ask("connect")

    def open(self, argv: Sequence[str], **how: Any) -> Stream:
        self.host.ask("open", *argv)
        match argv:
            case ["sh", "-c", command.RUN_ENGINE, "sh", "--log-level=error", "exec", *words]:
                self.host.asked.append(("exec", *words))
                return super().open(["sh", "-c", self._as_host() + self.host.exec_script], **how)
            case ["sh", "-c", docker_engine.REMOVE_AT_END as text, "sh", name, folder]:
                stubs = self._as_host() + 'timeout() { shift; "$@"; }; docker() { :; }\n'
                stream = super().open(["sh", "-c", stubs + text, "sh", name, folder], **how)
                in_background(self._removed, stream, name)
                return stream
            case ["sh", "-c", text, *args]:
                text = text.replace("/tmp/ddpctl-claims", f"{self.host.home}/claims")
                return super().open(["sh", "-c", self._as_host() + text, *args], **how)
        return super().open(["sh", "-c", self._as_host() + 'exec "$@"', "sh", *argv], **how)

    def _removed(self, stream: Stream, name: str) -> None:
        """Remove a node once the script that removes its container on a real host has ended."""
        stream.wait()
        if node := self.host.nodes.pop(name, None):
            node.ended.set()

    def _as_host(self) -> str:
        """Return the start of each script: the host's home and programs, and functions for its answers.

        They are functions because these tests spend most of their time starting programs. The kernel takes
        long to list all ports, and no test of orchestration depends on the list.
        """
        home, path = self.host.home, f"{self.host.tools}:{os.environ['PATH']}"
        system, _, release, _, machine = os.uname()
        name = self.host.name
        return (
            f"cd {quote(str(home))} && HOME=$PWD PATH={quote(path)} && export HOME PATH || exit\n"
            "uname() {\n"
            f"case $1 in -n) echo {name} ;; -nsrm) echo {system} {name} {release} {machine} ;;\n"
            '*) command uname "$@" ;; esac; }\n'
            'grep() { [ "$2" = \' 0A \' ] || command grep "$@"; }\n'
            f'date() {{ [ "$1" = +%s.%N ] && echo {time.time()} || command date "$@"; }}\n'
            f"nproc() {{ echo {os.cpu_count()}; }}\n"
            f'id() {{ [ $# = 0 ] && echo {quote(identity())} || command id "$@"; }}\n'
        )


@functools.cache
def identity() -> str:
    """Return what `id` prints on this machine."""
    return subprocess.run(["id"], capture_output=True, text=True, check=True).stdout.strip()


class FakeDocker(Api):
    """The methods of docker.APIClient that ddpctl calls. They answer from FakeNodes."""

    def __init__(self, host: FakeHost) -> None:
        self.name, self.host = host.name, host

    def info(self) -> dict[str, Any]:
        self.host.ask("info")
        docker = {"ServerVersion": "28.2.2", "Driver": "overlay2", "SecurityOptions": []}
        return self.host.lie("info", docker)  # type: ignore[no-any-return]

    def inspect_image(self, name: str) -> dict[str, Any]:
        self.host.ask("inspect_image", name)
        return {**IMAGE, "RepoTags": [name], "Config": {"Env": []}}

    def create_container(self, **arguments: Any) -> dict[str, str]:
        name = arguments["name"]
        self.host.ask("create", name)
        self.host.nodes[name] = FakeNode(arguments, self.host.name, created=self.clock)
        return {"Id": name}

    @property
    def clock(self) -> float:
        return time.time() + self.host.ahead

    def create_volume(self, name: str, labels: Mapping[str, str]) -> None:
        self.host.ask("create_volume", name)
        row = {"Name": name, "Labels": labels, "CreatedAt": rfc3339(self.clock)}
        self.host.tickets[name] = row

    def volumes(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        self.host.ask("volumes")
        key, _, value = filters["label"][0].partition("=")
        rows = [r for r in self.host.tickets.values() if value in ("", r["Labels"].get(key))]
        return self.host.lie("volumes", {"Volumes": rows or None})  # type: ignore[no-any-return]

    def remove_volume(self, name: str) -> None:
        self.host.ask("remove_volume", name)
        if self.host.tickets.pop(name, None) is None:
            raise docker.errors.NotFound(f"no volume {name}")

    def start(self, name: str) -> None:
        self.host.ask("start", name)
        node = self._node(name)
        node.state = "running"
        self.host.on_start(node)

    def wait(self, name: str, timeout: float | None = None) -> None:
        self.host.ask("wait", name)
        self._node(name).ended.wait(timeout)

    def logs(self, name: str, **_: Any) -> bytes:
        self.host.ask("logs", name)
        return b""

    def containers(self, *, filters: Mapping[str, Any], all: bool = False) -> list[dict[str, Any]]:
        self.host.ask("containers")

        def listed(name: str, labels: Mapping[str, str]) -> bool:
            if "name" in filters:
                return filters["name"][0] in name
            key, _, value = filters["label"][0].partition("=")
            return key in labels and value in ("", labels[key])

        rows = [
            {
                "Id": name,
                "Names": [f"/{name}"],
                "Labels": node.arguments["labels"],
                "Mounts": node.mounts,
                "State": node.state,
                "Created": int(node.created),
            }
            for name, node in list(self.host.nodes.items())
            if listed(name, node.arguments["labels"])
        ]
        return self.host.lie("containers", rows)  # type: ignore[no-any-return]

    def inspect_container(self, name: str) -> dict[str, Any]:
        self.host.ask("inspect_container", name)
        return self.host.lie("inspect_container", self._node(name).inspected)  # type: ignore[no-any-return]

    def stop(self, name: str, timeout: int) -> None:
        self.host.ask("stop", name)
        node = self._node(name)
        if not node.ended.is_set() and not self.host.ignores_stop:
            self.host.on_stop(node)

    def remove_container(self, name: str, force: bool = False, **_: Any) -> None:
        self.host.ask("remove", name)
        node = self._node(name)
        if node.state == "running" and not force:
            raise docker.errors.APIError("", answer(409), explanation="it is running")
        if not self.host.ignores_stop:
            node.ended.set()
            self.host.nodes.pop(name, None)  # another user of the host may have been faster

    def close(self) -> None:
        pass

    def _node(self, name: str) -> FakeNode:
        if node := self.host.nodes.get(name):
            return node
        raise docker.errors.NotFound("", answer(404), explanation=f"no container {name}")


application = cli.application


@functools.cache
def command_line() -> Callable[..., Any]:
    """Return the application as a function. Cached, because typer builds every command at each call."""
    return typer.main.get_command(application())


def ddpctl(*argv: str | Path) -> tuple[int, str, str]:
    """Run the command line in this process: exit code, stdout, stderr."""
    out, err = (io.TextIOWrapper(tempfile.TemporaryFile()) for _ in range(2))  # noqa: SIM115
    words = sys.argv
    sys.argv = ["ddpctl", *map(str, argv)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = words
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.buffer.seek(0)
        texts.append(stream.buffer.read().decode(errors="surrogateescape"))
        stream.close()
    return int(code or 0), texts[0], texts[1]


class FakeCluster:
    """A launching machine and its hosts, without SSH or Docker."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        names: Sequence[str],
        *,
        gpus: int = 0,
        spares: Sequence[str] = (),
        **job: Any,
    ) -> None:
        self.folder = folder
        self.hosts = {name: FakeHost(name, folder / "hosts" / name) for name in (*names, *spares)}
        for host in self.hosts.values() if gpus else ():
            host.give_gpus(gpus)
        self.local = FakeHost("local", folder / "local")  # the launching machine's own engine
        self.state = folder / "state"
        self.recorders: list[str] = []  # run ids that were handed to a recorder
        (folder / "home").mkdir(mode=0o700)
        monkeypatch.setattr(cli, "application", command_line)
        monkeypatch.setattr(client, "SshMachine", self._machine)
        monkeypatch.setattr(connect, "connect_early", lambda hosts: None)
        monkeypatch.setattr(host_connection, "LocalMachine", lambda: FakeMachine(self.local))
        monkeypatch.setattr(docker_client, "_connect", self._docker)
        monkeypatch.setattr(
            "launcher.follow.detach.start_recorder",
            lambda folder, *_: self.recorders.append(folder.run_id),
        )
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("XDG_STATE_HOME", str(self.state))
        monkeypatch.chdir(folder)
        document = {
            "defaults": {"gpus": gpus},
            "hosts": list(names),
            "spares": list(spares),
            "job": {"image": "any:1", "command": ["train.py"], "master_port": 29500, **job},
        }
        self.hosts_file = str(folder / "hosts.yaml")
        Path(self.hosts_file).write_text(json.dumps(document))

    def _machine(self, host: Host, connect_timeout: float) -> FakeMachine:
        return FakeMachine(self.host(host.name))

    def _docker(self, connection: HostConnection) -> FakeDocker:
        return FakeDocker(self.host(connection.name))

    def silence(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
        """Let these hosts answer no dial. Return the names of the hosts that are dialed, as they come.

        The clock of `connect` says that each dial takes a minute.
        """
        dials: list[str] = []

        def dial(host: Host) -> Connection:
            dials.append(host.name)
            raise HostUnreachable("no answer within 10s", "is it up?", host=host.name)

        def machine(host: Host, connect_timeout: float) -> FakeMachine | SshMachine:
            kind = SshMachine if host.name in names else self._machine
            return kind(host, connect_timeout=connect_timeout)

        def docker_of(connection: HostConnection) -> Api:
            return (CONNECT_DOCKER if connection.name in names else self._docker)(connection)

        clock = SimpleNamespace(monotonic=itertools.count(step=60).__next__)
        monkeypatch.setattr(connect, "time", clock)
        monkeypatch.setattr(connect, "route_to", lambda host, timeout: host)
        monkeypatch.setattr(connect, "_connect", dial)
        monkeypatch.setattr(client, "SshMachine", machine)
        monkeypatch.setattr(docker_client, "_connect", docker_of)
        monkeypatch.setattr(recently_silent, "_silent", {})
        return dials

    def share_home(self, *names: str) -> Path:
        """Make these hosts share one home folder, as on NFS. Return its .ddpctl."""
        for name in names:
            self.hosts[name].home = self.hosts[names[0]].home
        return self.hosts[names[0]].home / ".ddpctl"

    def host(self, name: str) -> FakeHost:
        return self.hosts.get(name, self.local)

    def __iter__(self) -> Iterator[FakeHost]:
        return iter(self.hosts.values())

    @property
    def nodes(self) -> list[FakeNode]:
        """The nodes on all hosts, by node rank."""
        found = [node for host in self for node in host.nodes.values()]
        return sorted(found, key=lambda node: node.node_rank)

    def nodes_end(self, exit_code: int) -> None:
        """Make every node end as soon as it has started."""
        for host in self:
            host.on_start = lambda node: node.end(exit_code)

    def ddpctl(self, *argv: str | Path) -> tuple[int, str, str]:
        """Run the command line in this process: exit code, stdout, stderr."""
        return ddpctl(*argv)

    def launch(self, *flags: str) -> tuple[int, str, str]:
        return self.ddpctl("launch", self.hosts_file, "--no-check", "--no-push", *flags)

    @property
    def tickets(self) -> list[str]:
        """The tickets of waiting runs, on all hosts."""
        return [name for host in self for name in host.tickets]

    @property
    def record(self) -> dict[str, Any]:
        """run.json of the only run."""
        [path] = (self.state / "ddpctl" / "runs").glob("*/run.json")
        document: dict[str, Any] = json.loads(path.read_text())
        return document

    def forget(self) -> None:
        """Delete everything that the launching machine recorded."""
        shutil.rmtree(self.state / "ddpctl", ignore_errors=True)


def messages(err: str) -> list[str]:
    """Return the lines of stderr without the steps that ddpctl announces on a slow machine."""
    return [line for line in err.splitlines() if not line.endswith(" ...")]


def signal_once_started(cluster: FakeCluster, number: int) -> None:
    """Send this process a signal once all nodes have started."""
    left = threading.Semaphore(0)
    for host in cluster:
        host.on_start = lambda node: left.release()

    def send() -> None:
        for _ in cluster.hosts:
            left.acquire(timeout=10)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
