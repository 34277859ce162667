"""The status of a node, or of a ticket (a run's place in line), from its labels and from the engine.

Hosts are outside the trust boundary. A node with malformed labels is skipped with one warning.
"""

import datetime
import enum
import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..outcomes import NodeState
from ..plan.labels import FORMS, LABEL, odd_label
from ..text import one_line

LEASE = 60.0  # seconds within which a launch starts or renews what it has created
LATEST = 1e11  # unix seconds; later times are invalid
TEXT_LIMIT = 300  # characters to keep of a text from a host
NEVER = "0001"  # the year of a time that means "never"
MOST_SKIPPED = 10  # nodes of a host to name; it may list thousands
_skipped: dict[str, set[str]] = {}  # the warnings about skipped nodes, by host
warn_once = functools.cache(logging.getLogger("ddpctl").warning)


class ContainerState(enum.StrEnum):
    """The state of the container, process or ticket that represents a node on its host."""

    WAITING = "waiting"  # a ticket: the run's place in line
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    RESTARTING = "restarting"
    REMOVING = "removing"
    EXITED = "exited"
    DEAD = "dead"
    CANCELLED = "cancelled"  # `kill` ended it; engines report only that it exited
    UNKNOWN = "unknown"


UNSTARTED = (ContainerState.WAITING, ContainerState.CREATED)
ENDED = (ContainerState.EXITED, ContainerState.DEAD)
NOT_OF_ENGINES = (ContainerState.WAITING, ContainerState.CANCELLED)
REPORTED = {str(state): state for state in ContainerState if state not in NOT_OF_ENGINES}
REPORTED["stopped"] = ContainerState.EXITED  # Podman's state until it has cleaned up


@dataclass(frozen=True)
class NodeStatus:
    """One node of one attempt, as its host's engine reports it."""

    attempt: int = 0
    node_rank: int = 0
    host: str = ""
    handle: str = ""  # container name or control folder; the argument for stop and remove
    state: ContainerState = ContainerState.UNKNOWN
    exit_code: int | None = None  # None while it runs, or if unknown
    run_id: str = ""  # this and the next three are "" or 0 if no labels were read
    name: str = ""  # the name of the run; "" if it has none
    nnodes: int = 0
    owner: str = ""
    oom_killed: bool = False
    created: float | None = None  # unix seconds, the host's clock
    started: float | None = None
    ended: float | None = None
    error: str = ""  # this and `image` are only printed by `ps --json`
    image: str = ""
    master_port: str = ""
    gpus: tuple[str, ...] = ()  # UUIDs of the GPUs that it uses or will use
    container: str = ""  # container id; "" without a container
    since: float = 0.0  # when the run asked for its GPUs: unix seconds, node 0's clock
    age: float = 0.0  # seconds since its creation

    @property
    def user(self) -> str:
        """The account name of the user who launched the run."""
        return user_of(self.owner)

    @property
    def alive(self) -> bool:
        """Whether any process of the node may still be running."""
        return self.state not in (*UNSTARTED, *ENDED, ContainerState.CANCELLED)

    @property
    def has_ended(self) -> bool:
        """Whether the node has run and ended, and its engine still has it."""
        return self.state in ENDED

    @property
    def is_process(self) -> bool:
        """Whether the process or Apptainer engine runs the node; its handle is its control folder."""
        return self.handle.startswith("/")

    @property
    def is_ticket(self) -> bool:
        return self.state is ContainerState.WAITING

    @property
    def node_state(self) -> NodeState:
        if self.waits:
            return NodeState.WAITING
        if self.alive:
            return NodeState.RUNNING
        if self.state is ContainerState.CREATED:
            return NodeState.PENDING
        if self.state is ContainerState.CANCELLED:
            return NodeState.CANCELLED
        if self.exit_code is None:
            return NodeState.UNKNOWN
        return NodeState.FAILED if self.exit_code else NodeState.SUCCEEDED

    @property
    def waits(self) -> bool:
        """Whether this is the ticket of a launch that is still waiting."""
        return self.is_ticket and not self.expired

    @property
    def may_start(self) -> bool:
        """Whether this is a node or ticket of a launch that may still start."""
        return self.state in UNSTARTED and not self.expired

    @property
    def resources(self) -> frozenset[str]:
        """What the node uses exclusively: its GPUs, by UUID, and on node 0 the master port."""
        port = [f"port {self.master_port}"] if self.node_rank == 0 and self.master_port else []
        return frozenset([*self.gpus, *port])

    @property
    def expired(self) -> bool:
        """Whether the node has waited so long to start that its launch must have died."""
        return self.state in UNSTARTED and self.age > LEASE


