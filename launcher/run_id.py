"""Run ids: how one is made, and the one definition of what may stand for one.

A run id becomes a folder, a container's name and a label, and hosts report it: what does not match
is not a run id.
"""

from __future__ import annotations

import datetime
import re
import secrets

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}")
RUN_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


def is_run_id(text: object) -> bool:
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def is_sanity_run(run_id: str) -> bool:
    """Whether `sanity` started the run: such a run is never the one meant by "the newest"."""
    return re.match(r"sanity-\d{8}-\d{6}-", run_id) is not None


def new_run_id(name: str) -> str:
    """Unique, and sorts by time among the runs of one name."""
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return "-".join(part for part in (name, now, secrets.token_hex(2)) if part)
