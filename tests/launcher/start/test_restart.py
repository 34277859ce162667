"""Which failures are worth another attempt."""

from __future__ import annotations

import pytest

from launcher.failure import FirstFailure
from launcher.hosts import Cluster, Host, Job
from launcher.outcomes import RunState
from launcher.runs.record import AttemptRecord
from launcher.start.restart import BACKOFF, decide, with_spares
from launcher.start.resume import on_other_hosts
from launcher.terminal.console import Console


def attempt(kind: str, progress: bool | None = True, by: str = "restart") -> AttemptRecord:
    return AttemptRecord(
        attempt=1,
        state=RunState.FAILED,
        created="",
        nodes=[],
        world_size=2,
        master_addr="a",
        master_port=1,
        first_failure=FirstFailure("a", 0, None, None, 1, None, kind, "", "", "", ""),
        progress=progress,
        by=by,
    )


FIRST = attempt("killed", by="launch")


@pytest.mark.parametrize("kind", ["host-lost", "killed", "hung", "collective-timeout"])
def test_what_chance_did_is_tried_again(kind: str) -> None:
    verdict = decide([attempt(kind, by="launch")], max_restarts=3)
    assert verdict.restart
    assert verdict.wait == BACKOFF[0]


@pytest.mark.parametrize("kind", ["usage", "file-missing", "exception", "cuda-oom", "unknown"])
def test_what_would_fail_again_is_not(kind: str) -> None:
    verdict = decide([attempt(kind)], max_restarts=3)
    assert not verdict.restart
    assert kind in verdict.why


def test_restarts_are_counted_and_wait_longer_each_time() -> None:
    assert decide([FIRST, attempt("killed")], max_restarts=3).wait == BACKOFF[1]
    used_up = decide([FIRST, *[attempt("killed")] * 3], max_restarts=3)
    assert not used_up.restart
    assert "3 of 3" in used_up.why


def test_three_attempts_without_progress_are_enough() -> None:
    stuck = [attempt("killed"), *[attempt("killed", progress=False)] * 3]
    verdict = decide(stuck, max_restarts=10)
    assert not verdict.restart
    assert "3 attempts" in verdict.why
    assert decide([*stuck, attempt("killed")], max_restarts=10).restart


def test_a_resume_by_hand_begins_the_count_anew() -> None:
    resumed = [FIRST, *[attempt("killed")] * 3, attempt("killed", by="resume")]
    verdict = decide(resumed, max_restarts=3)
    assert verdict.restart and verdict.wait == BACKOFF[0]


NOWHERE = Host("127.0.0.1", port=1)  # nothing listens there
HERE = Host("local", gpus=0)


def test_a_spare_takes_the_rank_of_a_lost_host_and_is_used_once() -> None:
    cluster = Cluster((HERE, NOWHERE), Job(engine="process"), spares=(HERE,))
    available = with_spares(cluster, Console())
    assert available.cluster.hosts == (HERE, HERE)
    assert (available.cluster.spares, available.missing, available.former) == ((), (), ())


def test_a_lost_host_without_a_spare_is_missing() -> None:
    available = with_spares(Cluster((NOWHERE, HERE), Job(engine="process")), Console())
    assert available.cluster.hosts == (NOWHERE, HERE)
    [error] = available.missing
    assert error.host == "127.0.0.1"


def test_a_host_that_its_peers_lost_gives_way_only_to_a_spare() -> None:
    """It answers the launching machine, so what it has of the checkpoints can still be had."""
    spare = Host("spare.lab")
    job = Job(engine="process")
    replaced = with_spares(Cluster((HERE,), job, spares=(spare,)), Console(), "local")
    assert (replaced.cluster.hosts, replaced.former, replaced.missing) == ((spare,), (HERE,), ())
    kept = with_spares(Cluster((HERE,), job), Console(), "local")
    assert (kept.cluster.hosts, kept.missing) == ((HERE,), ())


def test_on_other_hosts_the_job_is_the_runs_own_but_for_what_the_file_says() -> None:
    run = Job(command=("train.py", "--lr", "1"), image="mine:1", env={"A": "1"}, max_restarts=2)
    other = Job(image="other:2", nproc_per_node=4, command=("else.py",))
    job = on_other_hosts(Cluster((HERE,), run), Cluster((HERE, HERE), other)).job
    assert (job.image, job.nproc_per_node, job.max_restarts) == ("other:2", 4, 2)
    assert (job.command, dict(job.env)) == (("train.py", "--lr", "1"), {"A": "1"})
