"""Follow one attempt to its end: show and record its output, stop the nodes, explain a failure."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..diagnosis.blame import blame_text
from ..diagnosis.evidence import Evidence, before_restart
from ..diagnosis.failure_kinds import FailureKind
from ..diagnosis.first_failure import first_failure
from ..engines.running import RunningAttempt
from ..errors import DdpctlError, StateError
from ..facts.kernel_log import read_kernel_log
from ..failure import FirstFailure
from ..logs.store import Marks
from ..outcomes import NodeState, Outcome, RunState, run_state
from ..runs.newest_attempt import log_store
from ..runs.record import AttemptRecord, RunFolder, RunRecord, parse_timestamp, timestamp
from ..ssh.many import by_name, try_each
from ..ssh.node import Node
from ..state import write_atomically
from ..stop.stop_run import Stop
from ..supervisor.events import RestartInPlace
from ..terminal.console import Console
from ..terminal.host_errors import report_unconfirmed
from ..terminal.live import Live, may_be_shown
from ..text import counted, duration
from . import detach
from .hooks import EventHook
from .interrupts import LEAVING, Interrupts
from .monitor import Monitor, NodeOutcome, RestartReport, notices
from .node_watcher import Batch, ContactReport
from .panel import Panel
from .run_lines import RunLines

MOST_RESTARTS = 50  # of an attempt, whose evidence is kept
PEER_STOP_TIMEOUT = 8.0  # seconds for supervisors to stop each other before the launcher stops them


@dataclass(frozen=True)
class StartedRun:
    """A run whose newest attempt has started."""

    attempt: RunningAttempt
    folder: RunFolder
    record: RunRecord
    clock_skews: Sequence[float] = ()  # seconds by node rank; () if unknown
    shown: Marks = field(default_factory=dict)  # end of the lines on screen, by rank
    owned: bool = True  # Ctrl-C can stop the run; if not, it only leaves


def follow(run: StartedRun, events: EventHook, interrupts: Interrupts, console: Console) -> Outcome:
    """Follow the attempt until it has ended or the user leaves."""
    with interrupts.held(), log_store(run.folder, console) as store:
        monitor = Monitor(run.attempt, run.shown, store)
        session = Session(run, monitor, events, interrupts, console)
        with session.panel():
            try:
                return session.to_the_end()
            except DdpctlError:
                raise
            except Exception as error:
                error.add_note(f"the run goes on: `ddpctl attach {run.folder.run_id}`")
                raise


@dataclass
class Session:
    """One command that follows an attempt."""

    run: StartedRun
    monitor: Monitor
    events: EventHook
    interrupts: Interrupts
    console: Console
    _stopping: threading.Thread | None = None
    _unconfirmed: Mapping[Node, DdpctlError] = field(default_factory=dict)
    _choices_shown: bool = False  # after the first Ctrl-C
    _interrupted: bool = False
    _failed_at: float | None = None  # time.monotonic()
    _unsaved: bool = False  # the record has changed since it was saved

    def __post_init__(self) -> None:
        self.record, self._lines = self.run.record, RunLines(self.console)

    @contextlib.contextmanager
    def panel(self) -> Iterator[None]:
        """Show nodes and progress below the log lines, if this is a terminal."""
        if not may_be_shown(plain=self.console.plain, quiet=self.console.quiet):
            yield
            return
        attempt = self.record.attempt
        began = parse_timestamp(attempt.started) or time.time()
        panel = Panel(self.record.run_id, attempt.attempt, began, self.monitor.outcomes)
        closed = threading.Event()
        poll = (self.run.attempt.members[0], closed)
        threading.Thread(target=panel.poll_progress, args=poll, daemon=True).start()
        try:
            with self.console.live(Live(panel.lines)):
                yield
        finally:
            closed.set()

    def to_the_end(self) -> Outcome:
        for event in self.monitor.events():
            if isinstance(event, Batch):
                self._lines.show(event.records)
                continue
            self._lines.flush()
            if isinstance(event, NodeOutcome):
                self._node_ended(event)
            elif isinstance(event, RestartReport):
                self._restarted(event)
            elif isinstance(event, list):
                self._contact_changed(event)
            elif event is None and self._unsaved:
                # once for all nodes that ended together, because the record lists every node
                self._unsaved = False
                self._save()
            elif isinstance(event, str):
                self.console.say(event)
            number = self.interrupts.take()
            if number is not None and self._handle_signal(number):
                return self._leave(number)
            if self._failed_at and time.monotonic() - self._failed_at > PEER_STOP_TIMEOUT:
                self._stop(cancel=False)
            if self._only_unreachable_left():
                break
        return self._conclude()

    def _save(self) -> None:
        self.run.folder.try_save(self.record, self.console)

    def _contact_changed(self, changes: list[ContactReport]) -> None:
        for notice in notices(changes):
            self.console.say(notice)
        for change in changes:
            event = "contact-lost" if change.lost else "contact-restored"
            where = {"host": change.host, "node_rank": change.node_rank}
            self.events(event, self.record, message=notices([change])[0], **where)

    def _restarted(self, report: RestartReport) -> None:
        """Record a restart in place, unless another node or an earlier command has reported it."""
        skews = dict(enumerate(self.run.clock_skews))
        time = timestamp(report.time - skews.get(report.node_rank, 0.0))
        if self.record.attempt.add_restart(report.event, time):
            self._unsaved = True
            cause = report.event.cause
            where = {"host": cause.host, "node_rank": cause.node_rank}
            self.events("restarted", self.record, message=cause.headline, **where)

    def _node_ended(self, outcome: NodeOutcome) -> None:
        node = self.record.attempt.nodes[outcome.node_rank]
        is_news = node.state not in (NodeState.SUCCEEDED, NodeState.FAILED)
        node.exit_code = outcome.exit_code
        node.state = NodeState.SUCCEEDED if outcome.succeeded else NodeState.FAILED
        self._unsaved = True
        if is_news:  # otherwise an earlier command has reported it
            code = "" if outcome.exit_code is None else outcome.exit_code
            where = {"host": outcome.host, "node_rank": outcome.node_rank, "exit_code": code}
            self.events("node-ended", self.record, message=node.state, **where)
        if outcome.failed and not outcome.cancelled and self._failed_at is None:
            self._failed_at = time.monotonic()

    # --- signals and stopping ------------------------------------------------------------------

    def _handle_signal(self, number: int) -> bool:
        """Handle a signal. Return whether to leave now and let the run go on."""
        if number in LEAVING or not self.run.owned:
            return True
        on_terminal = number == signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty()
        if on_terminal and not self._choices_shown:
            self._choices_shown = True
            self.console.say(
                "press Ctrl-C again to stop the run on all hosts, or Ctrl-\\ to leave it running; "
                f"`ddpctl attach {self.record.run_id}` follows it again"
            )
            return False
        self._interrupted = True
        self._stop(cancel=True)
        return False

    def _stop(self, *, cancel: bool) -> None:
        if self._stopping is not None:
            return
        nodes, record = self.run.attempt.nodes, self.record
        hosts = len({node.name for node in nodes})
        self.console.say(f"stopping the run on {counted(hosts, 'host')}")
        timeout: float = record.stop_timeout
        if not cancel:
            timeout = min(timeout, PEER_STOP_TIMEOUT)
        owners = [record.owner]
        stop = Stop(record.run_id, record.engine, timeout, owners, remove=False, cancel=cancel)

        def stop_all() -> None:
            _, self._unconfirmed = stop.on_all(nodes)

        self._stopping = threading.Thread(target=stop_all, daemon=True)
        self._stopping.start()

    def _only_unreachable_left(self) -> bool:
        """Return whether the stop is complete except for nodes that are out of reach."""
        if not self._interrupted or self._stopping is None or self._stopping.is_alive():
            return False
        waiting = [o for o in self.monitor.outcomes.values() if not o.done]
        silent = {node.name for node in self._unconfirmed}
        return bool(waiting) and all(o.host in silent for o in waiting)

    def _leave(self, number: int) -> Outcome:
        """Let the run go on, in the care of a recorder. After Ctrl-\\, that is no interruption."""
        self.monitor.close()
        self._lines.settle()
        if self._unsaved:
            self._save()
        if self.monitor.store:
            with contextlib.suppress(OSError):  # the disk is full, which was reported already
                self.monitor.store.close()
            try:
                detach.start_recorder(self.run.folder)
            except DdpctlError as error:
                self.console.error(str(error))
        self.console.say(f"the run goes on: `ddpctl attach {self.record.run_id}`")
        return Outcome(RunState.RUNNING, interrupted=number != signal.SIGQUIT)

    # --- the end -------------------------------------------------------------------------------

    def _conclude(self) -> Outcome:
        self.monitor.close()
        self._lines.settle()
        if self._stopping:
            self._stopping.join()
        outcomes = list(self.monitor.outcomes.values())
        attempt = self.record.attempt
        attempt.state = self._final_state(outcomes)
        attempt.ended = None if attempt.state is RunState.UNKNOWN else timestamp()
        evidence = Evidence(attempt.world_size, outcomes)
        for outcome, skew in zip(outcomes, self.run.clock_skews, strict=False):
            outcome.clock_skew = skew
        if attempt.state is not RunState.SUCCEEDED:
            if attempt.state is RunState.FAILED:
                self._ask_kernels()
            failure = first_failure(evidence)
            timed_out = failure is not None and failure.kind == FailureKind.TIME_LIMIT
            if attempt.state is RunState.FAILED or timed_out:
                attempt.first_failure = failure
        self._keep_evidence(evidence)
        attempt.settle_nodes()
        not_seen = {o.host for o in outcomes if o.end is None and not o.exited}
        silent = {node.name for node in self._unconfirmed}
        self.record.pending_stop = sorted({*silent, *not_seen})
        self._save()
        report_unconfirmed(by_name(self.run.attempt.nodes, self._unconfirmed), self.console)
        report_end(self.record.run_id, attempt, self.console)
        self.events("attempt-ended", self.record, message=attempt.state)
        return Outcome(attempt.state, interrupted=self._interrupted)

    def _keep_evidence(self, evidence: Evidence) -> None:
        """Write down what is known about the attempt's failure, and about those before restarts."""
        events = (event for node in evidence.nodes for _, event in node.of(RestartInPlace))
        self._keep(self.record.attempt.first_failure, evidence)
        for number in sorted({event.number for event in events})[-MOST_RESTARTS:]:
            before = before_restart(evidence, number)
            self._keep(first_failure(before), before, number)

    def _keep(
        self, failure: FirstFailure | None, evidence: Evidence, restart: int | None = None
    ) -> None:
        """Write the text about a failure. restart: the number of the restart in place after it."""
        if failure is None:
            return
        try:
            path = self.run.folder.evidence_file(self.record.attempt.attempt, restart)
            write_atomically(path, blame_text(failure, evidence))
        except StateError as error:
            self.console.error(str(error))

    def _ask_kernels(self) -> None:
        """Add what the hosts' kernels and drivers know about GPUs that have failed."""
        began = parse_timestamp(self.record.by_hand.created) or time.time()
        members, seconds = self.run.attempt.by_node, time.time() - began
        outcomes = self.monitor.outcomes

        def ask(node: Node) -> None:
            member = members[node]
            rank = member.place.node_rank
            log = read_kernel_log(node, seconds)
            listed = member.engine.list(self.record.run_id)
            gpus = next((each.gpus for each in listed if each.node_rank == rank and each.gpus), ())
            outcome = outcomes[rank]
            outcome.gpus, outcome.xids = log.addresses(gpus), log.xids
            outcome.kernel, outcome.gpus_after = log.lines, log.loads

        ended = {rank for rank, outcome in outcomes.items() if outcome.end or outcome.exited}
        with self.console.step("looking for GPU and memory errors"):
            try_each([n for n, m in members.items() if m.place.node_rank in ended], ask)

    def _final_state(self, outcomes: Sequence[NodeOutcome]) -> RunState:
        if all(outcome.succeeded for outcome in outcomes):
            return RunState.SUCCEEDED
        if self._interrupted:
            return RunState.UNKNOWN if self._unconfirmed else RunState.CANCELLED
        return run_state([outcome.state for outcome in outcomes], len(outcomes))


