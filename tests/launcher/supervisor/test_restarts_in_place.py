"""Supervisors that start torchrun again after a failure, without anybody else: when, and when not."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quick_torchrun
from quick_torchrun import python_with_quick_torchrun
from restarting_ranks import LINES
from supervisors import NPROC, WITH_TORCH, Attempt, Node, until

from launcher.supervisor.events import End, EndState, RankExit, RestartInPlace, Stopping

SCRIPT = Path(__file__).parents[2] / "helpers" / "restarting_ranks.py"
RESTARTS = {
    "max_restarts": 3,
    "restart_pauses": [0.0],
    "resume_args": ["--resume"],
}
Start = Callable[..., Attempt]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return python_with_quick_torchrun(tmp_path_factory.mktemp("quick"))


@pytest.fixture
def importing(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fields of Spec with the usual torchrun script. Its torch writes its pid and the time to `imports`."""
    package = tmp_path / "modules" / "torch" / "distributed"
    package.mkdir(parents=True)
    log = (
        f"import os, time; open({str(tmp_path / 'imports')!r}, 'a').write(f'{{time.time()}}\\n')\n"
    )
    quick = inspect.getsource(quick_torchrun).replace("from __future__ import annotations", log)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "run.py").write_text(quick)
    script = tmp_path / "torchrun"
    main = "import sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"
    script.write_text(f"#!{python}\n{main}")
    script.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    topology = ["--nnodes=1", "--node-rank=0", f"--nproc-per-node={NPROC}"]
    master = ["--master-addr=127.0.0.1", "--master-port=1", "--max-restarts=0"]
    return {"argv": [str(script), *topology, *master, "--", str(SCRIPT)]}


@pytest.fixture
def start(tmp_path: Path, python: str) -> Iterator[Start]:
    """start(nodes, "RANK:ROUND:DEED", ..., **spec): supervisors that may restart three times."""
    with contextlib.ExitStack() as opened:

        def start(count: int, *deeds: str, **spec: Any) -> Attempt:
            made = Attempt(tmp_path, python=python, script=SCRIPT)
            made.add(count, deeds, **{**RESTARTS, **spec})
            opened.callback(made.close)
            made.start()
            return made

        yield start


def restarts(node: Node) -> list[RestartInPlace]:
    return [event for _, event in node.events(RestartInPlace)]


def said(node: Node) -> list[str]:
    """What the supervisor itself has written about restarts."""
    lines = (line.decode() for line in node.lines(None))
    return [line.removeprefix("ddpctl: ") for line in lines if "restarting in place" in line]


def lines_by_round(node: Node, rank: int) -> dict[int, list[int]]:
    """The numbered lines of a rank, by round, in the journal's order."""
    found: dict[int, list[int]] = {}
    for line in node.lines(rank):
        words = line.split()
        if len(words) == 2:
            found.setdefault(int(words[0]), []).append(int(words[1]))
    return found


def in_a_pause(made: Attempt) -> None:
    """Wait until all ranks have ended and node 0 is waiting to start them again."""

    def ended() -> bool:
        return all(len(node.events(RankExit)) == NPROC for node in made.nodes)

    until(ended, 30)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_killed_rank_restarts_all_nodes_with_the_resume_arguments(
    start: Start, rank: int
) -> None:
    made = start(2, f"{rank}:0:kill")
    assert made.wait() == [0, 0]
    host = f"gpu{rank // NPROC + 1}"
    for node in made.nodes:
        [restart] = restarts(node)
        assert (restart.number, restart.left, restart.saved) == (1, 2, False)
        assert (restart.cause.kind, restart.cause.host, restart.cause.rank) == (
            "killed",
            host,
            rank,
        )
        assert node.end == End(EndState.SUCCEEDED, 0)
        for own in range(NPROC * node.node_rank, NPROC * (node.node_rank + 1)):
            assert b"round 0 resume 0" in node.lines(own)
            assert b"round 1 resume 1 --resume" in node.lines(own)
    assert made.survivors() == []
    first, second = made.nodes
    local = f"rank {rank} ({host}, local_rank {rank % NPROC})"
    assert said(first) == [f"restarting in place (1 of 3): {local} was killed by SIGKILL"]
    assert said(second) == [], "one line for the whole run"


