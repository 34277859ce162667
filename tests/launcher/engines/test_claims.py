"""Who gets a GPU: in any interleaving, exactly one of the runs that want it starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engines.claims import goes_first, rivals, taken, undecided
from launcher.engines.status import LEASE, ContainerState, NodeStatus, read_status

LABELS = {
    "io.ddpctl.run-id": "b",
    "io.ddpctl.attempt": "1",
    "io.ddpctl.node-rank": "0",
    "io.ddpctl.nnodes": "1",
    "io.ddpctl.owner": "ann@desk",
    "io.ddpctl.gpus": "GPU-1,GPU-2",
    "io.ddpctl.since": "100.5",
    "io.ddpctl.master-port": "29500",
}


def status(state: str = "running", age: float = 0.0, **labels: str) -> NodeStatus:
    given = {**LABELS, **{f"io.ddpctl.{key.replace('_', '-')}": v for key, v in labels.items()}}
    read = read_status("gpu1", "c", given, NodeStatus(state=ContainerState(state)))
    assert read
    return dataclasses.replace(read, age=age)


def test_a_label_names_the_gpus_and_the_place_in_line() -> None:
    read = status()
    assert read.gpus == ("GPU-1", "GPU-2") and read.since == 100.5
    assert read.resources == {"GPU-1", "GPU-2", "port 29500"}
    assert status(node_rank="1", nnodes="2").resources == {"GPU-1", "GPU-2"}
    assert status(gpus="", master_port="").resources == frozenset()


def test_only_other_runs_that_share_something_are_rivals() -> None:
    other = status(gpus="GPU-9", master_port="")
    assert rivals("a", {"GPU-1"}, [status(), other]) == [status()]
    assert rivals("a", {"port 29500"}, [status(), other]) == [status()]
    assert rivals("b", {"GPU-1"}, [status()]) == []
    assert rivals("a", set(), [status()]) == []
    assert rivals("a", {"GPU-1"}, [status("exited"), status("dead")]) == []


@pytest.mark.parametrize(
    ("state", "age", "earlier", "later"),
    [
        ("running", 0, "first", "first"),
        ("paused", 9e9, "first", "first"),
        ("created", 0, "first", "undecided"),
        ("created", LEASE + 1, "", ""),
        ("waiting", 0, "first", ""),
        ("waiting", LEASE + 1, "", ""),
        ("removing", 0, "undecided", "undecided"),
    ],
)
def test_who_goes_first(state: str, age: float, earlier: str, later: str) -> None:
    for since, expected in (("100", earlier), ("300", later)):
        rival = status(state, age, since=since)
        first, unsure = goes_first(rival, (200.0, "a")), undecided(rival)
        assert ("first" if first else "undecided" if unsure else "") == expected, rival


def test_the_error_names_the_run_that_has_the_gpus_its_owner_and_its_start() -> None:
    said = taken({"GPU-1", "GPU-2", "port 1"}, {"GPU-1": 0, "GPU-2": 1}, status())
    assert said == "run b (ann@desk) has GPUs 0-1 (since 1970-01-01T00:01:40Z)"
    said = taken({"port 29500"}, {}, status("waiting"))
    assert said == "run b (ann@desk) is waiting for port 29500 (since 1970-01-01T00:01:40Z)"


@dataclass
class World:
    """The engines of three hosts with two GPUs each: (host, run id) -> what is there."""

    there: dict[tuple[int, str], NodeStatus] = field(default_factory=dict)

    def listed(self, host: int) -> list[NodeStatus]:
        return [each for (at, _), each in self.there.items() if at == host]

    def create(self, host: int, run_id: str, gpus: frozenset[int], since: int) -> None:
        uuids = ",".join(f"GPU-{gpu}" for gpu in sorted(gpus))
        labels = {"run_id": run_id, "gpus": uuids, "since": str(since), "master_port": ""}
        self.there[host, run_id] = status("created", **labels)

    def start(self, host: int, run_id: str) -> None:
        mine = self.there[host, run_id] = dataclasses.replace(
            self.there[host, run_id], state=ContainerState.RUNNING
        )
        for rival in rivals(run_id, mine.resources, self.listed(host)):
            assert rival.state != "running", f"{run_id} and {rival.run_id} run on one GPU"


Wants = dict[int, frozenset[int]]  # GPUs by host


def launching(world: World, run_id: str, since: int, wants: Wants) -> Iterator[str]:
    """start/settle_with_rivals.py without its effects; each step may be followed by a step of another."""
    key = (float(since), run_id)
    for host, gpus in wants.items():
        yield "create"
        world.create(host, run_id, gpus, since)
    while True:
        found = []
        for host in wants:
            yield "list"
            mine = world.there[host, run_id]
            found += rivals(run_id, mine.resources, world.listed(host))
        if any(goes_first(rival, key) for rival in found):
            for host in wants:
                yield "withdraw"
                del world.there[host, run_id]
            return
        if not any(undecided(rival) for rival in found):
            break
    for host in wants:
        yield "start"
        world.start(host, run_id)


wanted = st.dictionaries(
    st.integers(0, 2), st.frozensets(st.integers(0, 1), min_size=1), min_size=1, max_size=3
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), wanted), min_size=2, max_size=4),
    st.lists(st.integers(0, 3), max_size=120),
)
def test_in_any_interleaving_no_gpu_is_shared_and_some_run_starts(
    launches: list[tuple[int, Wants]], schedule: list[int]
) -> None:
    """Also with equal times. When all are through, what is not running has left nothing."""
    world = World()
    steps = {
        number: launching(world, f"run{number}", since, wants)
        for number, (since, wants) in enumerate(launches)
    }
    turns = [*schedule, *[n % len(launches) for n in range(400)]]
    for number in turns:
        if number in steps and next(steps[number], None) is None:
            del steps[number]
    assert not steps, "a launch waits for ever"
    assert {each.state for each in world.there.values()} == {"running"}
    started = {run_id for _, run_id in world.there}
    for number, (_, wants) in enumerate(launches):
        running = all((host, f"run{number}") in world.there for host in wants)
        assert running == (f"run{number}" in started), "a run started on some of its hosts"
    if len(launches) == 2:
        [one, two] = (wants for _, wants in launches)
        shared = any(one[host] & two[host] for host in one.keys() & two.keys())
        assert len(started) == (1 if shared else 2)
