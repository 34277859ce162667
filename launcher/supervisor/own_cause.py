"""What may have failed first on this node, judged as the launcher's diagnosis would. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Sequence

from .classify import (
    Ending,
    KindTable,
    Weight,
    exit_lines,
    rank_ending,
    stop_ending,
    torchrun_ending,
)
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
    found = [*_of_ranks(spec, exits, resources, table), *_of_node(spec, reason, table)]
    return min(found, key=lambda cause: (cause[0], cause[1].time), default=None)


def _of_ranks(
    spec: Spec, exits: Sequence[RankExit], resources: Sequence[ResourceUsage], table: KindTable
) -> Iterator[tuple[Weight, Reason]]:
    for exit in exits:
        ending = rank_ending(exit, exit_lines(exit), resources, table)
        if ending is not None:
            yield (
                ending.weight,
                Reason(
                    ending.kind,
                    ending.message[:LONGEST_MESSAGE],
                    spec.node_rank,
                    spec.host,
                    exit.time or 0.0,
                    exit.rank,
                    exit.local_rank,
                    exit.exit_code,
                    exit.signal,
                ),
            )


def _of_node(spec: Spec, reason: Reason, table: KindTable) -> Iterator[tuple[Weight, Reason]]:
    ending: Ending | None = stop_ending(reason)
    if reason.kind == "torchrun" and reason.node_rank == spec.node_rank:
        ending = torchrun_ending(reason.exit_code, reason.signal, reason.last_lines, table)
    if ending is not None:
        message = ending.message[:LONGEST_MESSAGE]
        yield ending.weight, replace(reason, kind=ending.kind, message=message, last_lines=())