def test_torchrun_is_started_again_while_the_old_one_stops_because_it_takes_seconds_to_import_torch(
    start: Start, importing: dict[str, Any], tmp_path: Path
) -> None:
    importing["argv"] += ["1:0:kill", "0:0:later"]
    made = start(1, **importing)
    assert made.wait() == [0]
    [node] = made.nodes
    [(restarted, _)] = node.events(RestartInPlace)
    [_, imported] = map(float, (tmp_path / "imports").read_text().split())
    assert imported < restarted
    assert b"round 1 resume 1 --resume" in node.lines(0)


def test_a_torchrun_that_is_not_needed_ends_with_the_run(
    start: Start, importing: dict[str, Any]
) -> None:
    importing["argv"] += ["1:0:raise"]
    made = start(1, **importing)
    assert made.wait() == [1]
    assert made.survivors() == []


def test_each_line_is_there_once_across_rounds_and_only_the_last_rounds_files_stay(
    start: Start,
) -> None:
    made = start(2, "0:0:save", "1:0:kill", "2:1:save", "3:1:kill")
    assert made.wait() == [0, 0]
    for node in made.nodes:
        for rank in range(NPROC * node.node_rank, NPROC * (node.node_rank + 1)):
            assert lines_by_round(node, rank) == {n: list(range(LINES)) for n in range(3)}
        assert [path.name for path in (node.folder / "ranks").iterdir()] == ["2"]


def test_a_round_that_has_ended_keeps_no_file_open(start: Start) -> None:
    made = start(1, "0:0:kill", "0:1:wait")
    [node] = made.nodes
    until(lambda: b"round 1 resume 1 --resume" in node.lines(0), 30)
    links = [str(path.readlink()) for path in Path(f"/proc/{node.pid}/fd").iterdir()]
    assert [link for link in links if "/ranks/0/" in link] == []
    assert sum("/ranks/1/" in link for link in links) == 1 + 2 * NPROC


@pytest.mark.parametrize(
    ("deed", "kind"), [("kill", "killed"), ("crash", "segv"), ("lose", "peer-gone")]
)
def test_transient_failures_are_restarted(start: Start, deed: str, kind: str) -> None:
    made = start(1, f"1:0:{deed}")
    assert made.wait() == [0]
    assert [restart.cause.kind for restart in restarts(made.nodes[0])] == [kind]


def test_a_stopped_rank_is_restarted(start: Start) -> None:
    made = start(1, "1:0:stop", peer_timeout=1.0, failure_grace=0.5)
    assert made.wait() == [0]
    [restart] = restarts(made.nodes[0])
    assert (restart.cause.kind, restart.cause.rank) == ("stopped", 1)


def test_a_hung_run_is_restarted(start: Start) -> None:
    made = start(2, "1:0:wait", hang_timeout=1.0, failure_grace=0.5)
    assert made.wait() == [0, 0]
    assert [restart.cause.kind for restart in restarts(made.nodes[1])] == ["hung"]


def test_an_exception_is_not_restarted(start: Start) -> None:
    made = start(2, "1:0:raise")
    assert made.wait() == [1, 143]
    first, second = made.nodes
    assert restarts(first) == restarts(second) == []
    assert said(first) == [
        "not restarting in place: a failure of kind `exception` would happen again"
    ]
    assert (first.end.state, second.end.state) == ("failed", "stopped")


def test_a_lost_connection_does_not_hide_the_exception_that_broke_it(start: Start) -> None:
    """All stop because a rank of node 0 lost a connection. Only then the cause on node 1 shows."""
    made = start(2, "0:0:lose", "3:0:told", "3:0:raise", failure_grace=10.0)
    made.wait()
    assert made.nodes[0].events(Stopping)[0][1].reason.rank == 0
    assert restarts(made.nodes[0]) == []
    assert "`exception`" in said(made.nodes[0])[0]


def test_restarts_are_used_up_and_those_of_earlier_attempts_count(start: Start) -> None:
    made = start(1, "0:0:kill", "0:1:kill", max_restarts=2, past_restarts=[["host-lost", True]])
    assert made.wait() == [1]
    [node] = made.nodes
    [restart] = restarts(node)
    assert (restart.number, restart.left) == (1, 0)
    assert said(node) == [
        "restarting in place (2 of 2): rank 0 (gpu1, local_rank 0) was killed by SIGKILL",
        "not restarting in place: all restarts are used up (2 of 2)",
    ]


