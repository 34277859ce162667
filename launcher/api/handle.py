"""A run as a Python object: start one, or find an existing one."""

import dataclasses
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from ..errors import CommandFailed, DdpctlError, NodesFailed, StopUnconfirmed
from ..failure import FirstFailure
from ..follow.detach import ensure_recorder
from ..hosts import Hosts, cluster_of, load
from ..logs.log_entry import render
from ..logs.query import LogFilter, merged
from ..logs.store import Marks, known_marks
from ..look.fetch import fetch
from ..look.logs import checked
from ..outcomes import RunState
from ..plan.launch_options import LaunchOptions
from ..runs.attempt_lock import is_taken_care_of
from ..runs.find import find
from ..runs.newest_attempt import newest_attempt
from ..runs.run_folder import RunFolder
from ..runs.sync_logs import sync_logs
from ..ssh.host_connection import connected
from ..start.launch import new_run, run_with_restarts
from ..stop.choose_runs import HostedRun
from ..stop.kill import cancel_starts, kill_runs
from ..terminal.console import Console
from ..terminal.sanitize import colored, visible
from ..text import names

POLL = 0.2  # seconds
LOGGER = logging.getLogger("ddpctl")
LOGGER.addHandler(logging.NullHandler())  # otherwise Python prints logged errors to stderr


class LoggingConsole(Console):
    """A console that prints nothing and logs messages as ERROR, INFO or DEBUG."""

    def __init__(self) -> None:
        super().__init__(quiet=True, plain=True, results=False)

    def say(self, text: str) -> None:
        LOGGER.info("%s", text)

    def detail(self, text: str) -> None:
        LOGGER.debug("%s", text)

    def error(self, text: str) -> None:
        LOGGER.error("%s", text)


class Run:
    """A run. It continues without this object and this process; `find_run(id)` finds it again.

    Methods that contact hosts raise HostUnreachable or another DdpctlError that has the remedy.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._console = LoggingConsole()

    def __repr__(self) -> str:
        return f"<ddpctl.Run {self.id} {self.state}>"

    @property
    def id(self) -> str:
        return self._folder.run_id

    @property
    def state(self) -> RunState:
        """The state of the newest attempt as recorded on this machine. No host is contacted.

        It can be compared with strings: WAITING, PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED or
        UNKNOWN.
        """
        return self._folder.load().state

    @property
    def first_failure(self) -> FirstFailure | None:
        """The first failure of the newest attempt; None if nothing has failed."""
        return self._folder.load().attempt.first_failure

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait until the run and all its automatic restarts have ended. Return the final state.

        Raises TimeoutError after `timeout` seconds. Neither a timeout nor Ctrl-C stops the run.
        """
        began = time.monotonic()
        self._ensure_recorder()
        while is_taken_care_of(self._folder):
            if timeout is not None and time.monotonic() - began > timeout:
                raise TimeoutError(f"{self.id} has not ended after {timeout:g} s")
            time.sleep(POLL)
        if not self.state.is_final:
            log = self._folder.path / "recorder.log"
            what = f"{self.id}: its recorder stopped before the run ended (see {log})"
            raise CommandFailed(what, "call wait() again")
        return self.state

    def logs(
        self,
        *,
        follow: bool = False,
        node: int | str | None = None,
        rank: int | str | None = None,
        tail: int | None = None,
        grep: str | None = None,
    ) -> Iterator[str]:
        """Yield the log lines of all nodes, merged by time, in the form `[host:rank] text`.

        node, rank: the nodes and ranks to include, as a number or as text such as "0-3,5". tail: how
        many of the newest lines to yield. grep: a regular expression that lines must match. follow:
        whether to continue until the run has ended. Keeps colors, removes other escape sequences. Raises
        NodesFailed at the end if a host did not answer.
        """
        nodes, ranks = (None if each is None else str(each) for each in (node, rank))
        unchecked = LogFilter(tail=tail, grep=re.compile(grep.encode()) if grep else None)
        failures: Mapping[str, DdpctlError] = {}
        if not is_taken_care_of(self._folder):
            with newest_attempt(self._folder, self._console) as attempt:
                failures = sync_logs(self._folder, attempt, self._console)
        if follow:  # only a recorder copies new lines
            self._ensure_recorder()
        log_filter = checked(unchecked, nodes, ranks, self._folder.load())
        return self._lines(log_filter, follow, failures)

    def _ensure_recorder(self) -> None:
        """Start a recorder if the run needs one. The last one may have died, or run elsewhere."""
        if not (state := self.state).is_final:
            ensure_recorder(self._folder, state)

    def _lines(
        self, log_filter: LogFilter, follow: bool, failures: Mapping[str, DdpctlError]
    ) -> Iterator[str]:
        shown: Marks = {}
        more_may_come = True
        while more_may_come:
            # check this before reading the lines, because a process may write some and then end
            more_may_come = follow and is_taken_care_of(self._folder)
            known = known_marks(self._folder.logs)
            for output in merged(self._folder.logs, log_filter, known, shown):
                text = render(map(visible, output)).decode(errors="replace")
                yield from colored(text).split("\n")[:-1]
            shown, log_filter = known, dataclasses.replace(log_filter, tail=None)
            if more_may_come:
                time.sleep(POLL)
        if failures:
            raise NodesFailed(failures)

    def kill(self) -> None:
        """Stop the run on all hosts, and verify that nothing is left. Safe to repeat.

        Raises StopUnconfirmed if a host did not answer or something is left on it. The next launch
        or `ddpctl ps` that reaches that host finishes the stop.
        """
        cancel_starts([self.id], self._console)  # first, because a restart may move the run
        cluster = load(self._folder.hosts_file, job_files=False)
        with connected(cluster.hosts) as connections:
            run = HostedRun(self.id, connections)
            [killed] = kill_runs([run], cluster.job, self._console)
        if killed.unconfirmed:
            hosts = names(killed.unconfirmed)
            raise StopUnconfirmed(f"{self.id}: stop not confirmed on {hosts}", "call kill() again")

    def fetch(self, to: str | Path | None = None) -> Path:
        """Copy checkpoints, output and logs to this machine and verify them. Return their folder.

        to: that folder, by default ./ID. If a host does not answer or a file cannot be fetched,
        raises NodesFailed after fetching what it can.
        """
        done = fetch(self._folder, Path(to or self.id), self._console)
        if failures := {**done.errors, **done.failures}:
            raise NodesFailed(failures)
        return done.to


