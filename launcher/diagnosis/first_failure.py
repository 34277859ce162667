"""Determine which failure was first, and why, from the evidence of all nodes. Pure.

Each node reports what it saw: ranks that exited, peers that it lost, torchrun's own output. Each
observation is a candidate. Causes rank before witnesses, and witnesses before effects: a rank that
fails because its peer is gone may well be reported first. Among equals, the earliest on a common
clock wins.
"""

from dataclasses import replace

from ..facts.xids import XIDS
from ..failure import FirstFailure
from ..supervisor import classify, log_patterns
from ..supervisor.classify import Weight
from ..supervisor.events import RankExit, Stopping
from ..text import rfc3339
from ..supervisor.error_texts import TABLE
from .evidence import Candidate, Evidence, NodeEvidence, of_last_round, on_one_clock
from ..supervisor.failure_kinds import FailureKind
from .missed_collective import missed_collective
from .stop_reason import stop_reason

WAITING = (FailureKind.COLLECTIVE_TIMEOUT, FailureKind.HUNG)
# What a broken GPU does to its rank. Each has other causes too.
GPU_SYMPTOMS = (*WAITING, FailureKind.CUDA_ERROR, FailureKind.CUDA_MISSING, FailureKind.PEER_GONE)


def first_failure(evidence: Evidence) -> FirstFailure | None:
    """Return the first failure, or None if there is no sign of one."""
    evidence = of_last_round(on_one_clock(evidence))
    observations: list[Candidate | None] = []
    for node in evidence.nodes:
        for time, exit in node.of(RankExit):
            if exit.rank in range(evidence.world_size):
                observations.append(_rank_exit(node, exit.time or time, exit))
        for time, stop in node.of(Stopping):
            observations.append(stop_reason(stop.reason, time, node, evidence))
        observations += [_torchrun(node), _sudden_end(node, evidence)]
    candidates = [_blame_gpu(candidate) for candidate in observations if candidate]
    if all(candidate.exit_code == 0 and candidate.weight for candidate in candidates):
        return None
    first = min(candidates, key=lambda candidate: (candidate.weight, candidate.time))
    if first.kind in WAITING and (missed := missed_collective(evidence)):
        first = replace(first, message=f"{first.message}; {missed}")
    return FirstFailure(
        host=first.node.host,
        node_rank=first.node.node_rank,
        rank=first.rank,
        local_rank=first.local_rank,
        exit_code=first.exit_code,
        signal=first.signal,
        kind=first.kind,
        time=rfc3339(first.time),
        message=first.message,
        excerpt="\n".join(log_patterns.excerpt(first.lines)),
        remedy=first.remedy or first.kind.remedy,
    )


def _rank_exit(node: NodeEvidence, time: float, exit: RankExit) -> Candidate | None:
    """Return the rank's failure, or None if the rank exited with 0 when it was asked to stop."""
    lines = [] if exit.exit_code == 0 else classify.exit_lines(exit) or node.lines(exit.rank)
    oom_killed = node.oom_killed and node.since is None  # else the engine may mean an earlier round
    ending = classify.rank_ending(exit, lines, node.resources, TABLE, oom_killed=oom_killed)
    if ending is None:
        return None
    return Candidate.of(ending, time - node.clock_skew, node, exit, lines)


def _blame_gpu(candidate: Candidate) -> Candidate:
    """Blame the rank's GPU for its failure if the driver has logged a fault of that GPU."""
    gpus: dict[int | None, str] = dict(enumerate(candidate.node.gpus))
    pci = gpus.get(candidate.local_rank)
    fault = next((n for gpu, n in reversed(candidate.node.xids) if gpu == pci and n in XIDS), None)
    if fault is None or candidate.kind not in GPU_SYMPTOMS:
        return candidate
    meaning, remedy = XIDS[fault]
    message = f"{candidate.message}; its GPU ({pci}) has had Xid {fault}: {meaning}"
    kind = FailureKind.GPU_FAILED
    return replace(candidate, weight=Weight.CAUSE, kind=kind, message=message, remedy=remedy)


def _torchrun(node: NodeEvidence) -> Candidate | None:
    """Detect a failure of torchrun itself: its arguments, a port, the image."""
    reason = node.end.reason if node.end and node.end.state == "failed" else None
    if not node.end or not reason or reason.kind != "torchrun":
        return None
    lines = reason.last_lines or node.lines(None)
    ending = classify.torchrun_ending(node.end.exit_code, reason.signal, lines, TABLE)
    time = (reason.time or node.last_seen) - node.clock_skew
    return Candidate.of(ending, time, node, replace(reason, exit_code=node.end.exit_code), lines)


def _sudden_end(node: NodeEvidence, evidence: Evidence) -> Candidate | None:
    """Detect a node that ended or was lost before its supervisor could report an end."""
    if node.end is not None or node.reasons:
        return None
    others = [other for other in evidence.nodes if other is not node]
    reasons = [reason for other in others for reason in other.reasons]
    lost = [r for r in reasons if r.kind == "peer-lost" and r.node_rank == node.node_rank]
    exits = [exit for other in others for _, exit in other.of(RankExit) if exit.exit_code]
    kinds = (classify.describe(e.exit_code, e.signal, e.last_lines, TABLE)[0] for e in exits)
    weight, kind = Weight.CAUSE, FailureKind.HOST_LOST
    if node.oom_killed:
        kind, message = FailureKind.OOM_KILLED, classify.oom_message(node.resources)
    elif node.exit_code is not None:
        kind = FailureKind.CONTAINER_KILLED
        message = f"its {node.unit} was killed (exit code {node.exit_code})"
    elif node.exited and not node.unseen:
        kind = FailureKind.CONTAINER_KILLED
        message = f"its {node.unit} was killed and left no exit code"
    elif lost or not node.unseen:
        message = f"the host is lost: {lost[0].message if lost else f'its {node.unit} is gone'}"
    elif FailureKind.PEER_GONE in kinds:
        weight = Weight.UNREACHABLE
        why = f"connections to it broke, and it does not answer: {node.unseen}"
        message = f"the host is lost: {why}"
    else:
        return None  # only the launching machine lost contact
    time, code = node.last_seen - node.clock_skew, node.exit_code
    return Candidate(
        weight=weight, kind=kind, message=message, time=time, node=node, exit_code=code
    )
