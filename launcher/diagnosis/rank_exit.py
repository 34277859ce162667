"""Explain why a rank ended, from its exit code, its signal and its last lines. Pure."""

from collections.abc import Sequence

from ..supervisor.classify import exit_lines, rank_ending
from ..supervisor.events import RankExit
from .error_texts import TABLE
from .evidence import Candidate, NodeEvidence
from .failure_kinds import FailureKind


def rank_exit(node: NodeEvidence, time: float, exit: RankExit) -> Candidate | None:
    """Return the rank's failure, or None if the rank exited with 0 when it was asked to stop."""
    lines: Sequence[str] = ()
    if exit.exit_code != 0:
        lines = exit_lines(exit) or node.lines(exit.rank)
    oom_killed = node.oom_killed and node.since is None  # else the engine may mean an earlier round
    ending = rank_ending(exit, lines, node.resources, TABLE, oom_killed=oom_killed)
    if ending is None:
        return None
    return Candidate(
        ending.weight,
        time - node.clock_skew,
        node,
        FailureKind(ending.kind),
        ending.message,
        ending.remedy,
        rank=exit.rank,
        local_rank=exit.local_rank,
        exit_code=exit.exit_code,
        signal=exit.signal,
        lines=lines,
    )
