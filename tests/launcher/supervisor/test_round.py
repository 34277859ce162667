"""One start of torchrun: how soon the supervisor looks again, and which rank it names."""

from __future__ import annotations

import os
import selectors
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quick_torchrun
from supervisors import NPROC, spec, until

from launcher.supervisor import round as round_module
from launcher.supervisor.events import Phase
from launcher.supervisor.journal import Journal
from launcher.supervisor.proc import children, proc_environ, proc_stat
from launcher.supervisor.rank_logs import TORCHRUN_LOG, RankLogs
from launcher.supervisor.ranks import Rank, Ranks
from launcher.supervisor.round import Round

# Rank 0 kills itself when told. On SIGTERM, rank 1 waits for a file, then dies of the signal or exits.
RANKS = """
import os, signal, sys, time
folder, how = sys.argv[1:]
rank = os.environ["RANK"]
def end(*_):
    open(folder + "/told", "w")
    while not os.path.exists(folder + "/go"):
        time.sleep(0.01)
    if how != "SIGTERM":
        os._exit(int(how))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, end)
open(folder + "/" + rank, "w")
while not all(os.path.exists(folder + "/" + each) for each in "01"):
    time.sleep(0.01)
if rank == "0":
    while not os.path.exists(folder + "/kill"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


def waiting_round(folder: Path, *, complete: bool, phase: Phase = Phase.RUNNING) -> Round:
    """A round whose torchrun has printed a line, which is copied, and has not created a folder."""
    folder.mkdir()
    (folder / TORCHRUN_LOG).write_text("importing torch\n")
    journal: Any = SimpleNamespace(write_lines=lambda *_: None)
    logs = RankLogs(spec(), journal, str(folder))
    logs.copy_new()
    made = Round.__new__(Round)
    ranks = SimpleNamespace(complete=complete)
    vars(made).update(phase=phase, ranks=ranks, logs=logs, selector=selectors.DefaultSelector())
    return made


def test_the_supervisor_polls_seldom_until_torchrun_starts_ranks(tmp_path: Path) -> None:
    made = waiting_round(tmp_path / "0", complete=False)
    assert not made.is_eventful()
    (tmp_path / "0" / "none_x1").mkdir()
    assert made.is_eventful()


def test_the_supervisor_polls_seldom_while_ranks_are_silent_or_have_ended(tmp_path: Path) -> None:
    running = waiting_round(tmp_path / "0", complete=True)
    stopped = waiting_round(tmp_path / "1", complete=False, phase=Phase.STOPPED)
    for name in ("0", "1"):
        (tmp_path / name / "none_x1").mkdir()
    assert not running.is_eventful() and not stopped.is_eventful()


@pytest.mark.parametrize("grown", ["torchrun", "rank"])
def test_new_output_is_copied_without_waiting_for_the_next_poll(
    tmp_path: Path, grown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = waiting_round(tmp_path / "0", complete=True)
    rank_log = tmp_path / "0" / "none_x1" / "attempt_0" / "0" / "stdout.log"
    rank_log.parent.mkdir(parents=True)
    rank_log.touch()
    made.logs.copy_new()
    assert not made.is_eventful()
    monkeypatch.setattr(round_module, "POLL", 600.0)
    with (rank_log if grown == "rank" else tmp_path / "0" / TORCHRUN_LOG).open("a") as file:
        file.write("a line\n")
    assert list(made.wait()) == []


def test_a_rank_that_fails_just_after_the_look_at_it_is_named_not_one_that_torchrun_then_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine, torchrun may reap one rank and end the next between the looks at the two."""
    gone: list[Rank] = []

    def look(rank: Rank, now: float) -> None:
        if rank.rank == 1:
            rank.exited, rank.exit_code = now, -signal.SIGTERM
            gone.append(rank)
        elif gone:
            rank.exited = now  # its exit code went to torchrun

    monkeypatch.setattr(Rank, "look", look)
    made, stopped_for = Round.__new__(Round), list[int]()
    torchrun_tail = SimpleNamespace(copy_new=lambda: 0, last_lines=list)
    vars(made).update(
        reason=None,
        early=None,
        ranks=Ranks(2),
        spec=SimpleNamespace(peer_timeout=5.0),
        ended_pids=set(),
        failed_by=0.0,
        unseen_failed=False,
        logs=SimpleNamespace(drain=lambda _: None, torchrun_tail=torchrun_tail),
        liveness=SimpleNamespace(look=lambda _: None),
        record_exit=lambda _: None,
        why=lambda kind, message, rank: rank.rank,
        stop=stopped_for.append,
    )
    made.ranks.by_local_rank.update({number: Rank(1, number, number) for number in (0, 1)})
    made.check_ranks()
    assert stopped_for == [0]


