"""Record an attempt on this machine, from before its start until it has started or failed to."""

import contextlib
from collections.abc import Iterator

from ..errors import RunKilled
from ..follow import hooks
from ..follow.hooks import EventHook
from ..outcomes import RunState
from ..plan.plan import Plan
from ..runs.record import RunRecord, new_record, timestamp
from ..terminal.console import Console
from .request import Request


def remember(request: Request, plan: Plan) -> RunRecord:
    """Record a PENDING attempt, its hosts file and its hooks."""
    record = new_record(plan, request.earlier)
    request.folder.keep_cluster(request.cluster)
    request.folder.save(record)
    hooks.keep(request.folder, request.options)
    return record


@contextlib.contextmanager
def failed_start_recorded(request: Request, events: EventHook, console: Console) -> Iterator[None]:
    """If the block fails, record the end of an attempt that has not started."""
    try:
        yield
    except BaseException as error:
        record = request.folder.load_if_readable(console)
        if record and record.state in (RunState.WAITING, RunState.PENDING):
            cancelled = isinstance(error, KeyboardInterrupt | RunKilled)
            record.attempt.state = RunState.CANCELLED if cancelled else RunState.FAILED
            record.attempt.ended = timestamp()
            request.folder.try_save(record, console)
            events("attempt-ended", record, message=record.attempt.state)
        raise
