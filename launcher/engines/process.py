"""The process engine: torchrun straight on this machine, under the same supervisor, no container.

A node is one detached process. Its folder says which: `pid` holds the process id and its start time in
clock ticks, so that a number which the kernel has given to somebody else is never signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.engines.base import NodeStatus
from launcher.logs.journal import Reader
from launcher.plan.plan import NodePlan, Place
from launcher.plan.supervisor_spec import BUNDLE, ISOLATED
from launcher.state import home_folder

POLL = 0.1  # seconds between looks at a process that is not our child


class Processes:
    """Satisfies launcher.engines.base.Engine for `host: local`."""

    def __init__(self, host: str = "local", home: Path | None = None) -> None:
        self.host = host
        self.runs = (home or home_folder() / ".ddpctl") / "runs"

    def create(self, node: NodePlan, secrets: Mapping[str, str]) -> None:
        labels = {key.rsplit(".", 1)[1]: value for key, value in node.container.labels.items()}
        (Path(node.place.control_dir) / "labels.json").write_text(json.dumps(labels))
        self._environment = {**os.environ, **node.container.env, **secrets}

    def start(self, node: NodePlan) -> None:
        control = Path(node.place.control_dir)
        files = [str(control / name) for name in (BUNDLE, "spec.json")]
        with (control / "supervisor.out").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *ISOLATED, *files],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=out,
                env=self._environment,
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's to hear
            )
        (control / "pid").write_text(f"{process.pid} {_start_time(process.pid)}")

    def wait(self, place: Place) -> NodeStatus:
        control = Path(place.control_dir)
        while (status := self._status(control)).alive:
            time.sleep(POLL)
        return status

    def list(self, run_id: str | None = None) -> list[NodeStatus]:
        return [self._status(control) for control in self._newest_attempts(run_id)]

    def stop(self, status: NodeStatus, timeout: float) -> None:
        pid, started = _recorded(Path(status.handle))
        if pid is None:
            return
        deadline = time.monotonic() + timeout
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not _running(pid, started):
                return
            os.kill(pid, number)
            while _running(pid, started) and time.monotonic() < deadline:
                time.sleep(POLL)
            deadline = time.monotonic() + 10.0
        _kill_orphans(status.run_id, status.node_rank)

    def remove(self, status: NodeStatus) -> None:
        (Path(status.handle) / "labels.json").unlink(missing_ok=True)

    def _newest_attempts(self, run_id: str | None) -> Iterator[Path]:
        for node in sorted(self.runs.glob(f"{run_id or '*'}/nodes/*")):
            attempts = [path for path in node.glob("attempt-*") if (path / "labels.json").exists()]
            if attempts:
                yield max(attempts, key=lambda path: int(path.name.rsplit("-", 1)[1]))

    def _status(self, control: Path) -> NodeStatus:
        try:
            labels = json.loads((control / "labels.json").read_text())
        except (OSError, ValueError):
            labels = {}
        pid, started = _recorded(control)
        end = _end(control / "journal")
        if pid is None:
            state = "created"
        else:
            state = "running" if _running(pid, started) else "exited"
        return NodeStatus(
            run_id=labels.get("run-id", ""),
            name=labels.get("name", ""),
            attempt=int(labels.get("attempt", 1)),
            node_rank=int(labels.get("node-rank", 0)),
            nnodes=int(labels.get("nnodes", 0)),
            owner=labels.get("owner", ""),
            host=self.host,
            handle=str(control),
            state=state,
            exit_code=end.get("exit_code") if state == "exited" else None,
            started=_modified(control / "pid"),
            ended=_modified(control / "journal") if state == "exited" else None,
            master_port=labels.get("master-port", ""),
        )


def _recorded(control: Path) -> tuple[int | None, str]:
    try:
        pid, started = (control / "pid").read_text().split()
    except (OSError, ValueError):
        return None, ""
    return int(pid), started


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat after the command name: state, parent, ... (man 5 proc)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return []


def _start_time(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if fields else "gone"


def _running(pid: int, started: str) -> bool:
    fields = _stat(pid)
    if fields and fields[0] == "Z":
        try:
            os.waitpid(pid, os.WNOHANG)  # ours to reap when this process started it
        except ChildProcessError:
            pass
        return False
    return bool(fields) and fields[19] == started


def _kill_orphans(run_id: str, node_rank: int) -> None:
    """SIGKILL for what a killed supervisor left behind: by run id and node, never by pattern."""
    marks = {f"DDPCTL_RUN_ID={run_id}".encode(), f"DDPCTL_NODE_RANK={node_rank}".encode()}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marks <= set((entry / "environ").read_bytes().split(b"\0")):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue  # another user's, or gone meanwhile


def _end(journal: Path) -> dict[str, int]:
    """The `end` event of a journal, or {}. It is the last record, so the tail is enough."""
    try:
        with journal.open("rb") as file:
            file.seek(max(0, journal.stat().st_size - 65536))
            tail = file.read()
    except OSError:
        return {}
    for record in reversed(Reader().feed(tail.partition(b"\n")[2] if len(tail) == 65536 else tail)):
        if record.event and record.event.get("kind") == "end":
            return dict(record.event)
    return {}


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
