"""Decide whether to restart a failed run: one rule for node 0's supervisor and the launcher. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Sequence

from .failure_kinds import KINDS, Restart

NO_PROGRESS_LIMIT = 3  # restarts in a row without a new checkpoint
# Seconds before a restart, by the number of restarts in a row that produced no new checkpoint
PAUSES_IN_PLACE = (0.0, 3.0, 20.0)  # if the supervisors restart the run on its nodes
PAUSES_BY_LAUNCHER = (2.0, 10.0, 30.0)  # if the launcher starts another attempt


@dataclass(frozen=True)
class PastRestart:
    """A restart. cause: the kind of failure. saved: whether the failed start saved a checkpoint."""

    cause: str
    saved: bool


def refusal(
    cause: str,
    saved: bool,
    past: Sequence[PastRestart],
    max_restarts: int,
    *,
    other_hosts: bool = False,
) -> str:
    """Return why a run is not restarted; "" if it is.

    cause: why the last start failed. saved: whether it saved a checkpoint. past: restarts since the
    user started the run. other_hosts: whether the next start may be on other hosts.
    """
    rule = KINDS[cause].restart if cause in KINDS else Restart.NEVER
    if rule is Restart.NEVER:
        return "a failure of kind `%s` would happen again" % cause
    if rule is Restart.ELSEWHERE and not other_hosts:
        return "a failure of kind `%s` would happen again on this host" % cause
    if rule is Restart.ONCE and any(each.cause == cause for each in past):
        return "a failure of kind `%s` restarts a run only once" % cause
    if len(past) >= max_restarts:
        return "all restarts are used up (%d of %d)" % (len(past), max_restarts)
    idle = without_progress(saved, past)
    if idle >= NO_PROGRESS_LIMIT:
        return "%d restarts in a row produced no new checkpoint" % idle
    return ""


def without_progress(saved: bool, past: Sequence[PastRestart]) -> int:
    """Return the number of restarts in a row, up to now, that produced no new checkpoint."""
    after_restarts = [*(each.saved for each in past), saved][1:]  # the first start is not a restart
    return sum(1 for _ in takewhile(lambda saved: not saved, reversed(after_restarts)))