@pytest.fixture
def real_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Round]]:
    """real_round(how): a Round with a torchrun that has started RANKS; `how` ends rank 1."""
    monkeypatch.setattr(os, "set_blocking", lambda *_: None)  # this process's own stdout
    monkeypatch.setattr(Journal, "_copy_to_engine_log", lambda *_: None)
    monkeypatch.setattr("launcher.supervisor.round.kill_descendants", lambda *_, **__: [])
    monkeypatch.setattr("launcher.supervisor.stopping.descendants", lambda _: [])
    rounds = []

    def start(how: str) -> Round:
        script = tmp_path / "ranks.py"
        script.write_text(RANKS)
        topology = ["--nnodes=1", "--node-rank=0", f"--nproc-per-node={NPROC}"]
        master = ["--master-addr=127.0.0.1", "--master-port=1", "--max-restarts=0"]
        argv = [sys.executable, quick_torchrun.__file__, *topology, *master]
        argv += ["--", str(script), str(tmp_path), how]
        given = {"dir": str(tmp_path), "argv": argv, "max_restarts": 1, "past_restarts": ["used"]}
        made_for = spec(nnodes=1, stop_timeout=10, peer_timeout=5.0, **given)
        peers = SimpleNamespace(clock_offset=0.0)
        journal, selector = Journal(str(tmp_path), "gpu1"), selectors.DefaultSelector()
        rounds.append(Round(0, made_for, journal, selector, peers))  # type: ignore[arg-type]
        rounds[0].start()
        until((tmp_path / "1").exists, 30)
        return rounds[0]

    yield start
    for made in rounds:
        made.close()


@pytest.mark.parametrize("how", ["SIGTERM", "1", "0"])
@pytest.mark.parametrize("seen", [2, 1, 0])
def test_a_rank_that_was_killed_before_a_late_supervisor_looked_is_the_cause(
    real_round: Callable[[str], Round], tmp_path: Path, how: str, seen: int
) -> None:
    """torchrun has reaped it and ended the other rank. seen: how many ranks the supervisor saw alive."""
    made = real_round(how)
    if seen == 2:
        until(lambda: made.find_ranks() or made.ranks.complete, 30)
    (tmp_path / "kill").touch()
    until((tmp_path / "told").exists, 30)  # torchrun has reaped rank 0 and sent rank 1 SIGTERM
    [other] = [pid for pid in children(made.torchrun.pid) if "RANK" in proc_environ(pid)]
    if seen == 1:
        made.find_ranks()
    os.kill(made.torchrun.pid, signal.SIGSTOP)  # so that the supervisor sees rank 1's exit code
    (tmp_path / "go").touch()
    until(lambda: proc_stat(other)[0] == "Z", 30)
    made.look()
    assert made.reason is None or made.reason.rank == (0 if seen == 2 else None)
    os.kill(made.torchrun.pid, signal.SIGCONT)
    until(lambda: made.look() or made.phase is Phase.STOPPED, 30)
    assert made.cause and (made.cause[1].rank, made.cause[1].kind) == (0, "killed")


def test_if_torchrun_never_reports_the_rank_that_nobody_saw_no_other_rank_is_named(
    real_round: Callable[[str], Round], tmp_path: Path
) -> None:
    made = real_round("SIGTERM")
    (tmp_path / "kill").touch()
    until((tmp_path / "told").exists, 30)  # torchrun has reaped rank 0 and sent rank 1 SIGTERM
    made.find_ranks()
    [other] = made.ranks.by_local_rank.values()
    os.kill(made.torchrun.pid, signal.SIGSTOP)
    (tmp_path / "go").touch()
    until(lambda: proc_stat(other.pid)[0] == "Z", 30)
    made.look()
    os.kill(made.torchrun.pid, signal.SIGKILL)
    until(lambda: made.look() or made.phase is Phase.STOPPED, 30)
    assert made.cause and (made.cause[1].rank, made.cause[1].kind) == (None, "exit-code")
    assert made.cause[1].message == "a rank failed, and torchrun ended the others"
