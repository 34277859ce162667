"""Follow one attempt: show its lines, react to failures and signals, stop its nodes."""

import signal
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace

from ..engines.node_handle import AttemptHandle
from ..errors import DdpctlError
from ..logs.log_entry import output_in
from ..logs.store import LogStore, Marks
from ..outcomes import NodeState, Outcome, RunState, run_state
from ..runs.record import AttemptRecord, RunRecord, timestamp
from ..runs.run_folder import RunFolder
from ..runs.sync_logs import log_store
from ..ssh.background import in_background
from ..ssh.many import by_name, try_each
from ..stop.stop_on_host import Errors, Results, Stop, why_unconfirmed
from ..terminal.console import Console
from ..terminal.host_errors import report_unconfirmed
from ..text import counted
from . import detach
from .attempt_end import explain, note_killed, report_end
from .ctrl_c import LEAVING, Interrupts
from .followed_node import FollowedNode
from .hooks import EventHook
from .inbox import NewEntries
from .monitor import ContactChange, Monitor, NodeDone, Observation, Restarted, Tick
from .panel import live_panel
from .run_lines import RunLines

PEER_STOP_TIMEOUT = 8.0  # seconds for the supervisors to stop each other before we stop them


@dataclass(frozen=True)
class StartedRun:
    """A run whose newest attempt has started."""

    handle: AttemptHandle
    folder: RunFolder
    record: RunRecord
    clock_skews: Sequence[float] = ()  # seconds by node rank; () if unknown
    shown: Marks = field(default_factory=dict)  # the marks up to which lines are on screen
    owned: bool = True  # whether Ctrl-C can stop the run; otherwise it only stops following
    records: bool = True  # whether this process takes care of the run; see runs/sync_logs.py


def follow(run: StartedRun, hook: EventHook, interrupts: Interrupts, console: Console) -> Outcome:
    """Follow the attempt until it has ended or the user leaves it, and return the outcome."""
    ctrl_c = interrupts.asked_to_end
    log = log_store(run.folder, console, records=run.records, interrupted=ctrl_c)
    with interrupts.held(), log as store:
        monitor = Monitor(run.handle, run.shown, run.clock_skews)
        session = Session(run, monitor, store, RunLines(console), hook, interrupts, console)
        with live_panel(run.record, run.handle.members[0], monitor.nodes, console):
            try:
                outcome = session.to_the_end()
            except Exception:
                run_id = run.folder.run_id
                console.say(f"the run continues; follow it with `ddpctl attach {run_id}`")
                raise
        if outcome.interrupted:
            interrupts.forget()  # further signals would ask for the same
        return outcome


