"""Reading what a host reports of a node: labels and inspect answers, as a typed NodeStatus.

Hosts are outside the trust boundary. Anything with odd labels is skipped with one warning.
"""

from __future__ import annotations

import datetime
import functools
import logging
import re
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from ..plan.plan import LABEL, Place
from ..run_id import is_run_id
from .status import NodeStatus

LIMIT = 1_000_000  # of attempts and of nodes
LATEST = 1e11  # unix seconds
TEXT_LIMIT = 300  # characters of a text that a host reports
STATES = frozenset(("created", "running", "paused", "restarting", "removing", "exited", "dead"))
NEVER = "0001"  # the year in a time that stands for none
GPUS = re.compile(r"([\w.:-]{1,64}(,[\w.:-]{1,64}){0,999})?", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
log = logging.getLogger("ddpctl")


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
    try:
        nnodes = _number(bare, "nnodes", 1, LIMIT)
        return NodeStatus(
            run_id=_run_id(bare),
            name=plain(bare.get("name")),
            attempt=_number(bare, "attempt", 1, LIMIT),
            node_rank=_number(bare, "node-rank", 0, nnodes - 1),
            nnodes=nnodes,
            owner=plain(bare.get("owner")),
            host=host,
            handle=handle,
            master_port=_port(bare),
            gpus=_gpus(bare),
            since=_since(bare),
            age=clock - created if clock and created else 0.0,
            **seen,
        )
    except ValueError as error:
        _warn_once(
            f"ddpctl: warning: {host}: skipped {plain(handle)}, whose labels ddpctl would not "
            f"write: {error}; remove it there if it is not in use"
        )
        return None


def status_at(place: Place, host: str, handle: str, seen: Seen) -> NodeStatus:
    """What is seen of a node that has no labels any more, such as one that `kill` removed."""
    return NodeStatus(
        run_id="",
        name="",
        attempt=place.attempt,
        node_rank=place.node_rank,
        nnodes=0,
        owner="",
        host=host,
        handle=handle,
        **seen,
    )


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


def plain(text: object) -> str:
    """A host's text without control characters, and not too long."""
    return CONTROL.sub("", text)[:TEXT_LIMIT] if isinstance(text, str) else ""


def _state(text: object) -> str:
    text = "exited" if text == "stopped" else text  # Podman's word before it has cleaned up
    return text if isinstance(text, str) and text in STATES else "unknown"


def _run_id(labels: Mapping[str, object]) -> str:
    run_id = labels.get("run-id")
    if not is_run_id(run_id):
        raise ValueError(f"run-id {plain(run_id)!r} is no run id")
    return str(run_id)


def _number(labels: Mapping[str, object], key: str, least: int, most: int) -> int:
    text = labels.get(key)
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,7}", text):
        raise ValueError(f"{key} {plain(text)!r} is no number")
    if not least <= int(text) <= most:
        raise ValueError(f"{key} {text} is not between {least} and {most}")
    return int(text)


def _port(labels: Mapping[str, object]) -> str:
    text = labels.get("master-port")
    valid = isinstance(text, str) and re.fullmatch(r"[0-9]{1,5}", text)
    return str(text) if valid else ""


def _gpus(labels: Mapping[str, object]) -> tuple[str, ...]:
    text = labels.get("gpus") or ""
    if not isinstance(text, str) or not GPUS.fullmatch(text):
        raise ValueError(f"gpus {plain(text)!r} is no list of UUIDs")
    return tuple(text.split(",")) if text else ()


def _since(labels: Mapping[str, object]) -> float:
    text = labels.get("since") or "0"
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,11}(\.[0-9]{1,3})?", text):
        raise ValueError(f"since {plain(text)!r} is no time")
    return float(text)


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
