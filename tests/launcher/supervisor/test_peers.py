"""Several nodes: whatever happens to one, all end, soon, and all know the same reason."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gangs import Gang, Node, free_port, gang, until

from launcher.diagnosis.first_failure import headline
from launcher.supervisor.channel import Link
from launcher.supervisor.coordinator import odd_one_out
from launcher.supervisor.ranks import Rank, Ranks

BAR = 5.0  # seconds from a fault to the end of every node


def told_at(made: Gang, rank: int) -> float:
    """When the rank said that it would now misbehave."""
    node = made.nodes[rank // 2]
    return next(r.time for r in node.records() if r.rank == rank and r.lines == [b"now"])


def end_times(made: Gang) -> list[float]:
    return [time for node in made.nodes for time, _ in node.events("end")]


@pytest.mark.parametrize(
    ("deed", "kind", "sentence"),
    [
        ("raise", "exception", "rank 3 (gpu2, local_rank 1) raised ValueError: boom"),
        ("record", "exception", "rank 3 (gpu2, local_rank 1) raised KeyError: 'lost'"),
        ("exit", "exit-code", "rank 3 (gpu2, local_rank 1) exited with code 7"),
        ("kill", "killed", "rank 3 (gpu2, local_rank 1) was killed by SIGKILL"),
        ("segv", "segv", "rank 3 (gpu2, local_rank 1) was killed by SIGSEGV"),
    ],
)
def test_a_failed_rank_ends_all_nodes(tmp_path: Path, deed: str, kind: str, sentence: str) -> None:
    with gang(tmp_path, 2, [deed, "3"]) as made:
        codes = made.wait()
        assert made.survivors() == []
    assert codes[0] == 143 and codes[1] not in (0, 143)
    assert max(end_times(made)) - told_at(made, 3) < BAR
    ends = [node.event("end") for node in made.nodes]
    assert [end["state"] for end in ends] == ["stopped", "failed"]
    assert ends[0]["reason"] == ends[1]["reason"]
    assert (ends[0]["reason"]["rank"], ends[0]["reason"]["host"]) == (3, "gpu2")
    cause = made.cause()
    assert cause is not None
    assert (cause.kind, cause.rank, headline(cause)) == (kind, 3, sentence)


@contextlib.contextmanager
def held(node: Node, until_reaped: list[int]) -> Iterator[None]:
    """Its supervisor sees nothing of what is done inside, until torchrun has reaped those."""
    os.kill(node.pid, signal.SIGSTOP)
    try:
        yield
        until(lambda: not any(Path("/proc", str(pid)).exists() for pid in until_reaped), 20)
    finally:
        os.kill(node.pid, signal.SIGCONT)


def test_the_first_is_named_even_when_all_are_gone_before_anybody_looked(tmp_path: Path) -> None:
    """The supervisor is held while a rank dies and torchrun ends the other one for it."""
    with gang(tmp_path, 2, ["work"]) as made:
        pids = made.ranks_running()
        with held(made.nodes[1], until_reaped=[pids[2], pids[3]]):
            os.kill(pids[3], signal.SIGKILL)
        made.wait()
    reason = made.nodes[0].event("end")["reason"]
    assert (reason["rank"], reason["host"]) == (3, "gpu2")
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("killed", 3)


def test_good_ends_that_nobody_saw_are_good(tmp_path: Path) -> None:
    """The supervisor is held until torchrun has reaped its ranks and gone."""
    with gang(tmp_path, 2, ["gentle"]) as made:
        pids = made.ranks_running()
        with held(made.nodes[1], until_reaped=[pids[2], pids[3]]):
            for pid in pids.values():
                os.kill(pid, signal.SIGTERM)
        assert made.wait() == [0, 0]
    ends = [event["exit_code"] for node in made.nodes for _, event in node.events("rank_exit")]
    assert ends == [0] * 4
    assert made.cause() is None


@pytest.mark.parametrize(
    ("codes", "first"),
    [
        ([-signal.SIGTERM, -signal.SIGSEGV], 1),
        ([-signal.SIGTERM, None], 1),  # torchrun has reaped it
        ([None, 7], 1),  # it may have ended well
        ([0, -signal.SIGTERM], 1),
        ([-signal.SIGTERM, -signal.SIGTERM], 0),
        ([None, 0], None),
    ],
)
def test_of_ranks_gone_at_one_look_the_one_that_torchrun_did_not_end_is_first(
    codes: list[int | None], first: int | None
) -> None:
    ranks = Ranks(2)
    for number, code in enumerate(codes):
        ranks.by_local_rank[number] = rank = Rank(os.getpid(), number, number)
        rank.exited, rank.exit_code = 1.0, code
        if rank.fd is not None:
            os.close(rank.fd)
    found = ranks.first_failed()
    assert (found and found.rank) == first


def test_a_rank_that_ends_early_while_the_others_stand_still(tmp_path: Path) -> None:
    with gang(tmp_path, 2, ["zero", "3"], early_exit_timeout=2.0) as made:
        made.wait()
    assert 2.0 < max(end_times(made)) - told_at(made, 3) < 2.0 + BAR
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("early-exit", 3)


def test_others_that_still_work_are_given_their_time(tmp_path: Path) -> None:
    """Rank 0 writes its last checkpoint for longer than the early exit's patience."""
    with gang(tmp_path, 2, ["finish", "0"], early_exit_timeout=3.0) as made:
        assert made.wait() == [0, 0]
    assert [node.event("end")["state"] for node in made.nodes] == ["succeeded"] * 2
    assert made.cause() is None
    ends = end_times(made)
    assert max(ends) - min(ends) < 1.0, "a node that is done waits for the others"


