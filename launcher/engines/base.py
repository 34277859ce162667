"""What an engine does for one node of a run, and what it reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol

from ..plan.plan import EngineTraits, NodePlan, Place
from ..ssh.node import Node
from .status import NodeStatus


class Exec(Protocol):
    """A command that runs in a node. One thread may read while another writes."""

    def output(self) -> Iterator[tuple[int, bytes]]:
        """What the command writes, as it comes: (1, stdout) and (2, stderr); a terminal is all 1."""

    def write(self, data: bytes) -> None:
        """Sends all of `data` to its stdin. OSError if the command no longer reads it."""

    def close_stdin(self) -> None: ...

    def resize(self, rows: int, columns: int) -> None: ...

    def wait(self) -> int:
        """Its exit code, once its output has ended."""


class Engine(Protocol):
    """Runs nodes on one host. Every method may raise a DdpctlError."""

    traits: ClassVar[EngineTraits]

    def __init__(self, node: Node) -> None: ...

    def create(self, node: NodePlan, secrets: Mapping[str, str]) -> None:
        """Creates the node without starting it. `secrets` join its environment, stored nowhere."""

    def start(self, node: NodePlan) -> None: ...

    def wait(self, place: Place) -> NodeStatus:
        """Blocks until the node's supervisor has ended, and reports how."""

    def list(self, run_id: str | None = None) -> list[NodeStatus]:
        """All nodes of runs on this host, in any state; of one run if `run_id` is given."""

    def claims(self) -> Sequence[NodeStatus]:
        """What uses, is about to use or waits for GPUs here: nodes that run, are created, or wait.

        Quicker than `list`, and knows less of each node.
        """

    def wait_in_line(self, name: str, labels: Mapping[str, str]) -> None:
        """Leaves a ticket that `list` and `claims` show as a node in state `waiting`."""

    def withdraw(self, status: NodeStatus) -> bool:
        """Removes a ticket or a node that has not started. False: it has started meanwhile."""

    def using(self, folder: str) -> Sequence[NodeStatus]:
        """Everything of ddpctl on this host, runs and checks, that uses something below `folder`.

        And the tickets of launches that have gone.
        """

    def exec(self, status: NodeStatus, command: Sequence[str], *, stdin: bool, tty: bool) -> Exec:
        """Starts a command with the node's environment. Without stdin, its input is empty."""

    def stop(self, status: NodeStatus, timeout: float) -> None:
        """SIGTERM, `timeout` seconds, SIGKILL. Does nothing to a node that has stopped or gone."""

    def remove(self, status: NodeStatus) -> None:
        """Forgets a stopped node; its folders stay."""