def user_of(owner: str) -> str:
    """Return the account name in an owner, such as ann@corp.example in ann@corp.example@laptop."""
    return owner.rsplit("@", 1)[0]


def read_status(
    host: str, handle: str, labels: object, seen: NodeStatus, clock: float | None = None
) -> NodeStatus | None:
    """Return `seen` with the fields from its labels filled in.

    If a label is malformed, warn once and return None.

    labels: keys with or without LABEL's prefix. clock: the host's current time; None if unknown.
    """
    bare = {key.removeprefix(f"{LABEL}."): value for key, value in mapping(labels).items()}
    text = {key: str(bare.get(key) or "") for key in FORMS}
    if odd := odd_label(text):
        _warn_of_skipped(
            host,
            f"{host}: skipped {host_text(handle)}, whose labels were not written by ddpctl "
            f"({odd} {host_text(text[odd])!r}); remove it from that host if it is not in use",
        )
        return None
    return replace(
        seen,
        run_id=text["run-id"],
        name=host_text(bare.get("name")),
        attempt=int(text["attempt"]),
        node_rank=int(text["node-rank"]),
        nnodes=int(text["nnodes"]),
        owner=host_text(bare.get("owner")),
        host=host,
        handle=handle,
        master_port=text["master-port"],
        gpus=tuple(text["gpus"].split(",")) if text["gpus"] else (),
        since=float(text["since"] or 0),
        age=clock - seen.created if clock and seen.created else 0.0,
    )


def _warn_of_skipped(host: str, warning: str) -> None:
    """Warn about a skipped node: once for each of a host's first few, then once for all others."""
    before = _skipped.setdefault(host, set())
    if warning not in before and len(before) <= MOST_SKIPPED:
        before.add(warning)
        more = f"{host}: skipped more nodes whose labels were not written by ddpctl"
        warn_once(warning if len(before) <= MOST_SKIPPED else more)


def inspected(answer: Mapping[str, Any], listed: NodeStatus | None = None) -> NodeStatus:
    """Return a container's status from the Engine API's `inspect`. Tolerates wrong types.

    listed: its status from the list, whose labels and id are kept.
    """
    state = mapping(answer.get("State"))
    status = _state(state.get("Status"))
    ended = status in ENDED
    # After a reboot, Podman reports exit code 0 and no end time for containers that were running.
    code = None if str(state.get("FinishedAt")).startswith(NEVER) else state.get("ExitCode")
    return replace(
        listed or NodeStatus(container=host_text(answer.get("Id"))),
        state=status,
        exit_code=code if ended and isinstance(code, int) else None,
        oom_killed=state.get("OOMKilled") is True,
        created=unix(answer.get("Created")),
        started=unix(state.get("StartedAt")),
        ended=unix(state.get("FinishedAt")) if ended else None,
        error=host_text(state.get("Error")),
        image=host_text(mapping(answer.get("Config")).get("Image")),
    )


def seen_in_list(row: Mapping[str, Any]) -> NodeStatus:
    """Return a container's status from the Engine API's list, with fewer fields than `inspected`."""
    created = row.get("Created")
    moment = float(created) if isinstance(created, int) and 0 < created < LATEST else None
    return NodeStatus(
        state=_state(row.get("State")),
        created=moment,
        started=moment,
        container=host_text(row.get("Id")),
    )


def mapping(value: object) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def array(value: object) -> list[Any]:
    """Return `value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def host_text(value: object) -> str:
    """Return a text from a host on one line, shortened; "" if it is not a string."""
    return one_line(value, TEXT_LIMIT) if isinstance(value, str) else ""


def _state(text: object) -> ContainerState:
    return REPORTED.get(str(text), ContainerState.UNKNOWN)


def unix(text: object) -> float | None:
    """Return an RFC 3339 time as unix seconds; None if it is malformed or "never" (year 1)."""
    if not isinstance(text, str) or text.startswith(NEVER):
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
