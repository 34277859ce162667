"""Commands in the environment of a node without a container."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.engines import process
from launcher.engines.process import Processes
from launcher.engines.status import NodeStatus
from launcher.errors import UsageError
from launcher.hosts import Host
from launcher.plan.plan import Place
from launcher.ssh.host_connection import HostConnection


@pytest.mark.parametrize("name", ["code", "jürgen's", r'a "quoted" \name', None])
def test_a_command_runs_in_the_working_directory_of_the_node(
    tmp_path: Path, name: str | None
) -> None:
    folder = tmp_path / (name or "home")
    folder.mkdir()
    node = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path)
    try:
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(") ")[2].split()
        (tmp_path / "pid").write_text(f"{node.pid} {fields[19]}\n")
        (tmp_path / "spec.json").write_text(json.dumps({"cwd": str(folder) if name else None}))
        engine = Processes(HostConnection(Host("local")))
        status = NodeStatus(handle=str(tmp_path))
        with engine.exec(status, ["pwd"], stdin=False, tty=False) as stream:
            assert stream.read(timeout=20).decode() == f"{folder if name else tmp_path}\n"
            assert stream.wait(20) == 0
    finally:
        node.kill()
        node.wait()


@pytest.mark.parametrize("workdir", ["/code", None])
def test_a_local_node_with_a_workdir_starts_even_if_the_current_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workdir: str | None
) -> None:
    words = list[str]()
    monkeypatch.setattr(Processes, "_script", lambda *args, **_: words.extend(args[3:]))
    container = SimpleNamespace(name="n", env={}, entrypoint=("python3",), working_dir=workdir)
    node: Any = SimpleNamespace(container=container, place=SimpleNamespace(control_dir="/c"))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with nullcontext() if workdir else pytest.raises(UsageError, match="no longer exists"):
        Processes(HostConnection(Host("local"))).start(node, {})
        assert words[:4] == ["/c", "n", "", "0"]


def test_a_node_has_not_ended_because_the_script_that_waits_for_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "WAIT", "kill -s KILL $$")
    engine = Processes(HostConnection(Host("local")))
    assert engine.wait(Place(0, 1, "none", str(tmp_path), str(tmp_path))).alive
