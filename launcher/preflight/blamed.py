"""Hosts blamed for run failures, kept until `ddpctl check --clear HOST`."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import StateError
from ..own_folders import locked, make_folder, read_record, state_home, write_atomically
from ..ssh.host_connection import HostConnection
from ..text import one_line, rfc3339
from .findings import Finding, warning

FILE = "blamed.json"


def remember_blame(run_id: str, hosts: Mapping[str, str]) -> None:
    """Record the hosts that a run avoids from now on. hosts: the reason for each, by host name."""
    if hosts:
        now = rfc3339(time.time())
        with _locked():
            _save(_load() | {name: [run_id, now, why] for name, why in hosts.items()})


def blame_of(connections: Sequence[HostConnection]) -> list[Finding]:
    """Return a warning for each given host that has been blamed for a failure."""
    here = {connection.name for connection in connections}
    return [
        warning(
            f"run {run} has avoided it since {at}: {why}",
            f"repair it, then run `ddpctl check --clear {name}`",
        ).at(name, "runs")
        for name, (run, at, why) in _load().items()
        if name in here
    ]


def clear_blame(host: str) -> bool:
    """Forget that a host was blamed. Return False if it was not."""
    with _locked():
        hosts = _load()
        known = hosts.pop(host, None)
        if known:
            _save(hosts)
    return known is not None


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Context manager: exclude the recorders of other runs, if the file system has locks."""
    lock = make_folder(state_home()) / ".blamed.lock"
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(StateError):
            stack.enter_context(locked(lock))
        yield


def _load() -> dict[str, list[str]]:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        saved: Any = json.loads(read_record(state_home() / FILE))
        return {
            str(name): [one_line(str(word)) for word in words]
            for name, words in saved.items()
            if isinstance(words, list) and len(words) == 3
        }
    return {}


def _save(hosts: Mapping[str, list[str]]) -> None:
    write_atomically(state_home() / FILE, json.dumps(hosts, indent=2) + "\n")
