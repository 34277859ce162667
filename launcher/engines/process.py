"""The process engine: torchrun on this machine, under the same supervisor, without a container.

A node is one detached process. Its control folder contains `labels.json` and `pid`. `pid` has the
process id and the start time in clock ticks, so that a process that reuses the id is never
signaled.
"""

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from ..errors import CommandFailed
from ..hosts import Host
from ..logs.journal_reader import Reader
from ..plan.plan import (
    CONTROL_DIRS,
    STORE,
    EngineTraits,
    NodePlan,
    Place,
    attempt_in,
    container_name,
)
from ..plan.supervisor_spec import BUNDLE, ISOLATED
from ..run_id import is_run_id
from ..ssh.node import Node
from ..state import home_folder
from ..supervisor.events import End
from ..supervisor.proc import proc_environ, proc_stat
from . import claim_files
from .base import Engine, Exec
from .process_exec import LocalExec
from .status import ContainerState, NodeStatus, read_status

POLL = 0.1  # seconds between checks of a process that is not our child
KILL_TIMEOUT = 10.0  # seconds for a process to disappear after SIGKILL
TAIL_BYTES = 65536  # read from the end of a journal, whose last record is the `end` event


class LocalProcesses(Engine):
    traits: ClassVar[EngineTraits] = EngineTraits("process", in_container=False)

    def __init__(self, node: Node) -> None:
        self.host = node.name
        self.store = home_folder() / STORE

    @classmethod
    def serves(cls, host: Host) -> bool:
        return host.is_local

    def create(self, node: NodePlan, secrets: Mapping[str, str]) -> None:
        labels = dict(node.container.labels)
        (Path(node.place.control_dir) / "labels.json").write_text(json.dumps(labels))
        self._environment = {**os.environ, **node.container.env, **secrets}
        claim_files.publish(self.host, node.container.name, ContainerState.CREATED, labels)

    def start(self, node: NodePlan) -> None:
        control, name = Path(node.place.control_dir), node.container.name
        files = [str(control / name) for name in (BUNDLE, "spec.json")]
        with (control / "supervisor.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *ISOLATED, *files],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
                env=self._environment,
                start_new_session=True,  # the terminal's Ctrl-C must reach only the launcher
                pass_fds=[claim_files.held[name]],
            )
        began = proc_stat(process.pid)[19:20] or ["gone"]
        (control / "pid").write_text(f"{process.pid} {began[0]}")
        claim_files.started(name)

    def wait(self, place: Place) -> NodeStatus:
        control = Path(place.control_dir)
        while (seen := _seen(control)).alive:
            time.sleep(POLL)
        return seen

    def unreadable(self, run_id: str | None = None) -> Sequence[str]:
        return [
            str(control)
            for control in self._newest_attempts(run_id)
            if _seen(control).alive and not self._status(control)
        ]

    def _status(self, control: Path) -> NodeStatus | None:
        return read_status(self.host, str(control), _labels(control), _seen(control))

    def list(self, run_id: str | None = None) -> list[NodeStatus]:
        found = map(self._status, self._newest_attempts(run_id))
        tickets = [s for s in self.claims() if s.is_ticket and run_id in (None, s.run_id)]
        return [*(status for status in found if status), *tickets]

    def claims(self) -> Sequence[NodeStatus]:
        return list(claim_files.claims(self.host))

    def wait_in_line(self, name: str, labels: Mapping[str, str]) -> None:
        claim_files.publish(self.host, name, ContainerState.WAITING, labels)

    def withdraw(self, status: NodeStatus) -> bool:
        claim_files.remove(status.handle)
        return True

    def using(self, folder: str) -> Sequence[NodeStatus]:
        return [status for status in self.list() if status.handle.startswith(f"{folder}/")]

    def exec(self, status: NodeStatus, command: Sequence[str], *, stdin: bool, tty: bool) -> Exec:
        control = Path(status.handle)
        pid, _ = _recorded(control)
        try:
            if not (environment := proc_environ(pid or 0)):
                raise ProcessLookupError("its supervisor has ended")
            cwd = json.loads(_text(control / "spec.json"))["cwd"] or f"/proc/{pid}/cwd"
            return LocalExec(command, environment, cwd, stdin=stdin, tty=tty)
        except (OSError, ValueError, KeyError) as error:
            raise CommandFailed(
                f"cannot run {command[0]} beside node {status.node_rank}: {error}",
                "see `ddpctl ps`",
                host=self.host,
            ) from None

    def stop(self, status: NodeStatus, timeout: float) -> None:
        pid, started = _recorded(Path(status.handle))
        if pid is None:  # waiting in line, or never started
            return
        for number, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, KILL_TIMEOUT)):
            if not _running(pid, started):
                return
            os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while _running(pid, started) and time.monotonic() < deadline:
                time.sleep(POLL)
        _kill_orphans(status.run_id, status.node_rank)

    def remove(self, status: NodeStatus) -> None:
        if status.is_ticket:
            claim_files.remove(status.handle)
            return
        (Path(status.handle) / "labels.json").unlink(missing_ok=True)
        claim_files.remove(container_name(status.run_id, status.node_rank))

    def _newest_attempts(self, run_id: str | None) -> Iterator[Path]:
        """Yield the control folder of each node's newest attempt here. Hosts may share the home folder."""
        newest: dict[tuple[str, int], tuple[int, Path]] = {}  # by run and node rank
        for control in self.store.glob(CONTROL_DIRS):
            run, rank, attempt = attempt_in(str(control)) or ("", 0, 0)
            if not is_run_id(run) or run_id not in (None, run):
                continue
            own = _text(control / "host").strip() == platform.node()
            if own and (control / "labels.json").exists():
                newest[run, rank] = max(newest.get((run, rank), (0, control)), (attempt, control))
        for key in sorted(newest):
            yield newest[key][1]


