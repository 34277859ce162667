"""The probe's rounds, with agents that answer as told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
from healthy import machine, with_facts

from launcher.errors import HostUnreachable
from launcher.facts.network import Address
from launcher.facts.rdma import Gid, RdmaPort
from launcher.hosts import Job
from launcher.preflight import probe as probe_module
from launcher.preflight.machine import Machine
from launcher.preflight.probe import Probe, parse_dialed
from launcher.preflight.reach import Dial, DialResult, Reach
from launcher.ssh.stream import Stderr, Stream

Fate = Callable[[str, int], str]  # of a dial: its address and its number for this address


class FakeAgent(Stream):
    """An agent. fate: what becomes of its dials; any text that is no outcome is reported as it is."""

    def __init__(self, rank: int, fate: Fate, reachable: Mapping[str, int]) -> None:
        self.rank, self.fate, self.reachable = rank, fate, reachable
        self.stderr, self.output = Stderr(), b""
        self.dialed: list[str] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        for order in bytes(data).decode().splitlines():
            self.output += f"{self.answer(*order.split())}\n".encode()

    def answer(self, order: str, *words: str) -> str:
        if order == "listen":
            return f"listening {words[0]} {words[0] if words[0] != '0' else 40000 + self.rank}"
        key, ip, port = words
        self.dialed.append(ip if port.startswith("400") else f"{ip}:{port}")
        outcome = self.fate(self.dialed[-1], self.dialed.count(self.dialed[-1]))
        if outcome == "ok":
            return f"dialed {key} ok {self.reachable[ip]} 0.010"
        return f"dialed {key} {outcome}" if outcome.isalpha() else outcome

    def read(self, size: int = 0, timeout: float | None = None) -> bytes:
        if not self.output:
            raise TimeoutError("nothing more to say")
        output, self.output = self.output, b""
        return output

    def close_stdin(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def is_alive(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


class Network:
    """Machines with fake agents. fate: of each dial, by source."""

    def __init__(self, machines: list[Machine], job: Job | None = None) -> None:
        self.machines, self.probe = machines, Probe(job or Job())
        self.fates: dict[int, Fate] = {}
        owner = {a.ip: m.rank for m in machines for a in m.facts.addresses}
        self.agents = {
            m.rank: FakeAgent(m.rank, lambda *dial, rank=m.rank: self.fate(rank, *dial), owner)
            for m in machines
        }

    def fate(self, rank: int, ip: str, number: int) -> str:
        return self.fates.get(rank, lambda *_: "ok")(ip, number)

    def run(self, monkeypatch: pytest.MonkeyPatch) -> Reach:
        no_image = SimpleNamespace(python_in_image=lambda image: ())
        monkeypatch.setattr(probe_module, "engine_of", lambda *_: no_image)
        for rank, agent in self.agents.items():
            node = SimpleNamespace(open_script=lambda *_, agent=agent: agent)
            self.probe.start(rank, node)  # type: ignore[arg-type]
        return self.probe.run(self.machines)


def two_networks(count: int) -> list[Machine]:
    """Machines with a second address, 192.168.0.N, that is the less preferred one."""
    made = [machine(rank) for rank in range(count)]
    return [
        with_facts(m, addresses=(*m.facts.addresses, Address(f"192.168.0.{m.rank + 1}", "eth1")))
        for m in made
    ]


def test_healthy_hosts_dial_each_other_once(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(two_networks(3))
    reach = network.run(monkeypatch)
    assert [sorted(agent.dialed) for agent in network.agents.values()] == [
        ["10.0.0.2", "10.0.0.3"],
        ["10.0.0.1", "10.0.0.3"],
        ["10.0.0.1", "10.0.0.2"],
    ]
    assert len(reach.results) == 6
    assert all(result == DialResult("ok", 0.01) for result in reach.results.values())
    assert (reach.unprobed, reach.unfinished) == (frozenset(), frozenset())


def test_each_roce_port_is_dialed_by_one_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_port(m: Machine) -> Machine:
        gids = (
            Gid(3, ip := f"192.168.0.{m.rank + 1}", "RoCE v2"),
            Gid(5, "169.254.0.1", "RoCE v2"),
        )
        port = RdmaPort("mlx5_1:1", "ACTIVE", is_ethernet=True, gbits=100, gids=gids)
        linklocal = Address("169.254.0.1", "eth1")
        addresses = (*m.facts.addresses, Address(ip, "eth1"), linklocal)
        return with_facts(m, addresses=addresses, rdma_ports=(port,))

    network = Network([with_port(machine(rank)) for rank in range(3)], Job(master_port=29500))
    network.fates[0] = lambda ip, _: "refused" if ip.startswith("192.168") else "ok"
    reach = network.run(monkeypatch)
    rails = {dial: r.ok for dial, r in reach.results.items() if dial.ip.startswith("192.168")}
    assert {(dial.source, dial.target, dial.ip): ok for dial, ok in rails.items()} == {
        (2, 0, "192.168.0.1"): True,
        (0, 1, "192.168.0.2"): False,
        (1, 2, "192.168.0.3"): True,
    }
    assert all(result.ok for dial, result in reach.results.items() if dial not in rails)
    assert all(ip.endswith("29500") for ip in network.agents[1].dialed[2:-1])


def test_only_a_host_whose_best_address_fails_is_dialed_at_its_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Network(two_networks(3))
    network.fates[2] = lambda ip, _: "refused" if ip == "10.0.0.2" else "ok"
    reach = network.run(monkeypatch)
    assert network.agents[0].dialed == ["10.0.0.2", "10.0.0.3", "192.168.0.2"]
    assert network.agents[2].dialed == ["10.0.0.1", "10.0.0.2", "192.168.0.2"]
    assert reach.unreached == {"10.0.0.2"}


def test_the_master_port_is_dialed_on_node_0_only(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network([machine(rank) for rank in range(3)], Job(master_port=29500))
    network.fates[1] = lambda ip, _: "refused" if ip.endswith(":29500") else "ok"
    reach = network.run(monkeypatch)
    assert network.agents[1].dialed == ["10.0.0.1", "10.0.0.3", "10.0.0.1:29500"]
    assert {d.source: result.outcome for d, result in reach.master.items()} == {
        1: "refused",
        2: "ok",
    }
    assert reach.unreached == frozenset()


def test_another_machine_at_the_address_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network([machine(rank) for rank in range(2)])
    network.fates[1] = lambda *_: "dialed 0 ok 7 0.010"
    assert network.run(monkeypatch).results[Dial(1, 0, "10.0.0.1")].outcome == "wrong"


@pytest.mark.parametrize("nonsense", ["nonsense!", "x" * 5000, "dialed 9 ok 0 0.100"])
def test_an_agent_that_does_not_report_its_connections_is_not_asked_again(
    nonsense: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(two_networks(3))
    network.fates[2] = lambda *_: nonsense
    network.fates[0] = lambda ip, _: "refused" if ip == "10.0.0.2" else "ok"
    reach = network.run(monkeypatch)
    assert reach.unfinished == {2}
    assert {dial.source for dial in reach.results} == {0, 1}
    assert network.agents[2].dialed == ["10.0.0.1", "10.0.0.2"]
    assert network.agents[0].dialed[-1] == "192.168.0.2"


@pytest.mark.parametrize(
    "said", ["no python here", "listening 0 99999999999", "listening 1 40001", "listening 0 ²"]
)
def test_an_agent_that_ends_is_unfinished_and_one_that_never_starts_is_unprobed(
    said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> bytes:
        raise HostUnreachable("gpu2: gone")

    network = Network([machine(rank) for rank in range(4)])
    network.agents[2].answer = lambda *_: said  # type: ignore[method-assign]
    network.agents[3].read = lambda *_, **__: b""  # type: ignore[method-assign]
    network.fates[1] = gone  # type: ignore[assignment]
    reach = network.run(monkeypatch)
    assert reach.unprobed == {2, 3}
    assert reach.unfinished == {1}
    assert reach.results.keys() == {Dial(0, 1, "10.0.0.2")}
    assert [agent.closed for agent in network.agents.values()] == [False, False, True, True]
    network.probe.close()
    assert all(agent.closed for agent in network.agents.values())


@pytest.mark.parametrize("endless", [b"nonsense\n" * 1000, b"x" * 1000])
def test_an_agent_that_never_stops_talking_is_cut_off(
    endless: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "ROUND_TIMEOUT", 0.2)
    network = Network([machine(rank) for rank in range(2)])
    talker = network.agents[1]

    def talk(*_: object) -> str:
        talker.read = lambda *_, **__: endless  # type: ignore[method-assign]
        return "nothing"

    network.fates[1] = talk
    assert network.run(monkeypatch).unfinished == {1}


def test_a_long_line_without_an_end_is_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network([machine(rank) for rank in range(2)])
    talker, reads = network.agents[1], 0

    def read(*_: object, **__: object) -> bytes:
        nonlocal reads
        reads += 1
        return b"x" * 1000

    def talk(*_: object) -> str:
        talker.read = read  # type: ignore[method-assign]
        return "nothing"

    network.fates[1] = talk
    assert network.run(monkeypatch).unfinished == {1}
    assert reads < 10


def test_one_machine_alone_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Probe(Job()).run([machine(0)]) == Reach()
    twins = [with_facts(machine(0), network_stack="one") for _ in range(2)]
    network = Network([twins[0], replace(twins[1], ranks=(1,))])
    assert network.run(monkeypatch).results == {}


# What the agents say


@pytest.mark.parametrize(("port", "listens"), [("65535", True), ("65536", False), ("0", False)])
def test_a_port_that_does_not_exist_is_not_dialed(
    port: str, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = FakeAgent(0, lambda *_: "ok", {})
    monkeypatch.setattr(agent, "answer", lambda *_: f"listening 0 {port}")
    assert probe_module._listen(agent, 0) == (int(port) if listens else 0)


def test_the_words_of_an_agent() -> None:
    dials = [Dial(0, 1, "10.0.0.2")]
    assert parse_dialed("dialed 0 ok 1 0.125", dials) == {dials[0]: DialResult("ok", 0.125)}
    assert parse_dialed("dialed 0 ok 2 0.125", dials) == {dials[0]: DialResult("wrong", 0.125)}
    assert parse_dialed("dialed 0 timeout", dials) == {dials[0]: DialResult("timeout")}


@pytest.mark.parametrize(
    "line",
    ["done", "", "dialed 1 ok 1 0.125", "dialed -1 ok 1 0.125", "dialed 0 ok", "dialed 0 nonsense",
     "dialed ² refused", "dialed 0 ok 1 nan"],
)  # fmt: skip
def test_anything_else_that_a_host_prints_is_skipped(line: str) -> None:
    assert parse_dialed(line, [Dial(0, 1, "10.0.0.2")]) == {}