def test_three_restarts_without_a_new_checkpoint_end_the_run(start: Start) -> None:
    made = start(1, *(f"0:{round}:kill" for round in range(5)), max_restarts=9)
    assert made.wait() == [1]
    [node] = made.nodes
    assert len(restarts(node)) == 3
    assert said(node)[-1] == (
        "not restarting in place: 3 restarts in a row produced no new checkpoint"
    )


def test_a_checkpoint_on_any_node_begins_the_count_anew(start: Start) -> None:
    kills = (f"0:{round}:kill" for round in range(5))
    made = start(2, "3:2:save", "0:2:later", *kills, max_restarts=9)
    assert made.wait() == [0, 0]
    saved = [restart.saved for restart in restarts(made.nodes[0])]
    assert saved == [False, False, True, False, False]


def test_lack_of_memory_is_restarted_once(start: Start) -> None:
    made = start(1, "0:0:memory", "0:1:kill", "0:2:memory", max_restarts=9)
    assert made.wait() == [1]
    [node] = made.nodes
    assert [restart.cause.kind for restart in restarts(node)] == ["memory", "killed"]
    assert said(node)[-1] == (
        "not restarting in place: a failure of kind `memory` restarts a run only once"
    )


def test_without_max_restarts_nothing_starts_again(start: Start) -> None:
    made = start(2, "0:0:kill", max_restarts=0)
    assert made.wait() == [1, 143]
    assert said(made.nodes[0]) == [] and restarts(made.nodes[0]) == []


def test_a_node_that_is_told_to_stop_stops_all_even_in_the_pause_before_a_restart(
    start: Start,
) -> None:
    made = start(2, "0:0:kill", restart_pauses=[60.0])
    in_a_pause(made)
    os.kill(made.nodes[1].pid, signal.SIGTERM)
    made.wait()
    assert restarts(made.nodes[0]) == [] and said(made.nodes[0]) == []
    assert made.survivors() == []


def test_a_run_that_is_cancelled_in_the_pause_is_cancelled(start: Start) -> None:
    made = start(2, "0:0:kill", restart_pauses=[60.0])
    in_a_pause(made)
    for node in made.nodes:
        (node.folder / "cancelled").touch()
    os.kill(made.nodes[0].pid, signal.SIGTERM)
    assert made.wait() == [143, 143]
    assert [node.end.state for node in made.nodes] == ["cancelled", "cancelled"]


def test_a_node_that_is_lost_in_the_pause_ends_the_run(start: Start) -> None:
    made = start(2, "0:0:kill", restart_pauses=[60.0])
    in_a_pause(made)
    os.kill(made.nodes[1].pid, signal.SIGKILL)
    made.wait()
    assert said(made.nodes[0]) == ["not restarting in place: no contact with node 1 (gpu2)"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_is_lost_after_the_restart_is_the_first_failure_of_what_followed(
    start: Start, lost: int
) -> None:
    made = start(2, "1:0:kill", "1:1:wait")
    survivor = made.nodes[1 - lost]
    until(lambda: bool(restarts(survivor)), 30)
    os.kill(made.nodes[lost].pid, signal.SIGKILL)
    made.wait()
    until(lambda: made.survivors() == [], 10)
    assert (survivor.reason.kind, survivor.reason.node_rank) == ("host-lost", lost)
    cause = made.cause(**{f"node_{lost}": {"exit_code": 137}})
    assert cause is not None and (cause.kind, cause.node_rank) == ("container-killed", lost)


def test_the_first_failure_is_that_of_the_last_round(start: Start) -> None:
    made = start(1, "0:0:kill", "1:1:raise")
    assert made.wait() == [1]
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("exception", 1)


def test_the_time_limit_ends_a_run_that_was_restarted(start: Start) -> None:
    made = start(1, "0:0:kill", "0:1:wait", time_limit=2.0)
    assert made.wait() == [143]
    [node] = made.nodes
    assert len(restarts(node)) == 1
    assert (node.end.state, node.reason.kind) == ("cancelled", "time-limit")


def test_torchrun_itself_starts_again_and_its_ranks_see_the_count(tmp_path: Path) -> None:
    made = Attempt(tmp_path, python=WITH_TORCH, script=SCRIPT)
    made.add(2, ["3:0:kill"], **RESTARTS)
    with contextlib.closing(made):
        made.start()
        assert made.wait() == [0, 0]
    for rank in range(4):
        assert b"round 1 resume 1 --resume" in made.nodes[rank // NPROC].lines(rank)