def _text(path: Path) -> str:
    """Return the file's text; "" if it cannot be read."""
    try:
        return path.read_text() if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def _seen(control: Path) -> NodeStatus:
    pid, started = _recorded(control)
    if pid is None:
        return NodeStatus(state=ContainerState.CREATED)
    began = _modified(control / "pid")
    if _running(pid, started):
        return NodeStatus(state=ContainerState.RUNNING, started=began)
    journal = control / "journal"
    return NodeStatus(
        state=ContainerState.EXITED,
        exit_code=_exit_code(journal),
        started=began,
        ended=_modified(journal),
    )


def _labels(control: Path) -> object:
    try:
        return json.loads(_text(control / "labels.json"))
    except (ValueError, RecursionError):
        return None


def _recorded(control: Path) -> tuple[int | None, str]:
    """Return the process id and start time from `pid`; (None, "") if it is missing or malformed."""
    match = re.fullmatch(r"([1-9][0-9]{0,8}) ([0-9]{1,20}|gone)", _text(control / "pid"))
    return (int(match[1]), match[2]) if match else (None, "")


def _running(pid: int, started: str) -> bool:
    fields = proc_stat(pid)
    if fields[:1] == ["Z"]:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # reaps the process if it is our child
        return False
    return bool(fields) and fields[19] == started


def _kill_orphans(run_id: str, node_rank: int) -> None:
    """SIGKILL the processes that a killed supervisor left, found by run id and node rank."""
    marks = {"DDPCTL_RUN_ID": run_id, "DDPCTL_NODE_RANK": str(node_rank)}
    for entry in Path("/proc").glob("[0-9]*"):
        if marks.items() <= proc_environ(int(entry.name)).items():
            with contextlib.suppress(OSError):  # it has just ended
                os.kill(int(entry.name), signal.SIGKILL)


def _exit_code(journal: Path) -> int | None:
    """Return the exit code in the `end` event; None if there is no such event."""
    with contextlib.suppress(OSError), journal.open("rb") as file:
        file.seek(max(0, journal.stat().st_size - TAIL_BYTES))
        last = file.read().splitlines(keepends=True)[-1:]
        for record in Reader().feed(b"".join(last)):
            if isinstance(record.event, End):
                return record.event.exit_code
    return None


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
