"""Where the patience with one host ends: bytes of the engine's answer, bytes and seconds of a journal, and
seconds until a command of `exec` has ended.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from evil_answers import DOCKER, once, response
from evil_host import EvilCluster

from launcher.engines.docker_client import LARGEST
from launcher.look import exec as look_exec
from launcher.outcomes import Exit
from launcher.runs import sync_logs

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvilCluster:
    made = EvilCluster(tmp_path / "cluster", monkeypatch)
    made.launch_run()
    return made


@pytest.mark.parametrize(
    ("size", "code"), [(LARGEST - 1000, Exit.DONE), (LARGEST, Exit.UNREACHABLE)]
)
def test_an_answer_of_the_engine_may_have_16_mb(
    cluster: EvilCluster, monkeypatch: pytest.MonkeyPatch, size: int, code: Exit
) -> None:
    monkeypatch.setitem(DOCKER, "large", once(response(b"[]".ljust(size))))
    cluster.evil.turn(scripts="nothing", docker="large")
    ended, out, err = cluster.ddpctl("ps", cluster.hosts_file)
    assert (ended, cluster.run_id in out) == (code, True)
    assert ("evil: the engine printed more than 16 MB and was stopped" in err) == bool(code)


def test_logs_stops_an_endless_journal_by_its_size(
    cluster: EvilCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_logs, "LONGEST_SYNC", 100_000)
    monkeypatch.setattr(sync_logs, "SYNC_TIMEOUT", 60.0)
    cluster.evil.turn(scripts="endless", docker="silent")
    code, out, err = cluster.ddpctl("logs", cluster.run_id)
    assert code == Exit.UNREACHABLE and "line of good2" in out
    assert "evil: its log continues after 100.0 kB" in err
    assert sum(path.stat().st_size for path in cluster.folder.rglob("node-*.log")) < 300_000


@pytest.mark.parametrize("kind", ["silent", "dripping"])
def test_logs_stops_a_journal_that_does_not_end_in_time(
    cluster: EvilCluster, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sync_logs, "SYNC_TIMEOUT", 0.1)
    cluster.evil.turn(scripts=kind, docker="silent")
    code, out, err = cluster.ddpctl("logs", cluster.run_id)
    assert code == Exit.UNREACHABLE and "line of good2" in out
    assert "evil: `tail` of its journal did not end within" in err


def test_exec_gives_up_a_command_that_runs_forever_after_its_output(
    cluster: EvilCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_exec, "END_TIMEOUT", 0.5)
    cluster.hosts["good2"].exec_script = "exec >&- 2>&-; sleep 60"
    began = time.monotonic()
    code, _, err = cluster.ddpctl("exec", cluster.run_id, "--all", "--", "true")
    assert code == Exit.UNREACHABLE and time.monotonic() - began < 10
    assert "good2: the command was still running" in err and "good1" not in err


def test_exec_shows_a_line_that_does_not_end_in_parts(
    cluster: EvilCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_exec, "LONGEST_LINE", 10)
    part = "printf 0123456789abcdef; sleep 0.1;"
    cluster.hosts["good2"].exec_script = 3 * part
    code, out, _ = cluster.ddpctl("exec", cluster.run_id, "--all", "--", "true")
    assert code == Exit.DONE and out.count("[good2] 0123456789abcdef\n") == 3
