"""Find the runs that `kill` should stop, and the hosts that may have nodes of these runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engines.base import NodeListing
from ..engines.choose import engines_on
from ..engines.status import UNSTARTED, NodeStatus
from ..errors import DdpctlError, HostsFileError, NodesFailed, StopUnconfirmed, UsageError
from ..hosts import Cluster, load
from ..run_id import time_of
from ..runs.find import find_id, find_run, hosts_to_ask, list_nodes
from ..runs.run_folder import RunFolder, unrecorded_launches
from ..ssh.host_connection import HostConnection
from ..ssh.local import account_name
from ..ssh.many import by_name, one_per_account, try_each
from ..terminal.ask import confirm
from ..terminal.console import Console
from ..text import counted, names


@dataclass(frozen=True)
class HostedRun:
    """A run, and the hosts that may have it.

    owners: the other users whose nodes are to be stopped. typed: the id or the start of it, as the
    user typed it; None if none was typed.
    """

    run_id: str
    connections: Sequence[HostConnection]
    owners: Sequence[str] = ()
    typed: str | None = None

    def confirmed(self, *, yes: bool) -> bool:
        """Ask before stopping another user's run. Return the answer.

        Without a terminal, the user must have typed the full run id or passed -y.
        """
        if not self.owners:
            return True
        owners = ", ".join(self.owners)
        refusal = None if self.typed == self.run_id else f"{self.run_id} belongs to {owners}"
        return confirm(f"Stop run {self.run_id}, which belongs to {owners}?", refusal, yes=yes)


ChosenRuns = tuple[list[HostedRun], Mapping[str, DdpctlError]]


@dataclass(frozen=True)
class Target(ABC):
    """The runs that `kill` is to stop on the hosts of `cluster`: one of the next four classes.

    typed: see HostedRun.
    """

    cluster: Cluster
    typed: str | None

    def confirmed(self, *, yes: bool) -> bool:
        """Ask before stopping more than the user named. Return the answer."""
        return True

    @abstractmethod
    def runs(self, connections: Sequence[HostConnection], console: Console) -> ChosenRuns:
        """Return the runs to stop, each with the hosts that may have it.

        If all runs are to be stopped, also return the errors of the hosts that did not list theirs.
        """

    def _with_owners(
        self, run_id: str, connections: Sequence[HostConnection], console: Console
    ) -> list[HostedRun]:
        """Return the run, its hosts, and the other users who own some of its nodes there."""
        with console.step(f"asking {counted(len(connections), 'host')} who owns the run"):
            statuses, _ = list_nodes(connections, self.cluster, run_id)
        owners = sorted({status.owner for status in statuses if status.user != account_name()})
        return [HostedRun(run_id, connections, owners, self.typed)]


@dataclass(frozen=True)
class RecordedRun(Target):
    """A run of which this machine has a record."""

    folder: RunFolder

    def confirmed(self, *, yes: bool) -> bool:
        question = f"Stop run {self.folder.run_id}?"
        return self.typed is not None or confirm(question, None, yes=yes)

    def runs(self, connections: Sequence[HostConnection], console: Console) -> ChosenRuns:
        record = self.folder.load_if_readable(console)
        if record and not record.adopted:  # launched here, by this user
            return [HostedRun(record.run_id, connections)], {}
        return self._with_owners(self.folder.run_id, connections, console), {}


class RunOnHosts(Target):
    """The hosts' run whose id is `typed` or starts with it."""

    def runs(self, connections: Sequence[HostConnection], console: Console) -> ChosenRuns:
        with console.step(f"asking {counted(len(connections), 'host')} about the run"):
            run_id = find_id(connections, self.cluster, self.typed)
        return self._with_owners(run_id, connections, console), {}


class AllRuns(Target):
    """All of this user's live runs, and the containers of the finished ones."""

    def confirmed(self, *, yes: bool) -> bool:
        refusal = "--all stops all your runs on these hosts"
        return confirm("Stop all your runs on these hosts?", refusal, yes=yes)

    def runs(self, connections: Sequence[HostConnection], console: Console) -> ChosenRuns:
        own = list_own_runs(connections, self.cluster.job.engine, console)
        if own.listings and not own.live:
            return [], own.unknown  # finished runs are still removed on the hosts that answered
        return own.hosted(own.live), by_name(one_per_account(connections), own.errors)


