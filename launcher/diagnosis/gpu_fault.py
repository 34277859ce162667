"""Blame a GPU for a rank's failure if the driver has logged a fault of that GPU. Pure."""

from dataclasses import replace

from ..facts.xids import XIDS
from ..supervisor.classify import Weight
from .evidence import Candidate, NodeEvidence
from .failure_kinds import FailureKind

# What a broken GPU does to its rank. Each has other causes too.
SYMPTOMS = (
    FailureKind.CUDA_ERROR,
    FailureKind.CUDA_MISSING,
    FailureKind.COLLECTIVE_TIMEOUT,
    FailureKind.HUNG,
    FailureKind.PEER_GONE,
)


def blame_gpu(candidate: Candidate) -> Candidate:
    """Return the candidate, as a failure of the rank's GPU if there is evidence of that."""
    pci = gpu_of(candidate.node, candidate.local_rank)
    fault = next((n for gpu, n in reversed(candidate.node.xids) if gpu == pci and n in XIDS), None)
    if fault is None or candidate.kind not in SYMPTOMS:
        return candidate
    meaning, remedy = XIDS[fault]
    message = f"{candidate.message}; its GPU ({pci}) has had Xid {fault}: {meaning}"
    kind = FailureKind.GPU_FAILED
    return replace(candidate, weight=Weight.CAUSE, kind=kind, message=message, remedy=remedy)


def gpu_of(node: NodeEvidence, local_rank: int | None) -> str | None:
    """Return the PCI address of a rank's GPU, or None if it is not known."""
    return None if local_rank is None else dict(enumerate(node.gpus)).get(local_rank)
