"""What the events of one host's relay can make this machine do."""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import PushFailed
from launcher.hosts import Host
from launcher.push.files import manifest, push_tree
from launcher.push.files.manifest import Entry
from launcher.push.files.push_tree import STEP_TIMEOUT, TreePush
from launcher.push.files.scan import Tree
from launcher.push.transfer import chain, fanout, payload
from launcher.push.transfer.chain import STEP, Transfer
from launcher.push.transfer.fanout import Fanout
from launcher.push.transfer.payload import TIMEOUT, Payload, end_timeout
from launcher.push.transfer.relay_client import Relay, RelayEvent
from launcher.ssh.host_connection import HostConnection


class Progress:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class StuckRelay:
    """A host that takes nothing."""

    lost, is_leaf, slow_readers, address, port = None, False, 0, "127.0.0.1", 1

    def __init__(self) -> None:
        self.connection, self.feeds = HostConnection(Host("evil")), queue.SimpleQueue[Any]()

        self.orders: list[str] = []

    def order(self, op: str, **_: Any) -> None:
        self.orders.append(op)


def transfer_to(*relays: Any) -> Transfer:
    dataset = Payload("dataset", lambda _: ("cat",), 1 << 30, lambda: iter([b"x"]))
    progress: Any = Progress()
    return Transfer("p0", dataset, relays, progress)


def test_a_relay_that_asks_for_bytes_forever_is_fed_once() -> None:
    relay: Any = StuckRelay()
    made, before = transfer_to(relay), threading.active_count()
    for _ in range(1000):
        made.handle(made.hosts[relay], RelayEvent("starved", "p0", 0, ""))
    assert (relay.feeds.qsize(), threading.active_count()) == (1, before)


@pytest.mark.parametrize("port", [0, -1, 70_000, 10**400])
def test_a_relay_that_reports_an_impossible_port_is_none(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts that are told to connect to it would fail."""
    local = HostConnection(Host("local"))
    event, start = json.dumps(["ready", "", port, ""]), local.open
    agent = ["sh", "-c", f"echo '{event}'; exec sleep 60"]
    monkeypatch.setattr(local, "open", lambda _: start(agent))
    with pytest.raises(PushFailed, match="reports port"):
        Relay(local, "127.0.0.1", "", "")


@pytest.mark.parametrize(("text", "why"), [("No space left on device", "No space"), ("", "exit 1")])
def test_a_relay_whose_command_fails_has_failed(text: str, why: str) -> None:
    relay: Any = StuckRelay()
    made = transfer_to(relay)
    [host] = made.hosts.values()
    made.handle(host, RelayEvent("done", "p0", 1, text))
    assert host.done and why in str(host.error)


def test_if_the_bytes_cannot_be_read_here_every_host_stops_waiting_for_them() -> None:
    relays: list[Any] = [StuckRelay(), StuckRelay()]
    made = transfer_to(*relays)

    def unreadable() -> Iterator[bytes]:
        raise PushFailed("data: Permission denied", "")

    made.payload = replace(made.payload, chunks=unreadable)
    made.handle(made.hosts[relays[0]], RelayEvent("starved", "p0", 0, ""))
    relays[0].feeds.get()()
    assert all("close" in relay.orders for relay in relays)
    assert all("Permission denied" in str(host.error) for host in made.hosts.values())
    made.handle(made.hosts[relays[1]], RelayEvent("starved", "p0", 0, "its source hung up"))
    assert relays[1].feeds.empty()


def test_a_relay_that_claims_single_bytes_forever_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "TIMEOUT", 0.2)
    monkeypatch.setattr(chain, "TICK", 0.01)
    relay: Any = StuckRelay()
    made, stop = transfer_to(relay), threading.Event()
    [host] = made.hosts.values()

    def drip() -> None:
        for count in itertools.count(1):
            if stop.wait(0.02):
                return
            made.handle(host, RelayEvent("have", "p0", count, str(count)))

    dripping = threading.Thread(target=drip)
    dripping.start()
    waiting = threading.Thread(target=made.finish, daemon=True)
    waiting.start()
    waiting.join(5)
    stop.set()
    dripping.join()
    assert host.done and "no progress for" in str(host.error)


def test_a_host_that_unpacks_slowly_what_it_has_received_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay: Any = StuckRelay()
    made, clock = transfer_to(relay), itertools.count(step=TIMEOUT / 2)
    [host] = made.hosts.values()
    host.have, looks = 20 * STEP, 0

    def wait(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        unpacked = min(looks, 10) * STEP
        made.handle(host, RelayEvent("have", "p0", 20 * STEP, str(unpacked)))

    monkeypatch.setattr(made._changed, "wait", wait)
    monkeypatch.setattr(chain, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    made.finish()
    assert looks > 10 and "no progress for" in str(host.error)


@pytest.mark.parametrize(
    "command",
    [
        "exec sleep 60",
        "cat > /dev/null; exec sleep 60",
        "cat > /dev/null; exec yes",
        "cat > /dev/null; exec >&-; exec sleep 60",
    ],
)
def test_a_host_that_takes_or_stores_nothing_holds_a_push_only_for_a_time(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(fanout, "TIMEOUT", 0.5)
    monkeypatch.setattr(payload, "TIMEOUT", 0.5)
    local = HostConnection(Host("local"))
    what = Payload("image", lambda _: ("sh", "-c", command), None, lambda: iter([bytes(1 << 18)]))
    progress: Any = Progress()
    failures = Fanout({}, progress).send("image", [what], [local], None)
    assert "image: no progress for" in str(failures[local])


def test_a_large_layer_may_take_longer_to_unpack() -> None:
    assert end_timeout(0) == TIMEOUT
    assert end_timeout(10_000_000_000) == TIMEOUT + 2000
    assert end_timeout(1 << 50) == TIMEOUT + 3600


def test_a_tree_of_many_files_may_take_longer_to_link(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts = []

    def present(*_: object, timeout: float, **__: object) -> str:
        timeouts.append(timeout)
        return "present"

    monkeypatch.setattr(push_tree, "script_output", present)
    contents = manifest.make(Entry(b"%d" % number, "f") for number in range(20_000))
    progress: Any = Progress()
    push = TreePush(Tree(b"/data", contents, {}), "dataset", Fanout({}, progress))
    assert push.run([HostConnection(Host("local"))]) == {}
    assert timeouts == [STEP_TIMEOUT + 100]


def test_a_host_whose_readers_are_all_slow_is_the_slow_one_and_they_relay_again() -> None:
    relays = [StuckRelay() for _ in range(4)]
    made = transfer_to(*relays)
    first, source, *readers = made.hosts.values()
    for reader, slow in zip(readers, (2, 1), strict=True):
        first.have, source.have, reader.have = 100 << 20, 100 << 20, 1 << 20
        first.rate, source.rate, reader.rate = 10e6, 10e6, 1e6
        made._bypass_slow_hosts()
        assert [number for number, relay in enumerate(relays) if relay.is_leaf] == [slow]