class OnlyRun(Target):
    """This user's only live run or, if none is live, this user's newest ended run."""

    def runs(self, connections: Sequence[HostConnection], console: Console) -> ChosenRuns:
        own = list_own_runs(connections, self.cluster.job.engine, console)
        if len(own.live) > 1:
            what = f"several live runs on these hosts: {', '.join(own.live)}"
            raise UsageError(what, "name one of them, or pass --all")
        return own.hosted(own.live or own.newest), {}


def read_hosts(run: str | None, hosts: str | None, console: Console) -> Cluster:
    """Return the hosts on which `kill` acts: `hosts` or, without them, those of the recorded run."""
    return recorded_hosts(find_run(run)) if hosts is None else hosts_to_ask(hosts, console)


def read_target(
    run: str | None, hosts: str | None, console: Console, *, everything: bool
) -> Target:
    """Return the target of `kill`. everything: all runs on the hosts; see `read_hosts`."""
    if everything:
        return AllRuns(read_hosts(run, hosts, console), run)
    if hosts is None:
        folder = find_run(run)
        if run is None and (others := unrecorded_launches()):
            what = f"still being launched: {', '.join(others)}"
            remedy = (
                "to stop one, press Ctrl-C there; to stop the newest run that has started, run "
            )
            raise UsageError(what, f"{remedy}`ddpctl kill {folder.run_id}`")
        return RecordedRun(recorded_hosts(folder), run, folder)
    cluster = hosts_to_ask(hosts, console)
    return RunOnHosts(cluster, run) if run else OnlyRun(cluster, None)


def recorded_hosts(folder: RunFolder) -> Cluster:
    try:
        return load(folder.hosts_file, job_files=False)
    except HostsFileError as error:
        remedy = f"name the run's hosts: `ddpctl kill {folder.run_id} --hosts HOSTS`"
        raise UsageError(error.what, remedy) from None


@dataclass(frozen=True)
class OwnRuns:
    """This user's nodes on the hosts that answered, and the errors of the others."""

    asked: Sequence[HostConnection]
    listings: Mapping[HostConnection, NodeListing]
    errors: Mapping[HostConnection, DdpctlError]

    @property
    def live(self) -> list[str]:
        """The ids of the live runs."""
        # a node may have been created by a launch that died before starting it
        return sorted({s.run_id for s in self._nodes if s.alive or s.state in UNSTARTED})

    @property
    def newest(self) -> list[str]:
        """The id of the newest run, if there is one."""
        return sorted({s.run_id for s in self._nodes}, key=time_of)[-1:]

    @property
    def _nodes(self) -> list[NodeStatus]:
        return [status for listing in self.listings.values() for status in listing.nodes]

    @property
    def unknown(self) -> Mapping[str, DdpctlError]:
        """Why hosts may have runs that they do not list, by host name."""
        unreadable = {
            connection: StopUnconfirmed(
                f"cannot read the labels of {names(listing.unreadable)}",
                "if these nodes are not in use, remove them from that host",
            )
            for connection, listing in self.listings.items()
            if listing.unreadable
        }
        return by_name(one_per_account(self.asked), {**self.errors, **unreadable})

    def hosted(self, run_ids: Sequence[str]) -> list[HostedRun]:
        """Return these runs, each with the hosts that may have it.

        A host may have a run if it lists the run, did not answer, or has nodes with unreadable labels.
        Raises NodesFailed if there are no runs, but a host may have one.
        """
        if not run_ids and self.unknown:
            raise NodesFailed(self.unknown)
        machines = one_per_account(self.asked)

        def may_have(connection: HostConnection, run_id: str) -> bool:
            listing = self.listings.get(connection)
            if listing is None or listing.unreadable:
                return True
            return run_id in {status.run_id for status in listing.nodes}

        return [HostedRun(each, [m for m in machines if may_have(m, each)]) for each in run_ids]


def list_own_runs(connections: Sequence[HostConnection], engine: str, console: Console) -> OwnRuns:
    def ask(connection: HostConnection) -> NodeListing:
        listings = [each.listing() for each in engines_on(connection, engine)]
        own = [s for each in listings for s in each.nodes if s.user == account_name()]
        return NodeListing(own, [name for each in listings for name in each.unreadable])

    with console.step(f"asking {counted(len(connections), 'host')} about their runs"):
        return OwnRuns(connections, *try_each(one_per_account(connections), ask))
