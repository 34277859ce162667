"""The labels of a node's container: which ones ddpctl sets, and which values it accepts. Pure.

Some values come from the host (its clock, its GPUs), and a host may report any labels.
"""

import re
from collections.abc import Collection, Mapping

from ..errors import CommandFailed
from ..hosts import Host
from ..run_id import RUN_ID
from ..text import quoted
from .plan import Plan

LABEL = "io.ddpctl"  # the prefix of every label
POSITIVE = re.compile("[1-9][0-9]{0,5}")
FORMS = {  # ddpctl ignores a node with labels of other forms; `since` is in unix seconds
    "run-id": RUN_ID,
    "attempt": POSITIVE,
    "nnodes": POSITIVE,
    "node-rank": re.compile("[0-9]{1,6}"),
    "gpus": re.compile(r"([\w.:-]{1,64}(,[\w.:-]{1,64}){0,999})?", re.ASCII),
    "since": re.compile(r"([0-9]{1,11}(\.[0-9]{1,3})?)?"),
    "master-port": re.compile("([0-9]{1,5})?"),
}


def container_labels(
    plan: Plan, host: Host, rank: int, uuids: Collection[str] | None
) -> dict[str, str]:
    """Return the container's labels. uuids: the UUIDs of its GPUs; None until the host is asked."""
    values = {
        "run-id": plan.run_id,
        "attempt": plan.attempt,
        "node-rank": rank,
        "nnodes": plan.nnodes,
        "owner": plan.owner,
        "name": plan.options.name,
        "master-port": plan.master_port,
        "gpus": None if uuids is None else ",".join(uuids),
        "since": None if uuids is None else f"{plan.key[0]:.3f}",
    }
    labels = {key: str(value) for key, value in values.items() if value is not None}
    if odd := odd_label(labels):
        what = f"the values that it reports make an invalid label: {odd} {quoted(labels[odd])}"
        remedy = "check the clock and `nvidia-smi -L` on that host"
        raise CommandFailed(what, remedy, host=host.name)
    return {f"{LABEL}.{key}": value for key, value in labels.items()}


def odd_label(labels: Mapping[str, str]) -> str | None:
    """Return the name of an invalid label; None if all are valid. Names omit the prefix."""
    for name, form in FORMS.items():
        if not form.fullmatch(labels.get(name, "")):
            return name
    return "node-rank" if int(labels["node-rank"]) >= int(labels["nnodes"]) else None
