"""What may have failed first on this node, judged as the launcher's diagnosis would. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from . import classify
from .classify import Ending, KindTable, Weight
from .events import RankExit, Reason, ResourceUsage
from .spec import Spec

LONGEST_MESSAGE = 1000  # characters


def own_cause(
    spec: Spec, reason: Reason, exits: Sequence[RankExit], resources: Sequence[ResourceUsage]
) -> tuple[Weight, Reason] | None:
    """Return our candidate for the first failure; None if this node only followed another one.

    The kind of the result is one of the launcher's table. reason: why we stopped. exits: of our ranks.
    """
    table = KindTable(spec.restart_rules, spec.error_texts)
    endings: list[tuple[Ending | None, Reason]] = []
    for exit in exits:
        where = (exit.time or 0.0, exit.rank, exit.local_rank, exit.exit_code, exit.signal)
        of_rank = Reason("", "", spec.node_rank, spec.host, *where)
        lines = classify.exit_lines(exit)
        endings.append((classify.rank_ending(exit, lines, resources, table), of_rank))
    ending = classify.stop_ending(reason)
    if reason.kind == "torchrun" and reason.node_rank == spec.node_rank:
        ending = classify.torchrun_ending(reason.exit_code, reason.signal, reason.last_lines, table)
    endings.append((ending, reason))
    causes = [
        (e.weight, replace(r, kind=e.kind, message=e.message[:LONGEST_MESSAGE], last_lines=()))
        for e, r in endings
        if e
    ]
    return min(causes, key=lambda cause: (cause[0], cause[1].time), default=None)
