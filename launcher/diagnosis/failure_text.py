"""Format the evidence about a failed attempt as one text, to read or attach to a report. Pure."""

from collections.abc import Iterator, Sequence

from ..failure import FirstFailure
from ..supervisor.events import GpuLoad, RankExit
from .evidence import Evidence, NodeEvidence, of_last_round
from .missed_collective import missed_collective
from .stack_groups import newest_groups

LINES = 20  # shown per rank
LONGEST = 500  # characters shown per line
FRAMES = 50  # shown per stack
MOST_RANKS = 256  # shown per node, because a host may report any number of them


def failure_text(failure: FirstFailure, evidence: Evidence) -> str:
    """Describe the failure, collectives and stacks, then each node's GPUs, kernel log and output."""
    evidence = of_last_round(evidence)
    parts = [f"{failure.headline}\nkind: {failure.kind}, time: {failure.time}\n{failure.remedy}"]
    if missed := missed_collective(evidence):
        parts.append(f"collectives: {missed}")
    if groups := newest_groups(evidence.nodes):
        stacks = "\n".join(line for group in groups for line in group.excerpt(FRAMES))
        parts.append(f"stacks before the run was stopped:\n{stacks}")
    for node in evidence.nodes:
        parts.append("\n".join(_about(node)))
    return "\n\n".join(parts) + "\n"


def _about(node: NodeEvidence) -> Iterator[str]:
    yield f"--- node {node.node_rank} ({node.host})" + f": {node.unseen}" * bool(node.unseen)
    if node.gpus_before or node.gpus_after:
        yield from _gpus("GPUs at the start", node.gpus_before)
        yield from _gpus("GPUs after the failure", node.gpus_after)
    yield "kernel messages about GPUs and memory since the start of the run:"
    kernel = node.kernel or ["(none, or ddpctl is not allowed to read them)"]
    yield from (f"  {line[:LONGEST]}" for line in kernel)
    exits = {exit.rank: exit for exit in node.of(RankExit)}
    ranks = {*exits, *(entry.rank for entry in node.newest_lines if entry.rank is not None)}
    for rank in sorted(ranks)[:MOST_RANKS]:
        exit = exits.get(rank)
        ending = exit and (
            exit.signal or (exit.exit_code is not None and f"exit code {exit.exit_code}")
        )
        yield f"last lines of rank {rank}{f', {ending}' if ending else ''}:"
        lines = (exit.last_lines if exit else ()) or node.lines(rank)
        yield from (f"  {line[:LONGEST]}" for line in lines[-LINES:])


def _gpus(when: str, gpus: Sequence[GpuLoad]) -> Iterator[str]:
    yield f"{when}:{'' if gpus else ' nvidia-smi did not respond'}"
    for number, gpu in enumerate(gpus):
        yield (
            f"  {number}: {gpu.use}% use, {gpu.used} of {gpu.total} MiB, {gpu.clock} MHz, "
            f"{gpu.celsius} C, {gpu.ecc_errors} uncorrectable ECC errors"
        )
