"""Find the runs that `kill` should stop, and the hosts that may have nodes of these runs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engines.base import NodeListing
from ..engines.choose import engines_on
from ..engines.status import UNSTARTED, NodeStatus
from ..errors import DdpctlError, HostsFileError, NodesFailed, StopUnconfirmed, UsageError
from ..hosts import Cluster, load
from ..run_id import time_of
from ..runs.attempt_lock import runs_being_prepared
from ..runs.find import find_id, find_recorded, hosts_to_ask, list_nodes
from ..runs.run_folder import RunFolder
from ..ssh.host_connection import HostConnection
from ..ssh.local import account_name
from ..ssh.many import by_name, one_per_account, try_each
from ..terminal.ask import confirm
from ..terminal.console import Console
from ..text import counted, names


@dataclass(frozen=True)
class HostedRun:
    """A run, and the hosts that may have it.

    others: the other hosts that were asked about the run, which do not have it. owners: the other
    users whose nodes are to be stopped. typed: the id or the start of it, as the user typed it; None
    if none was typed.
    """

    run_id: str
    connections: Sequence[HostConnection]
    others: Sequence[HostConnection] = ()
    owners: Sequence[str] = ()
    typed: str | None = None

    @property
    def asked(self) -> set[str]:
        """The names of all hosts that are asked about the run."""
        return {connection.name for connection in (*self.connections, *self.others)}

    def user_agrees(self, *, yes: bool) -> bool:
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
class Target:
    """The runs that `kill` is to stop on the hosts of `cluster`: the first of these that applies.

    folder: the run of this record. typed: the hosts' run with this id or the only one whose id starts
    with it. everything: all of this user's live runs. Else this user's only live run or, if none is
    live, the newest run that has ended.
    """

    cluster: Cluster
    typed: str | None
    folder: RunFolder | None = None
    everything: bool = False

    def user_agrees(self, *, yes: bool) -> bool:
        """Ask before stopping more than the user named. Return the answer."""
        if self.everything:
            refusal = "--all stops all your runs on these hosts"
            return confirm("Stop all your runs on these hosts?", refusal, yes=yes)
        if self.folder and self.typed is None:
            return confirm(f"Stop run {self.folder.run_id}?", None, yes=yes)
        return True

    def runs(self, connections: Sequence[HostConnection], console: Console) -> ChosenRuns:
        """Return the runs to stop, each with the hosts that may have it.

        If all runs are to be stopped, also return the errors of the hosts that did not list theirs.
        """
        if self.folder or self.typed:
            return [self._named_run(connections, console)], {}
        own = list_own_runs(connections, self.cluster.job.engine, console)
        if self.everything:
            if own.listings and not own.live:
                return [], own.unknown  # finished runs are still removed on the hosts that answered
            return own.hosted(own.live), by_name(one_per_account(connections), own.errors)
        if len(own.live) > 1:
            what = f"several live runs on these hosts: {', '.join(own.live)}"
            raise UsageError(what, "name one of them, or pass --all")
        return own.hosted(own.live or own.newest), {}

    def _named_run(self, connections: Sequence[HostConnection], console: Console) -> HostedRun:
        """Return the run, and the other users who own some of its nodes on these hosts."""
        hosts = counted(len(connections), "host")
        if self.folder:
            run_id = self.folder.run_id
            record = self.folder.load_if_readable(console)
            if record and not record.adopted:  # launched here, by this user
                return HostedRun(run_id, connections)
        else:
            with console.step(f"asking {hosts} about the run"):
                run_id = find_id(connections, self.cluster, self.typed)
        with console.step(f"asking {hosts} who owns the run"):
            statuses, _ = list_nodes(connections, self.cluster, run_id)
        owners = sorted({status.owner for status in statuses if status.user != account_name()})
        return HostedRun(run_id, connections, owners=owners, typed=self.typed)


def read_hosts(run: str | None, hosts: str | None, console: Console) -> Cluster:
    """Return the hosts on which `kill` acts: `hosts` or, without them, those of the recorded run."""
    return recorded_hosts(find_recorded(run)) if hosts is None else hosts_to_ask(hosts, console)


def read_target(
    run: str | None, hosts: str | None, console: Console, *, everything: bool
) -> Target:
    """Return the target of `kill`. everything: all runs on the hosts; see `read_hosts`."""
    if everything or hosts is not None:
        return Target(read_hosts(run, hosts, console), run, everything=everything)
    if run is None:
        refuse_to_guess()
    folder = find_recorded(run)
    return Target(recorded_hosts(folder), run, folder)


def refuse_to_guess() -> None:
    """Raise UsageError if a command here is preparing a run other than the newest recorded one."""
    newest, remedy = None, "to stop one, press Ctrl-C there"
    with contextlib.suppress(UsageError):  # this machine may have no record of any run
        newest = find_recorded(None).run_id
        remedy += f"; to stop the newest run that has started, run `ddpctl kill {newest}`"
    if others := [run_id for run_id in runs_being_prepared() if run_id != newest]:
        raise UsageError(f"still being launched or resumed: {', '.join(others)}", remedy)


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
        """The id of the newest run; empty if there is none."""
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

        def may_have(connection: HostConnection, run_id: str) -> bool:
            listing = self.listings.get(connection)
            if listing is None or listing.unreadable:
                return True
            return run_id in {status.run_id for status in listing.nodes}

        def hosted(run_id: str) -> HostedRun:
            there = [each for each in one_per_account(self.asked) if may_have(each, run_id)]
            return HostedRun(run_id, there, [each for each in self.asked if each not in there])

        return [*map(hosted, run_ids)]


def list_own_runs(connections: Sequence[HostConnection], engine: str, console: Console) -> OwnRuns:
    def ask(connection: HostConnection) -> NodeListing:
        listings = [each.listing() for each in engines_on(connection, engine)]
        own = [s for each in listings for s in each.nodes if s.user == account_name()]
        return NodeListing(own, [name for each in listings for name in each.unreadable])

    with console.step(f"asking {counted(len(connections), 'host')} about their runs"):
        return OwnRuns(connections, *try_each(one_per_account(connections), ask))
