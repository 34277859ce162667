"""Which hosts a restart uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import FakeCluster

from launcher.errors import HostUnreachable, NodesFailed, PreflightError, Several
from launcher.failure import FirstFailure
from launcher.hosts import Cluster, Host, Job
from launcher.outcomes import RunState
from launcher.runs.record import BY_LAUNCHER, AttemptRecord, RestartRecord, RunRecord
from launcher.start.replace_hosts import (
    NextHosts,
    hosts_to_avoid,
    rejected_hosts,
    replace_hosts,
    unusable_hosts,
)

A, B, C, S, T = (Host(name) for name in ("a", "b", "c", "s", "t"))
DEAD = HostUnreachable("no answer")
SICK = PreflightError("its GPU failed")


def names(choice: NextHosts) -> tuple[str, str]:
    cluster = choice.cluster
    return "".join(h.name for h in cluster.hosts), "".join(h.name for h in cluster.spares)


def cluster(spares: tuple[Host, ...] = (), min_nodes: int | None = None) -> Cluster:
    return Cluster((A, B, C), Job(min_nodes=min_nodes), spares=spares)


def test_the_first_spare_that_answers_takes_the_rank_and_the_replaced_host_is_gone() -> None:
    choice = replace_hosts(cluster((S, T)), 3, {B: DEAD, S: DEAD}, {})
    assert names(choice) == ("atc", "s")
    assert (choice.missing, choice.notes) == ((), ("t replaces b: no answer",))


def test_a_host_without_a_replacement_is_missing() -> None:
    choice = replace_hosts(cluster(), 3, {B: DEAD}, {})
    assert (names(choice)[0], choice.missing) == ("abc", (DEAD,))


def test_a_host_to_avoid_stays_if_no_spare_is_left() -> None:
    assert names(replace_hosts(cluster((S,)), 3, {}, {B: SICK})) == ("asc", "")
    assert names(replace_hosts(cluster(), 3, {}, {B: SICK})) == ("abc", "")


def test_a_spare_to_avoid_is_the_last_resort() -> None:
    avoided = {S: SICK}
    assert names(replace_hosts(cluster((S, T)), 3, {A: DEAD}, avoided)) == ("tbc", "s")
    assert names(replace_hosts(cluster((S,)), 3, {A: DEAD}, avoided)) == ("sbc", "")
    assert names(replace_hosts(cluster((S,)), 3, {}, {A: SICK, S: SICK})) == ("abc", "s")


def test_fewer_hosts_go_on_and_the_others_become_spares() -> None:
    two = cluster(min_nodes=2)
    assert replace_hosts(two, 3, {B: DEAD}, {}).missing == (DEAD,)  # wait for it first
    choice = replace_hosts(two, 3, {B: DEAD}, {}, fewer=True)
    assert names(choice) == ("ac", "b")
    assert choice.notes == ("continuing without b: no answer",)
    assert replace_hosts(two, 3, {A: DEAD, B: DEAD}, {}, fewer=True).missing == (DEAD, DEAD)
    assert names(replace_hosts(two, 3, {}, {B: SICK})) == ("ac", "b")
    assert names(replace_hosts(two, 3, {}, {A: SICK, B: SICK})) == ("abc", "")
    # too few without both: the sick one stays, the dead one goes
    assert names(replace_hosts(two, 3, {B: DEAD}, {A: SICK}, fewer=True)) == ("ac", "b")


def test_a_host_that_is_back_is_used_at_the_next_restart() -> None:
    smaller = Cluster((A, C), Job(min_nodes=2), spares=(B,))
    choice = replace_hosts(smaller, 3, {}, {})
    assert names(choice) == ("acb", "")
    assert names(replace_hosts(smaller, 3, {B: DEAD}, {})) == ("ac", "b")
    assert names(replace_hosts(smaller, 3, {}, {B: SICK})) == ("ac", "b")


def test_an_error_of_an_attempt_rejects_the_hosts_that_it_names() -> None:
    far = Host("far", port=2222)
    taken = PreflightError("GPU 0 is taken", host="a")
    assert rejected_hosts(taken, (A, B)) == {A: taken}
    both = Several([NodesFailed({"b": DEAD}), PreflightError("odd", host="far:2222")])
    assert {*rejected_hosts(both, (A, B, far))} == {B, far}
    assert rejected_hosts(PreflightError("not about a host"), (A, B)) == {}


def run(*causes: tuple[str, str]) -> RunRecord:
    """A run that was restarted after these failures. causes: (kind, host)."""
    attempt = AttemptRecord(1, RunState.FAILED, "", [], 2, "a", 1)
    attempt.first_failure = FirstFailure("a", 0, None, None, 1, None, "killed", "", "", "", "")
    attempt.restarts = [
        RestartRecord("", BY_LAUNCHER, kind, host, 0, None, f"{kind} happened", True)
        for kind, host in causes
    ]
    return RunRecord("r", "", "", "docker", [], "", None, None, None, [], 1, [attempt])


def test_a_host_whose_gpu_failed_is_avoided_at_once_and_others_after_the_second_failure() -> None:
    known = cluster((S,))
    assert {*hosts_to_avoid(run(("gpu-failed", "b")), known)} == {B}
    assert {*hosts_to_avoid(run(("network-cut", "b")), known)} == {B}
    assert not hosts_to_avoid(run(("host-lost", "b")), known)
    assert not hosts_to_avoid(run(("killed", "b"), ("killed", "b")), known)
    twice = hosts_to_avoid(run(("host-lost", "b"), ("killed", "a"), ("stopped", "b")), known)
    assert {*twice} == {B}
    assert twice[B].what == "caused 2 failures of this run, the last one of kind stopped"


def test_each_look_at_the_hosts_dials_those_that_have_just_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dials = FakeCluster(tmp_path, monkeypatch, ["gpu0", "gpu1"]).silence(monkeypatch, "gpu1")
    hosts = Cluster((Host("gpu0"), Host("gpu1")), Job())
    for looks in (1, 2):
        assert [host.name for host in unusable_hosts(hosts, "20261121-153000")] == ["gpu1"]
        assert dials == ["gpu1"] * looks
