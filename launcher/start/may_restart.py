"""Whether the launcher restarts a run that has failed. Pure.

The supervisors have already restarted it in place if they could.
"""

from ..runs.record import RunRecord
from ..supervisor.restart_rule import PastRestart, refusal


def past_restarts(record: RunRecord | None) -> list[PastRestart]:
    return [PastRestart(each.cause, each.saved) for each in record.restarts] if record else []


def why_not(record: RunRecord, max_restarts: int, *, saved: bool) -> str:
    """Return why a run that has failed is not restarted; "" if it is.

    saved: it has saved a new checkpoint since its last start.
    """
    failure = record.attempt.first_failure
    cause = failure.kind if failure else "unknown"
    return refusal(cause, saved, past_restarts(record), max_restarts, other_hosts=True)
