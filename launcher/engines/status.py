"""One node of a run, or its place in line, as its host reports it: labels, and what the engine sees.

Hosts are outside the trust boundary. Anything with odd labels is skipped with one warning.
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

GONE = ("exited", "cancelled", "dead", "created", "waiting")  # nothing of the node runs
UNSTARTED = ("created", "waiting")
LEASE = 60.0  # seconds; a launch starts or renews what it has created on a host sooner than that
LIMIT = 1_000_000  # of attempts and of nodes
LATEST = 1e11  # unix seconds
TEXT_LIMIT = 300  # characters of a text that a host reports
STATES = frozenset(("created", "running", "paused", "restarting", "removing", "exited", "dead"))
NEVER = "0001"  # the year in a time that stands for none
GPUS = re.compile(r"([\w.:-]{1,64}(,[\w.:-]{1,64}){0,999})?", re.ASCII)
SINCE = re.compile(r"[0-9]{1,11}(\.[0-9]{1,3})?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
log = logging.getLogger("ddpctl")


@dataclass(frozen=True)
class NodeStatus:
    """One node of one attempt, as the engine of its host sees it now."""

    attempt: int
    node_rank: int
    host: str
    handle: str  # container name, or control folder; identifies the node to stop and remove
    state: str  # waiting created running paused restarting removing exited cancelled dead unknown
    exit_code: int | None  # None while it runs, and when it cannot be known
    run_id: str = ""  # this and the next three: "" and 0 once the node has been removed
    name: str = ""  # of the run, "" without one
    nnodes: int = 0
    owner: str = ""
    oom_killed: bool = False
    created: float | None = None  # unix seconds, the host's clock
    started: float | None = None
    ended: float | None = None
    error: str = ""
    image: str = ""
    master_port: str = ""
    gpus: tuple[str, ...] = ()  # UUIDs of those that it uses, or would use
    container: str = ""  # its id, "" without one
    since: float = 0.0  # unix seconds, the clock of node 0: when the run asked for its GPUs
    age: float = 0.0  # seconds since it was created

    @property
    def user(self) -> str:
        """Who launched the run, by the account's name."""
        return self.owner.split("@")[0]

    @property
    def alive(self) -> bool:
        return self.state not in GONE

    @property
    def waits(self) -> bool:
        """Whether this is a run's place in line, and its launch still waits."""
        return self.state == "waiting" and not self.expired

    @property
    def resources(self) -> frozenset[str]:
        """What the node has to itself on its host: GPUs by UUID, and on node 0 the master port."""
        port = [f"port {self.master_port}"] if self.node_rank == 0 and self.master_port else []
        return frozenset([*self.gpus, *port])

    @property
    def expired(self) -> bool:
        """Whether the launch that would start this node has gone."""
        return self.state in UNSTARTED and self.age > LEASE


class Seen(TypedDict):
    """The fields of a NodeStatus that the engine observes; the labels say the others."""

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
    """The node that the labels describe, or None after one warning. Keys may have LABEL's prefix.

    clock: what the host's clock says now; None if it is not known.
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
    """The text of a label. ValueError if it does not have this form."""
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
    """What the Engine API's answer to `inspect` says of a container, whatever its types are."""
    state = mapping(answer.get("State"))
    status = _state(state.get("Status"))
    ended = status in ("exited", "dead")
    # After a reboot Podman reports exit code 0 at no time for what ran until then.
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
    """What a row of the Engine API's list of containers says, which is less than `inspect` does."""
    created = row.get("Created")
    moment = float(created) if isinstance(created, int) and 0 < created < LATEST else None
    return {
        "state": _state(row.get("State")),
        "exit_code": None,
        "started": moment,
        "created": moment,
    }


def mapping(value: object) -> Mapping[str, Any]:
    """A JSON object of a host; empty for anything else."""
    return value if isinstance(value, dict) else {}


def array(value: object) -> list[Any]:
    """A JSON array of a host; empty for anything else."""
    return value if isinstance(value, list) else []


def plain(text: object) -> str:
    """A host's text without control characters, and not too long."""
    return CONTROL.sub("", text)[:TEXT_LIMIT] if isinstance(text, str) else ""


def _state(text: object) -> str:
    text = "exited" if text == "stopped" else text  # Podman's word before it has cleaned up
    return text if isinstance(text, str) and text in STATES else "unknown"


def unix(text: object) -> float | None:
    """Docker's RFC 3339 with nanoseconds, as unix seconds; year 1 stands for never."""
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
