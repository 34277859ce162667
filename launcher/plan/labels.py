"""The labels of a node's container: one rule for those that ddpctl writes and those that it reads. Pure.

Some values come from the host (its clock, its GPUs), and a host may report any labels.
"""

import re
from collections.abc import Mapping

from ..run_id import RUN_ID

LABEL = "io.ddpctl"  # the prefix of every label
POSITIVE = re.compile("[1-9][0-9]{0,5}")
FORMS = {  # a node is readable only if these labels match; `since` is in unix seconds
    "run-id": RUN_ID,
    "attempt": POSITIVE,
    "nnodes": POSITIVE,
    "node-rank": re.compile("[0-9]{1,6}"),
    "gpus": re.compile(r"([\w.:-]{1,64}(,[\w.:-]{1,64}){0,999})?", re.ASCII),
    "since": re.compile(r"([0-9]{1,11}(\.[0-9]{1,3})?)?"),
}


def odd_label(labels: Mapping[str, str]) -> str | None:
    """Return the name of a label with a malformed value; None if all are valid. Keys have no prefix."""
    for name, form in FORMS.items():
        if not form.fullmatch(labels.get(name, "")):
            return name
    return "node-rank" if int(labels["node-rank"]) >= int(labels["nnodes"]) else None