def test_of_a_hung_gang_the_rank_that_stands_elsewhere_is_named(tmp_path: Path) -> None:
    with gang(tmp_path, 2, ["elsewhere", "3"], hang_timeout=3.0) as made:
        made.wait()
    assert [node.event("end")["state"] for node in made.nodes] == ["hung"] * 2
    cause = made.cause()
    assert cause is not None
    assert (cause.kind, cause.rank, cause.host) == ("hung", 3, "gpu2")


def test_nobody_is_named_when_several_stand_elsewhere() -> None:
    assert odd_one_out({0: "202", 1: "202", 2: "230", 3: "202"}) == 2
    assert odd_one_out({0: "202", 1: "202", 2: "230", 3: "230"}) is None
    assert odd_one_out({0: "202", 1: "7", 2: "230", 3: "202"}) is None
    assert odd_one_out({0: "202", 1: "230"}) is None


def test_a_stopped_rank_is_found(tmp_path: Path) -> None:
    with gang(tmp_path, 2, ["stop", "3"], peer_timeout=2.0) as made:
        made.wait()
        assert made.survivors() == []
    cause = made.cause()
    assert cause is not None and (cause.kind, cause.rank) == ("stopped", 3)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_supervisor_is_missed_at_once(tmp_path: Path, victim: int) -> None:
    with gang(tmp_path, 2, ["wait"]) as made:
        made.ranks_running()
        began = time.time()
        os.kill(made.nodes[victim].pid, signal.SIGKILL)
        made.wait()
        until(lambda: made.survivors() == [], 10)
    [end] = end_times(made)
    assert end - began < BAR
    [survivor] = [node for node in made.nodes if node.node_rank != victim]
    reason = survivor.event("end")["reason"]
    assert (reason["kind"], reason["node_rank"]) == ("peer-lost", victim)
    facts = {f"node_{victim}": {"exit_code": 137}}
    cause = made.cause(**facts)
    assert cause is not None
    assert (cause.kind, cause.node_rank) == ("container-killed", victim)


class Wire:
    """A TCP relay that can be cut: nothing comes through then, and nobody is told. What was sent
    arrives after the mending, as TCP has it."""

    def __init__(self, port: int) -> None:
        self.whole = threading.Event()
        self.whole.set()
        self.target = port
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.whole.wait()
                sink.sendall(data)
            self.whole.wait()
            sink.close()


@pytest.fixture
def wired(tmp_path: Path) -> Iterator[tuple[Gang, Wire]]:
    """Two nodes whose supervisors talk through a wire."""
    made = Gang(tmp_path)
    nodes = made.add(2, ["wait"], peer_timeout=3.0)
    wire = Wire(nodes[0].spec["control_port"])
    nodes[1].spec["control_port"] = wire.port
    try:
        made.start()
        made.ranks_running()
        until(lambda: bool(nodes[1].events("clock")), 10)
        yield made, wire
    finally:
        made.close()
        wire.server.close()


