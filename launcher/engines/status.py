"""The status of one node, or of its place in line, from its labels and from the engine.

Hosts are outside the trust boundary. A node with malformed labels is skipped with one warning.
"""

from __future__ import annotations

import datetime
import functools
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from ..plan.plan import LABEL
from ..run_id import RUN_ID

GONE = ("exited", "cancelled", "dead", "created", "waiting")  # no process runs
UNSTARTED = ("created", "waiting")
LEASE = 60.0  # seconds; a launch starts or renews what it has created within this time
LIMIT = 1_000_000  # maximum attempt and maximum number of nodes
LATEST = 1e11  # unix seconds
TEXT_LIMIT = 300  # characters kept of a text from a host
STATES = frozenset(("created", "running", "paused", "restarting", "removing", "exited", "dead"))
NEVER = "0001"  # the year of a time that means "never"
GPUS = re.compile(r"([\w.:-]{1,64}(,[\w.:-]{1,64}){0,999})?", re.ASCII)
SINCE = re.compile(r"[0-9]{1,11}(\.[0-9]{1,3})?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
log = logging.getLogger("ddpctl")


@dataclass(frozen=True)
class NodeStatus:
    """One node of one attempt, as its host's engine reports it."""

    attempt: int
    node_rank: int
    host: str
    handle: str  # container name or control folder; the argument for stop and remove
    state: str  # waiting created running paused restarting removing exited cancelled dead unknown
    exit_code: int | None  # None while it runs, or if unknown
    run_id: str = ""  # this and the next three are "" and 0 after the node was removed
    name: str = ""  # of the run; "" if it has none
    nnodes: int = 0
    owner: str = ""
    oom_killed: bool = False
    created: float | None = None  # unix seconds, the host's clock
    started: float | None = None
    ended: float | None = None
    error: str = ""
    image: str = ""
    master_port: str = ""
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that it uses or would use
    container: str = ""  # container id; "" without a container
    since: float = 0.0  # when the run asked for its GPUs: unix seconds, node 0's clock
    age: float = 0.0  # seconds since its creation

    @property
    def user(self) -> str:
        """Account name of the user who launched the run."""
        return self.owner.split("@")[0]

    @property
    def alive(self) -> bool:
        return self.state not in GONE

    @property
    def waits(self) -> bool:
        """Whether this is a run's place in line, and its launch is still waiting."""
        return self.state == "waiting" and not self.expired

    @property
    def resources(self) -> frozenset[str]:
        """What the node uses exclusively: GPUs by UUID and, on node 0, the master port."""
        port = [f"port {self.master_port}"] if self.node_rank == 0 and self.master_port else []
        return frozenset([*self.gpus, *port])

    @property
    def expired(self) -> bool:
        """Whether the launch that was to start this node has died."""
        return self.state in UNSTARTED and self.age > LEASE


class Seen(TypedDict):
    """The fields of a NodeStatus that come from the engine. The others come from the labels."""

    state: str
    exit_code: int | None
    oom_killed: NotRequired[bool]
    started: NotRequired[float | None]
    ended: NotRequired[float | None]
    error: NotRequired[str]
    image: NotRequired[str]
    container: NotRequired[str]
    created: NotRequired[float | None]


def read_status(
    host: str,
    handle: str,
    labels: Mapping[str, object] | None,
    seen: Seen,
    clock: float | None = None,
) -> NodeStatus | None:
    """Return the node that the labels describe, or None after one warning.

    labels: keys with or without LABEL's prefix. clock: the host's current time; None if unknown.
    """
    created = seen.get("created")
    bare = {key.removeprefix(f"{LABEL}."): value for key, value in (labels or {}).items()}
    port = str(bare.get("master-port"))
    try:
        nnodes = _number(bare, "nnodes", 1, LIMIT)
        gpus = _label(bare, "gpus", GPUS, "list of UUIDs", "")
        return NodeStatus(
            run_id=_label(bare, "run-id", RUN_ID, "run id"),
            name=plain(bare.get("name")),
            attempt=_number(bare, "attempt", 1, LIMIT),
            node_rank=_number(bare, "node-rank", 0, nnodes - 1),
            nnodes=nnodes,
            owner=plain(bare.get("owner")),
            host=host,
            handle=handle,
            master_port=port if re.fullmatch(r"[0-9]{1,5}", port) else "",
            gpus=tuple(gpus.split(",")) if gpus else (),
            since=float(_label(bare, "since", SINCE, "time", "0")),
            age=clock - created if clock and created else 0.0,
            **seen,
        )
    except ValueError as error:
        _warn_once(
            f"ddpctl: warning: {host}: skipped {plain(handle)}, which has labels that ddpctl does not "
            f"write: {error}; remove it there if it is not in use"
        )
        return None


def _label(
    labels: Mapping[str, object], key: str, form: re.Pattern[str], what: str, absent: str = ""
) -> str:
    """Return the text of a label. Raises ValueError if it does not have this form."""
    text = labels.get(key) or absent
    if not isinstance(text, str) or not form.fullmatch(text):
        raise ValueError(f"{key} {plain(text)!r} is not a {what}")
    return text


def _number(labels: Mapping[str, object], key: str, least: int, most: int) -> int:
    number = int(_label(labels, key, re.compile("[0-9]{1,7}"), "number"))
    if not least <= number <= most:
        raise ValueError(f"{key} {number} is not between {least} and {most}")
    return number


def inspected(answer: Mapping[str, Any]) -> Seen:
    """Return a container's state from the Engine API's `inspect`. Checks all types."""
    state = mapping(answer.get("State"))
    status = _state(state.get("Status"))
    ended = status in ("exited", "dead")
    # After a reboot, Podman reports exit code 0 and no end time for containers that were running.
    code = None if str(state.get("FinishedAt")).startswith(NEVER) else state.get("ExitCode")
    return {
        "state": status,
        "exit_code": code if ended and isinstance(code, int) else None,
        "oom_killed": state.get("OOMKilled") is True,
        "started": unix(state.get("StartedAt")),
        "ended": unix(state.get("FinishedAt")) if ended else None,
        "error": plain(state.get("Error")),
        "image": plain(mapping(answer.get("Config")).get("Image")),
        "container": plain(answer.get("Id")),
        "created": unix(answer.get("Created")),
    }


def seen_in_list(row: Mapping[str, Any]) -> Seen:
    """Return a container's state from the Engine API's list, which has fewer fields than `inspect`."""
    created = row.get("Created")
    moment = float(created) if isinstance(created, int) and 0 < created < LATEST else None
    return {
        "state": _state(row.get("State")),
        "exit_code": None,
        "started": moment,
        "created": moment,
    }


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object from a host; empty for any other value."""
    return value if isinstance(value, dict) else {}


def array(value: object) -> list[Any]:
    """Return a JSON array from a host; empty for any other value."""
    return value if isinstance(value, list) else []


def plain(text: object) -> str:
    """Return a host's text, shortened and without control characters."""
    return CONTROL.sub("", text)[:TEXT_LIMIT] if isinstance(text, str) else ""


def _state(text: object) -> str:
    text = "exited" if text == "stopped" else text  # Podman's state before it has cleaned up
    return text if isinstance(text, str) and text in STATES else "unknown"


def unix(text: object) -> float | None:
    """Convert Docker's RFC 3339 with nanoseconds to unix seconds; None for year 1, which means "never"."""
    if not isinstance(text, str) or text.startswith(NEVER):
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


@functools.cache
def _warn_once(message: str) -> None:
    log.warning(message)