class JobOptions(TypedDict, total=False):
    """Overrides for `job` keys (docs/hosts-file.md). Paths are relative to the current folder."""

    engine: Literal["docker", "process", "apptainer"]
    python: str
    conda: str
    requirements: str | PathLike[str]
    image: str
    workdir: str | PathLike[str]
    dataset: str | PathLike[str]
    resume_args: Sequence[str]
    nproc_per_node: int
    master_port: int | Literal["auto"]
    env: Mapping[str, str]
    env_file: str | PathLike[str]
    mounts: Sequence[str]
    tmpfs: Mapping[str, str | int]
    shm_size: str | int
    devices: Sequence[str]
    cap_add: Sequence[str]
    ulimits: Mapping[str, int]
    pids_limit: int
    new_privileges: Literal["allow", "forbid"]
    user: str
    max_restarts: int
    min_nodes: int
    metrics_dir: str
    numa: Literal["auto", "off"]
    torchrun_args: Sequence[str]
    stop_timeout: int
    time_limit: str


def launch(
    hosts: Hosts = None,
    command: Sequence[str] | None = None,
    *,
    name: str = "",
    include: str | None = None,
    exclude: str | None = None,
    push: bool = True,
    check: bool = True,
    hang_timeout: float | None = None,
    wait: int | None = None,
    nodes: int | None = None,
    on_exit: str | None = None,
    on_event: str | None = None,
    **job: Unpack[JobOptions],
) -> Run:
    """Check the hosts, push what they lack and start a run, which continues by itself. Return it.

    hosts: a hosts file, "gpu1:8,gpu2:8", ["gpu1:8", "gpu2:8"], the result of `ddpctl.hosts.load`,
    or None for ./hosts.yaml. command: what torchrun runs, such as ["train.py", "--epochs", "3"].
    wait: how many seconds to wait in line for GPUs that other runs use; 0: without limit; None: do
    not wait. nodes: run on any N hosts whose GPUs are free. hang_timeout: in seconds. For all other
    parameters, see `ddpctl launch`.

    Raises DdpctlError if the run cannot start. Until this function returns, Ctrl-C stops the run.
    """
    cluster = cluster_of(hosts, {**job, "command": command}, include, exclude, source="launch()")
    options = LaunchOptions(
        name=name,
        detach=True,
        push=push,
        check=check,
        hang_timeout=hang_timeout,
        wait=wait,
        nodes=nodes,
        on_exit=on_exit,
        on_event=on_event,
    )
    console = LoggingConsole()
    request = new_run(cluster, options, console)
    run = Run(request.folder)
    try:
        run_with_restarts(request, console)
    except KeyboardInterrupt:
        if request.folder.is_recorded and run.state.is_live:
            run.kill()  # otherwise it would continue without a Run object
        raise
    return run


def find_run(run: str | None = None, hosts: str | Path | Sequence[str] | None = None) -> Run:
    """Return the run with this id or id prefix.

    By default, return the newest run recorded on this machine or, with `hosts`, the newest run on
    those hosts, live runs first. hosts: a hosts file or a list such as ["gpu1", "gpu2"]; needed only
    to find a run that another machine started. Raises UsageError if there is no such run, or if
    several ids have the prefix, and NodesFailed if none was found and some hosts did not answer.
    """
    if isinstance(hosts, Path):
        hosts = str(hosts)
    elif hosts is not None and not isinstance(hosts, str):
        hosts = ",".join([*hosts, ""])  # a single name with a comma is a host, not a file
    return Run(find(run, hosts, LoggingConsole()))
