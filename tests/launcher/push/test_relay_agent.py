"""The relay agent's port, as another user of a host could try to use it. The agents run in this process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from launcher.push.transfer import relay_agent
from launcher.push.transfer.relay_agent import MAX_STRANGERS, Agent, RelayedPayload
from launcher.push.transfer.relay_client import one_time_pair

DATA = b"a payload"
Start = Callable[[], tuple[Agent, int]]


@pytest.fixture
def start_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(relay_agent, "REPORT_INTERVAL", 60)
    certificate, key = one_time_pair()

    def start() -> tuple[Agent, int]:
        agent, ports = Agent(), []
        # for good: its threads outlive the test
        agent.emit = lambda *_, count=0, **__: ports.append(count)  # type: ignore[method-assign]
        agent.hello(certificate, key, "127.0.0.1")
        return agent, ports[0]

    return start


def test_idle_strangers_do_not_keep_the_hosts_of_the_push_out(start_agent: Start) -> None:
    (first, port), (second, _) = start_agent(), start_agent()
    first.open("p0", ["true"], [])
    first.payloads["p0"].receive(0, DATA)
    first.payloads["p0"].end(len(DATA), hashlib.sha256(DATA).hexdigest())
    with contextlib.ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            for _ in range(MAX_STRANGERS + 20)
        ]
        second.open("p0", ["true"], [("127.0.0.1", port)])
        payload = second.payloads["p0"]
        with payload.changed:
            assert payload.changed.wait_for(lambda: payload.have == len(DATA), 3)
        assert idle[0].recv(1) == b""  # hung up on
        assert len(first.strangers) <= MAX_STRANGERS


@pytest.mark.parametrize("at", ["x", -1, 0.5, None])
def test_a_host_that_asks_for_an_impossible_offset_harms_no_other(
    start_agent: Start, at: object
) -> None:
    (agent, port), (evil, _) = start_agent(), start_agent()
    agent.open("p0", ["true"], [])
    payload = agent.payloads["p0"]
    with payload.changed:  # as if it was writing, which takes a while
        link = evil.client_side.wrap_socket(socket.create_connection(("127.0.0.1", port), 5))
        with link:
            link.sendall(json.dumps({"id": "p0", "at": at}).encode() + b"\n")
            end = time.monotonic() + 1
            while not payload.readers and time.monotonic() < end:
                time.sleep(0.01)
            payload.receive(0, DATA)
    assert payload.have == len(DATA) and not payload.readers


def test_the_port_stays_open_when_a_connection_cannot_be_accepted(
    start_agent: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, port = start_agent()
    answered, wrap = [], agent.server_side.wrap_socket

    def failing_once(*args: object, **how: object) -> object:
        answered.append(1)
        if len(answered) == 1:
            raise OSError("too many open files")
        return wrap(*args, **how)

    monkeypatch.setattr(agent.server_side, "wrap_socket", failing_once)
    for _ in range(3):  # the agent waits in the first call already
        with socket.create_connection(("127.0.0.1", port), 5) as link:
            link.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                link.recv(1)  # closed, with or without an alert
    assert len(answered) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_payload_waits_for_a_slow_command_unless_it_fails(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_agent, "MAX_AHEAD", len(DATA) - 1)
    agent = SimpleNamespace(folder=str(tmp_path), room=1 << 20)
    payload = RelayedPayload(cast("Agent", agent), "p0", ["true"], [])
    payload.receive(0, DATA)
    waits = 0

    def wait(_seconds: float) -> bool:  # the command reads all, or fails, meanwhile
        nonlocal waits
        waits += 1
        payload.failed, payload.consumed = fails, 0 if fails else len(DATA)
        return True

    monkeypatch.setattr(payload.changed, "wait", wait)
    payload.receive(len(DATA), DATA)
    assert waits == 1
    assert payload.have == len(DATA) * (1 if fails else 2)


def test_an_agent_reports_what_its_command_reads_after_all_bytes_have_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    agent, events = Agent(), list[tuple[object, ...]]()
    payload = agent.payloads["p0"] = RelayedPayload(agent, "p0", ["true"], [])
    monkeypatch.setattr(agent, "emit", lambda *event: events.append(event))
    payload.receive(0, DATA)
    payload.complete = True
    consumed = iter([0, 4, 4, 9])

    def sleep(_seconds: float) -> None:
        payload.consumed = next(consumed)

    monkeypatch.setattr(relay_agent, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(StopIteration):
        agent.report()
    assert events == [("have", "p0", 9, text) for text in ("0", "4", "9")]