def test_a_cut_wire_ends_both_sides(wired: tuple[Gang, Wire]) -> None:
    made, wire = wired
    began = time.time()
    wire.whole.clear()
    made.wait()
    assert max(end_times(made)) - began < 3.0 + BAR
    reasons = [node.event("end")["reason"] for node in made.nodes]
    assert [reason["kind"] for reason in reasons] == ["peer-lost"] * 2
    assert [reason["node_rank"] for reason in reasons] == [1, 0], "each misses the other"
    cause = made.cause()
    assert cause is not None and cause.kind == "network-cut"


def test_a_short_cut_is_nothing(wired: tuple[Gang, Wire]) -> None:
    made, wire = wired
    wire.whole.clear()
    time.sleep(1.5)  # the length of the cut is what is tested
    wire.whole.set()
    time.sleep(2.5)  # longer than the rest of the patience
    assert all(node.process and node.process.poll() is None for node in made.nodes)
    assert not any(node.events("stopping") for node in made.nodes)


def test_clocks_are_compared(wired: tuple[Gang, Wire]) -> None:
    made, _ = wired
    clocks = [event for _, event in made.nodes[1].events("clock")]
    assert abs(clocks[-1]["offset"]) < 0.05 and clocks[-1]["error"] < 0.05


def test_sigterm_to_one_node_stops_all(tmp_path: Path) -> None:
    with gang(tmp_path, 2, ["gentle"]) as made:
        made.ranks_running()
        os.kill(made.nodes[1].pid, signal.SIGTERM)
        assert made.wait() == [143, 143]
        assert made.survivors() == []
    for rank in range(4):
        assert made.nodes[rank // 2].lines(rank)[-1] == b"saved"


def test_a_kill_that_reaches_one_node_first_is_a_cancellation_everywhere(tmp_path: Path) -> None:
    marks = tmp_path / "cancelled"
    with gang(tmp_path, 2, ["wait"], cancel_file=str(marks)) as made:
        made.ranks_running()
        marks.touch()
        os.kill(made.nodes[1].pid, signal.SIGTERM)
        made.wait()
    assert [node.event("end")["state"] for node in made.nodes] == ["cancelled"] * 2


def test_a_node_that_never_comes_is_named(tmp_path: Path) -> None:
    made = Gang(tmp_path)
    made.add(3, ["wait"], start_timeout=3.0)
    present = [made.nodes[0], made.nodes[2]]
    try:
        for node in present:
            node.start()
        for node in present:
            node.wait()
    finally:
        made.nodes = present
        made.close()
    for node in present:
        reason = node.event("end")["reason"]
        assert (reason["kind"], reason["node_rank"]) == ("never-joined", 1)
        assert "gpu2" in reason["message"]


def test_a_late_node_is_told_that_it_is_over(tmp_path: Path) -> None:
    made = Gang(tmp_path)
    first, second = made.add(2, ["exit", "0"], cwd="/nowhere")
    try:
        first.start()
        until(lambda: bool(first.events("stopping")), 10)
        second.spec["cwd"] = None
        second.start()
        assert second.wait() == 143
        first.wait()
    finally:
        made.close()
    assert second.event("end")["reason"]["kind"] == "start"
    assert second.event("end")["reason"]["host"] == "gpu1"


def test_a_stranger_is_refused_and_does_no_harm(tmp_path: Path) -> None:
    with gang(tmp_path, 2, ["wait"]) as made:
        hub = made.nodes[0]
        made.ranks_running()
        until(lambda: bool(hub.events("joined")), 10)
        sock = socket.create_connection(("127.0.0.1", hub.spec["control_port"]))
        stranger = Link(sock, "a guess", listening=False)
        until(lambda: stranger.receive() == [] and stranger.ready, 5)
        reason: dict[str, Any] = {"kind": "rank-failed", "time": 0.0}
        stranger.send({"node_rank": 1, "phase": "stopped", "reason": reason, "sent": 0.0})
        until(lambda: bool(hub.events("refused")), 5)
        with socket.create_connection(("127.0.0.1", hub.spec["control_port"])) as noise:
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        time.sleep(1.5)  # two beats
        assert not any(node.events("stopping") for node in made.nodes)


def test_a_taken_control_port_is_said(tmp_path: Path) -> None:
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        gang(tmp_path, 2, ["wait"], control_port=port, start_timeout=10.0) as made,
    ):
        made.nodes[0].wait()
    reason = made.nodes[0].event("end")["reason"]
    assert reason["kind"] == "control-port" and str(port) in reason["message"]