def report_end(run_id: str, attempt: AttemptRecord, console: Console) -> None:
    """Print how the attempt ended, and its first failure."""
    if attempt.state is RunState.UNKNOWN:
        later = "ddpctl will stop it on next contact"
        console.say(f"run {run_id} may still be alive on these hosts; {later}")
        return
    failure = attempt.first_failure
    if failure is None:
        console.say(f"run {run_id} {attempt.state.lower()}")
        return
    console.error(f"run {run_id} {attempt.state.lower()}: {failure.headline}")
    for line in failure.excerpt.splitlines():
        console.error(f"  | {line}")
    if failure.remedy:
        console.error(f"remedy: {failure.remedy}")


def report_next(record: RunRecord, console: Console) -> None:
    """Print how long the newest attempt ran, and which command a user needs next."""
    attempt, run_id = record.attempt, record.run_id
    began, ended = parse_timestamp(attempt.started), parse_timestamp(attempt.ended)
    if began is None or ended is None:
        return
    if attempt.state is RunState.SUCCEEDED:
        hint = f"`ddpctl fetch {run_id}` copies its checkpoints and outputs here"
    else:
        hint = f"`ddpctl resume {run_id}` starts another attempt"
    which = f"attempt {attempt.attempt} " if attempt.attempt > 1 else ""
    console.say(f"{which}ran for {duration(round(ended - began))}; {hint}")
