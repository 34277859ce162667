"""Whether a run hangs: none of its ranks has made progress for `Spec.hang_timeout`. Pure."""

from __future__ import annotations

from typing import Collection

from .channel import Status

SILENT_START = 600.0  # seconds for ranks to import, load and compile before their first output


def seconds_hung(statuses: Collection[Status], timeout: float | None) -> float | None:
    """Return the seconds since the last progress if the run hangs, or None if it does not.

    Progress is what the trainer reports or, if it has reported nothing, any output of a rank.
    """
    if not timeout or not any(status.alive for status in statuses):
        return None
    reported = [s.progress_age for s in statuses if s.progress_age is not None]
    age = min(reported or [s.log_age for s in statuses])
    if not reported and not any(s.begun for s in statuses):
        timeout = max(timeout, SILENT_START)
    return None if age < timeout else age
