"""The interface of every engine, which runs the nodes of runs on one host.

Code outside this package uses engines only through this class. An engine without containers
inherits the methods for containers and images.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..plan.plan import Container, EngineTraits, NodePlan, Place
from ..ssh.host_connection import HostConnection
from ..ssh.stream import Stream
from .engine_info import EngineInfo
from .status import NodeStatus


@dataclass(frozen=True)
class NodeListing:
    """The nodes and tickets of a run, or of all runs, on one host.

    unreadable: the names of further nodes, whose labels are missing or wrong. While a host has such
    nodes, a stop is unconfirmed.
    """

    nodes: Sequence[NodeStatus]
    unreadable: Sequence[str]


class Engine(ABC):
    """Runs nodes on one host. Every method may raise a DdpctlError."""

    traits: ClassVar[EngineTraits]
    connection: HostConnection

    def __init__(self, connection: HostConnection) -> None:
        self.connection = connection

    def is_installed(self) -> bool:
        return True

    # Nodes of runs

    @abstractmethod
    def create(self, node: NodePlan, user_env: Mapping[str, str]) -> None:
        """Create the node without starting it.

        user_env: the variables that the user sets, which may be secret and are not in the plan. A
        container gets them here, a process only in `start`.
        """

    @abstractmethod
    def start(self, node: NodePlan, user_env: Mapping[str, str]) -> None:
        """Start a node that was created with the same `user_env`."""

    @abstractmethod
    def wait(self, place: Place) -> NodeStatus:
        """Wait until the node's supervisor has ended.

        Return the node's status, without the fields that come from labels. If the engine stopped
        waiting too early, `alive` is true.
        """

    @abstractmethod
    def listing(self, run_id: str | None = None) -> NodeListing:
        """List the nodes and tickets of all runs on this host, or of `run_id`, in any state."""

    def nodes(self, run_id: str | None = None) -> Sequence[NodeStatus]:
        """Return the nodes and tickets of `listing`. May be faster than `listing`.

        Without `run_id`, the statuses may have fewer fields; see `details`.
        """
        return self.listing(run_id).nodes

    def details(self, statuses: Sequence[NodeStatus]) -> Sequence[NodeStatus]:
        """Return statuses of `nodes` with all fields, except those of nodes that are gone.

        May be slow if there are many nodes, because an engine may have to ask about each one.
        """
        return statuses

    def claims(self) -> Sequence[NodeStatus]:
        """Return at least the nodes and tickets that use or want GPUs or a port on this host.

        May be faster than `nodes`, and the statuses may have fewer fields.
        """
        return self.nodes()

    @abstractmethod
    def create_ticket(self, name: str, labels: Mapping[str, str]) -> None:
        """Create a ticket, which `nodes` and `claims` report as a node in state `waiting`."""

    @abstractmethod
    def withdraw(self, status: NodeStatus) -> bool:
        """Remove a ticket or an unstarted node. Return False if the node has started after all."""

    @abstractmethod
    def using(self, folder: str) -> Sequence[NodeStatus]:
        """Return the nodes on this host that use anything below `folder`, and all users' live tickets.

        An engine may add the tickets of launches that have died.
        """

    @abstractmethod
    def exec(self, status: NodeStatus, command: Sequence[str], *, stdin: bool, tty: bool) -> Stream:
        """Start a command with the node's environment and return it.

        Its input is empty unless `stdin` is set.
        """

    @abstractmethod
    def stop(self, status: NodeStatus, timeout: float) -> None:
        """Send SIGTERM and, after `timeout` seconds, SIGKILL. Do nothing if the node has ended."""

    @abstractmethod
    def remove(self, status: NodeStatus) -> None:
        """Delete a stopped node but keep its folders."""

    # Containers and images

    def mounted(self) -> frozenset[str]:
        """Return the folders on the host that the running and stopped containers of runs mount."""
        return frozenset()

    def engine_info(self, image: str) -> EngineInfo | None:
        """Return facts about the engine and `image`; None if the engine has no image store."""
        return None

    def python_in_image(self, image: str) -> Sequence[str]:
        """Return the command that runs python3 in the image on the host, with the host's network.

        The command fails at once if the image is missing. Return () if the engine needs no image.
        """
        return ()

    def run_to_end(self, container: Container, folder: str, timeout: int) -> str:
        """Run a container for at most `timeout` seconds, and return its output.

        folder: created on the host for the container. The host itself removes the container and the
        folder, even after Ctrl-C.
        """
        return ""
