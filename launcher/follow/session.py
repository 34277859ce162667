"""Follow one attempt to its end: show and record its output, stop the nodes, explain a failure."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .. import text as fold
from ..diagnosis.evidence import Evidence
from ..diagnosis.failure_kinds import FailureKind
from ..diagnosis.first_failure import first_failure, headline
from ..engines.running import RunningAttempt
from ..errors import DdpctlError
from ..logs.store import Mark
from ..runs.newest_attempt import log_store
from ..runs.record import AttemptRecord, RunFolder, RunRecord, parse_timestamp, timestamp
from ..stop.kill import stop_run
from ..terminal.console import Console
from ..terminal.host_errors import report_unconfirmed
from ..terminal.live import Live, wanted
from .interrupts import Interrupts
from .monitor import ContactChange, Lines, Monitor, NodeOutcome
from .panel import Panel
from .run_lines import RunLines

EXIT = {"SUCCEEDED": 0, "FAILED": 1, "CANCELLED": 7}
EXIT_UNCONFIRMED = 6
EXIT_INTERRUPTED = 130
PEER_STOP_TIMEOUT = 8.0  # seconds for supervisors to stop each other before the launcher stops them


@dataclass
class Session:
    """An attempt that this command follows."""

    attempt: RunningAttempt
    folder: RunFolder
    record: RunRecord
    console: Console
    interrupts: Interrupts
    start_recorder: Callable[[RunFolder], None]  # keeps recording after this command ends
    on_event: Callable[..., None]  # receives the event's name, the record and values
    owned: bool = True  # whether Ctrl-C can stop the run; if not, it only leaves
    clock_skews: Sequence[float] = ()  # seconds by node rank; () if unknown
    known: Mapping[int, Mark] = field(default_factory=dict)  # what was already shown, by node rank

    def __post_init__(self) -> None:
        self._stopping: threading.Thread | None = None
        self._unconfirmed: Mapping[str, DdpctlError] = {}
        self._choices_shown = False  # after the first Ctrl-C
        self._interrupted = False
        self._failed_at: float | None = None  # time.monotonic()
        self._unsaved = False  # nodes have ended since the record was saved
        self._lines = RunLines(self.console)

    def follow(self) -> int:
        """Follow the attempt until it has ended or the user leaves; return the exit code."""
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(log_store(self.folder, self.console))
            self._monitor = Monitor(self.attempt, self.known, store)
            stack.enter_context(self.interrupts.held())
            if wanted(plain=self.console.plain, quiet=self.console.quiet):
                stack.enter_context(self._panel())
            try:
                return self._to_the_end()
            except DdpctlError:
                raise
            except Exception as error:
                error.add_note(f"the run goes on: `ddpctl attach {self.folder.run_id}`")
                raise

    @contextlib.contextmanager
    def _panel(self) -> Iterator[None]:
        """Show nodes and progress below the log lines."""
        attempt = self.record.attempt
        began = parse_timestamp(attempt.started) or time.time()
        panel = Panel(self.record.run_id, attempt.attempt, began, self._monitor.outcomes)
        closed = threading.Event()
        poll = (self.attempt.members[0], closed)
        threading.Thread(target=panel.poll_progress, args=poll, daemon=True).start()
        try:
            with self.console.live(Live(panel.lines)):
                yield
        finally:
            closed.set()

    def _to_the_end(self) -> int:
        for event in self._monitor.events():
            if isinstance(event, Lines):
                self._lines.show(event.node_rank, event.text)
                continue
            self.console.flush()
            if isinstance(event, NodeOutcome):
                self._node_ended(event)
            elif isinstance(event, list):
                self._contact_changed(event)
            elif event is None and self._unsaved:
                # once for all nodes that ended together, because the record lists every node
                self._unsaved = False
                self.folder.try_save(self.record, self.console)
            elif isinstance(event, str):
                self.console.say(event)
            number = self.interrupts.take()
            if number is not None and self._handle_signal(number):
                return self._detach()
            if self._failed_at and time.monotonic() - self._failed_at > PEER_STOP_TIMEOUT:
                self._stop(cancel=False)
            if self._only_unreachable_left():
                break
        return self._conclude()

    def _contact_changed(self, changes: list[ContactChange]) -> None:
        for line in fold.errors({change.host: change.text for change in changes}):
            self.console.say(line)
        for change in changes:
            self.on_event(
                "contact-lost" if change.lost else "contact-restored",
                self.record,
                host=change.host,
                node_rank=change.node_rank,
                message=change.text,
            )

    def _node_ended(self, outcome: NodeOutcome) -> None:
        node = self.record.attempt.nodes[outcome.node_rank]
        known = node.state in ("SUCCEEDED", "FAILED")  # an earlier command has reported it
        node.exit_code = outcome.exit_code
        node.state = "SUCCEEDED" if outcome.succeeded else "FAILED"
        self._unsaved = True
        if not known:
            self.on_event(
                "node-ended",
                self.record,
                host=outcome.host,
                node_rank=outcome.node_rank,
                exit_code="" if outcome.exit_code is None else outcome.exit_code,
                message=node.state,
            )
        if outcome.failed and not outcome.cancelled and self._failed_at is None:
            self._failed_at = time.monotonic()

    # --- signals and stopping ------------------------------------------------------------------

    def _handle_signal(self, number: int) -> bool:
        """Handle a signal. Return whether to leave now and let the run go on."""
        if number == signal.SIGHUP or not self.owned:
            return True
        on_terminal = number == signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty()
        if on_terminal and not self._choices_shown:
            self._choices_shown = True
            self.console.say(
                "press Ctrl-C again to stop the run on all hosts. To leave it running, close this "
                f"terminal or run `kill -HUP {os.getpid()}`; to follow it again, "
                f"`ddpctl attach {self.folder.run_id}`"
            )
            return False
        self._interrupted = True
        self._stop(cancel=True)
        return False

    def _stop(self, *, cancel: bool) -> None:
        if self._stopping is not None:
            return
        hosts = len({node.name for node in self.attempt.nodes})
        self.console.say(f"stopping the run on {fold.counted(hosts, 'host')}")
        timeout: float = self.record.stop_timeout
        if not cancel:
            timeout = min(timeout, PEER_STOP_TIMEOUT)

        def stop() -> None:
            nodes, engine = self.attempt.nodes, self.record.engine
            _, self._unconfirmed = stop_run(
                nodes, engine, self.folder.run_id, timeout, remove=False, cancel=cancel
            )

        self._stopping = threading.Thread(target=stop, daemon=True)
        self._stopping.start()

    def _only_unreachable_left(self) -> bool:
        """Return whether the stop is complete except for nodes that are out of reach."""
        if not self._interrupted or self._stopping is None or self._stopping.is_alive():
            return False
        waiting = [o for o in self._monitor.outcomes.values() if not o.done]
        return bool(waiting) and all(o.host in self._unconfirmed for o in waiting)

    def _detach(self) -> int:
        self._monitor.close()
        self._lines.settle()
        if self._unsaved:
            self.folder.try_save(self.record, self.console)
        if self._monitor.store:
            with contextlib.suppress(OSError):  # the disk is full, which was reported already
                self._monitor.store.close()
            try:
                self.start_recorder(self.folder)
            except DdpctlError as error:
                self.console.error(str(error))
        self.console.say(f"the run goes on: `ddpctl attach {self.folder.run_id}`")
        return EXIT_INTERRUPTED

    # --- the end -------------------------------------------------------------------------------

    def _conclude(self) -> int:
        self._monitor.close()
        self._lines.settle()
        if self._stopping:
            self._stopping.join()
        outcomes = list(self._monitor.outcomes.values())
        attempt = self.record.attempt
        attempt.ended = timestamp()
        if all(outcome.succeeded for outcome in outcomes):
            attempt.state = "SUCCEEDED"
        elif self._interrupted and self._unconfirmed:
            attempt.state, attempt.ended = "UNKNOWN", None
        elif self._interrupted or any(outcome.cancelled for outcome in outcomes):
            attempt.state = "CANCELLED"
        else:
            attempt.state = "FAILED"
        if attempt.state != "SUCCEEDED":
            for outcome, skew in zip(outcomes, self.clock_skews, strict=False):
                outcome.clock_skew = skew
            failure = first_failure(Evidence(attempt.world_size, outcomes))
            if attempt.state == "FAILED" or (failure and failure.kind == FailureKind.TIME_LIMIT):
                attempt.first_failure = failure
        attempt.settle_nodes()
        not_seen = {o.host for o in outcomes if o.end is None and not o.exited}
        self.record.pending_stop = sorted({*self._unconfirmed, *not_seen})
        self.folder.try_save(self.record, self.console)
        report_unconfirmed(self._unconfirmed, self.console)
        report_end(self.folder.run_id, attempt, self.console)
        self.on_event("attempt-ended", self.record, message=attempt.state)
        if self._interrupted:
            return EXIT_UNCONFIRMED if self._unconfirmed else EXIT_INTERRUPTED
        return EXIT[attempt.state]


def report_end(run_id: str, attempt: AttemptRecord, console: Console) -> None:
    """Print how the attempt ended, and its first failure."""
    if attempt.state == "UNKNOWN":
        console.say(
            f"run {run_id} may still be alive on these hosts; ddpctl will stop it on next contact"
        )
        return
    failure = attempt.first_failure
    if failure is None:
        console.say(f"run {run_id} {attempt.state.lower()}")
        return
    console.error(f"run {run_id} {attempt.state.lower()}: {headline(failure)}")
    for line in failure.excerpt.splitlines():
        console.error(f"  | {line}")
    if failure.remedy:
        console.error(f"remedy: {failure.remedy}")
