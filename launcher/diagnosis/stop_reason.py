"""Why a supervisor stopped its node: what it says of itself or of another. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.hang import hang
from launcher.diagnosis.partition import cut_each_other_off, cut_off
from launcher.diagnosis.rank_exit import EARLY_EXIT
from launcher.diagnosis.suspect import Suspect, Weight

REASONS = {  # supervisor's reason -> (kind, weight, remedy)
    "early-exit": (
        "early-exit",
        Weight.CAUSE,
        EARLY_EXIT,
    ),
    "stopped": (
        "stopped",
        Weight.CAUSE,
        "somebody stopped the process (SIGSTOP, Ctrl-Z, debugger)",
    ),
    "start": ("start", Weight.CAUSE, "the image must hold Python and torch"),
    "hung": (
        "hung",
        Weight.BYSTANDER,
        "see what that rank waits for: data, a lock, a disk; `ddpctl stacks` shows where the ranks of "
        "a living run stand",
    ),
    "never-joined": (
        "never-joined",
        Weight.BYSTANDER,
        "that host's container did not start or cannot reach node 0: see `ddpctl check`",
    ),
    "supervisor": ("supervisor", Weight.CAUSE, "this is a fault of ddpctl: please report it"),
    "control-port": ("port-in-use", Weight.CAUSE, "start again: another port is chosen"),
    "signal": ("terminated", Weight.BYSTANDER, "somebody stopped the container or its host"),
    "peer-lost": (
        "host-lost",
        Weight.BYSTANDER,
        "that host, its container or the network to it went away: see `ddpctl check`",
    ),
}


def reason_given(
    reason: dict[str, Any], seen: float, node: NodeEvidence, evidence: Evidence
) -> Iterator[Suspect]:
    if reason.get("kind") not in REASONS:
        return
    kind, weight, remedy = REASONS[reason["kind"]]
    about = next((n for n in evidence.nodes if n.node_rank == reason.get("node_rank")), node)
    message, lines = str(reason.get("message", "")), reason.get("last_lines") or ()
    if reason["kind"] == "peer-lost" and cut_each_other_off(about, node):
        kind = "network-cut"
        remedy = "both hosts went on without hearing each other: look at the network between them"
        if out := cut_off(evidence):
            about = out
            message = "it ran on, but the others did not hear it any more, nor it them"
            remedy = "look at that host's network: its interface, cable, switch port and firewall"
    rank, local_rank = reason.get("rank"), reason.get("local_rank")
    if kind == "hung" and (found := hang(evidence, message.partition(";")[0])):
        lines = found.lines
        if found.rank and found.node:
            about, rank, local_rank = found.node, found.rank.rank, found.rank.local_rank
        if found.rank or rank is None:
            message = found.message
    yield Suspect(
        weight,
        seen - node.clock_skew,
        about,
        kind,
        message,
        rank=rank,
        local_rank=local_rank,
        exit_code=reason.get("exit_code"),
        signal=reason.get("signal"),
        lines=lines,
        remedy=remedy,
    )
