"""Hosts to which failures of runs were due, remembered until `ddpctl check --clear HOST`."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from ..state import make_folder, state_home, write_atomically
from ..text import one_line
from .record import timestamp

FILE = "blamed.json"


def remember_blame(run_id: str, hosts: Mapping[str, str]) -> None:
    """Remember hosts that a run avoids, and why."""
    if hosts:
        now = timestamp()
        _save(_load() | {name: [run_id, now, why] for name, why in hosts.items()})


def blamed_hosts() -> dict[str, str]:
    """Return a sentence about each host that was to blame."""
    return {
        name: f"run {run} avoids it since {at}: {why}" for name, (run, at, why) in _load().items()
    }


def clear_blame(host: str) -> bool:
    """Forget that a host was to blame. Return False if it was not."""
    kept = _load()
    known = kept.pop(host, None) is not None
    if known:
        _save(kept)
    return known


def _load() -> dict[str, list[str]]:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        saved: Any = json.loads((state_home() / FILE).read_text())
        return {
            str(name): [one_line(str(word)) for word in words]
            for name, words in saved.items()
            if isinstance(words, list) and len(words) == 3
        }
    return {}


def _save(hosts: Mapping[str, list[str]]) -> None:
    write_atomically(make_folder(state_home()) / FILE, json.dumps(hosts, indent=2) + "\n")