@dataclass
class Session:
    """A command that follows an attempt.

    store: None if another process records the lines or if the store is unwritable.
    """

    run: StartedRun
    monitor: Monitor
    store: LogStore | None
    lines: RunLines
    hook: EventHook
    interrupts: Interrupts
    console: Console
    _stopping: Future[tuple[Results, Errors]] | None = None
    _choices_shown: bool = False  # after the first Ctrl-C
    _interrupted: bool = False
    _failed_at: float | None = None  # time.monotonic()
    _unsaved: bool = False  # whether the record has changed since it was saved

    @property
    def record(self) -> RunRecord:
        return self.run.record

    def to_the_end(self) -> Outcome:
        """Follow the attempt, then conclude it or leave it to a recorder. Return the outcome."""
        with closing(self.monitor.observations()) as observations:
            leaving = self._watch(observations)
        self.lines.settle()
        return self._conclude() if leaving is None else self._leave(leaving)

    def _watch(self, observations: Iterable[Observation]) -> int | None:
        """React to the observations. Return the signal that makes us leave the run, or None."""
        for observation in observations:
            match observation:
                case NewEntries(node_rank, entries):
                    if self.store:
                        self.store.append(node_rank, entries, self.run.handle.number)
                    self.lines.show(output_in(entries))
                case NodeDone(node):
                    self._node_done(node)
                case Restarted():
                    self._restarted(observation)
                case ContactChange():
                    self._contact_changed(observation)
                case Tick():
                    self.lines.flush()
                    self._save_changes()  # once for all nodes that became done together
                    number = self.interrupts.take()
                    if number is not None and self._handle_signal(number):
                        return number
                    if self._failed_at and time.monotonic() - self._failed_at > PEER_STOP_TIMEOUT:
                        self._stop(cancel=False)
                    if self._only_unconfirmed_left():
                        return None
        return None

    def _save_changes(self) -> None:
        if self._unsaved:
            self._unsaved = False
            self._save()

    def _save(self) -> None:
        """Save the record, unless another command has recorded more.

        The other command may have started a newer attempt, perhaps while this one was suspended with
        Ctrl-Z, or recorded the end of this attempt, as `kill` does.
        """

        def known(attempt: AttemptRecord) -> tuple[int, bool]:
            return attempt.number, attempt.state.is_final

        newest = self.run.folder.load_if_readable(self.console)
        if newest is None or known(newest.attempt) <= known(self.record.attempt):
            self.run.folder.try_save(self.record, self.console)

    def _contact_changed(self, change: ContactChange) -> None:
        for line in change.texts:
            self.console.say(line)
        for node in change.nodes:
            event = "contact-lost" if node.contact.lost else "contact-restored"
            where = {"host": node.host, "node_rank": node.node_rank}
            self.hook(event, self.record, message=ContactChange([node]).texts[0], **where)

    def _restarted(self, report: Restarted) -> None:
        """Record a restart in place, unless another node or an earlier command has reported it."""
        when = timestamp(report.time - report.node.clock_skew)
        if self.record.attempt.add_restart(report.restart, when):
            self._unsaved = True
            cause = report.restart.cause
            where = {"host": cause.host, "node_rank": cause.node_rank}
            self.hook("restarted", self.record, message=cause.headline, **where)

    def _node_done(self, node: FollowedNode) -> None:
        entry = self.record.attempt.nodes[node.node_rank]
        is_news = not entry.state.is_final
        entry.exit_code, entry.state = node.exit_code, node.end_state
        self._unsaved = True
        if is_news:  # otherwise, an earlier command has reported it
            code = "" if node.exit_code is None else node.exit_code
            where = {"host": node.host, "node_rank": node.node_rank, "exit_code": code}
            self.hook("node-ended", self.record, message=entry.state, **where)
        if node.end_state is NodeState.FAILED and self._failed_at is None:
            self._failed_at = time.monotonic()

    # --- signals and stopping ------------------------------------------------------------------

    def _handle_signal(self, number: int) -> bool:
        """Handle a signal. Return whether to stop following now and let the run continue."""
        if self._interrupted:
            return False  # see the stop through, so that we can confirm and record it
        if number in LEAVING or not self.run.owned:
            return True
        on_terminal = number == signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty()
        if on_terminal and not self._choices_shown:
            self._choices_shown = True
            self.console.say(
                "press Ctrl-C again to stop the run on all hosts, or Ctrl-\\ to leave it running; "
                f"to follow it again later, run `ddpctl attach {self.record.run_id}`"
            )
            return False
        self._interrupted = True
        self._stop(cancel=True)
        return False

    def _stop(self, *, cancel: bool) -> None:
        """Begin to stop all nodes, unless that has already begun."""
        if self._stopping is not None:
            return
        connections = self.run.handle.connections
        hosts = {connection.name for connection in connections}
        self.console.say(f"stopping the run on {counted(len(hosts), 'host')}")
        stop = replace(Stop.of(self.record), remove=False, cancel=cancel)
        if not cancel:
            stop = replace(stop, timeout=min(stop.timeout, PEER_STOP_TIMEOUT))
        self._stopping = in_background(try_each, connections, stop.on_host)

    def _only_unconfirmed_left(self) -> bool:
        """Return whether the stop is complete except on hosts that have not confirmed it."""
        if not self._interrupted or self._stopping is None or not self._stopping.done():
            return False
        waiting = {node.host for node in self.monitor.nodes.values() if not node.done}
        unconfirmed = {connection.name for connection in why_unconfirmed(*self._stopping.result())}
        return bool(waiting) and waiting <= unconfirmed

    # --- the end -------------------------------------------------------------------------------

    def _leave(self, number: int) -> Outcome:
        """Leave the run to a recorder. Ctrl-\\ does not count as an interruption."""
        self._save_changes()
        if self.store:
            self.store.close()  # so that the recorder can open it
        try:
            if self.run.owned or self.store:
                detach.ensure_recorder(self.run.folder)
        except DdpctlError as error:
            self.console.error(str(error))
        self.console.say(f"the run continues; follow it with `ddpctl attach {self.record.run_id}`")
        return Outcome(RunState.RUNNING, interrupted=number != signal.SIGQUIT)

    def _conclude(self) -> Outcome:
        """Record, explain and report the end of the attempt. Return the outcome."""
        unconfirmed = why_unconfirmed(*self._stopping.result()) if self._stopping else {}
        nodes, attempt = self.monitor.nodes, self.record.attempt
        note_killed(self.run.handle, self.record.run_id, nodes)
        if self._interrupted and not all(node.succeeded for node in nodes.values()):
            attempt.state = RunState.UNKNOWN if unconfirmed else RunState.CANCELLED
        else:
            attempt.state = run_state([node.end_state for node in nodes.values()], len(nodes))
        attempt.ended = None if attempt.state is RunState.UNKNOWN else timestamp()
        explain(self.run.handle, self.run.folder, self.record, nodes, self.console)
        attempt.settle_nodes()
        not_seen = {node.host for node in nodes.values() if not node.has_ended}
        not_stopped = {connection.name for connection in unconfirmed}
        # hosts of earlier attempts, which only the next command that reaches them can ask
        former = {*self.record.pending_stop} - {node.host for node in nodes.values()}
        self.record.pending_stop = sorted(not_stopped | not_seen | former)
        self._save()
        report_unconfirmed(by_name(self.run.handle.connections, unconfirmed), self.console)
        report_end(self.record.run_id, attempt, self.console)
        self.hook("attempt-ended", self.record, message=attempt.state)
        return Outcome(attempt.state, interrupted=self._interrupted)
