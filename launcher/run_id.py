"""Make, validate and take apart run ids.

A run id becomes a folder, a container name and a label. Because hosts report run ids, any text that
does not match the pattern is rejected.
"""

import datetime
import re
import secrets

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}")
MADE = re.compile(r"(?:[a-z0-9_.-]+-)?\d{8}-\d{6}-[0-9a-f]{4}")  # an id from new_run_id
RUN_ID = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


def is_run_id(text: object) -> bool:
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def is_sanity_run(run_id: str) -> bool:
    """Return whether `sanity` started the run. Such a run never counts as the newest."""
    return name_of(run_id) == "sanity"


def time_of(run_id: str) -> str:
    """Return the time and suffix that end a run id.

    As a sort key, they put runs in order of creation.
    """
    return run_id[-len("20261121-153000-abcd") :]


def name_of(run_id: str) -> str:
    """Return the name that the user gave the run, or "" if there is none."""
    return run_id.removesuffix(time_of(run_id)).removesuffix("-") if MADE.fullmatch(run_id) else ""


def new_run_id(name: str) -> str:
    """Return a new, unique run id: the name, the time in UTC and a random suffix."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return "-".join(part for part in (name, now, secrets.token_hex(2)) if part)
