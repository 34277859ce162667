"""A suspect: one observation that may be the first failure, and how much it weighs. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.diagnosis.evidence import NodeEvidence


class Weight(enum.IntEnum):
    CAUSE = 0
    BYSTANDER = 1  # tells of somebody else's failure, or may be one
    OUT_OF_SIGHT = 2  # nobody can ask it, and others lost a connection to somebody
    EFFECT = 3


@dataclass(frozen=True)
class Suspect:
    weight: Weight
    time: float  # unix seconds on the launching machine's clock
    node: NodeEvidence
    kind: str
    message: str
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    lines: Sequence[str] = ()
    remedy: str = ""
