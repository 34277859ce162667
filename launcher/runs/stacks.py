"""The `stacks` command's work: every rank's Python stack, asked of all hosts at once.

Each node's supervisor is asked by a file in its control folder and answers by another, so the launching
machine needs nothing but the SSH connection, and the run is not touched.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.diagnosis.stack_groups import (
    RankStack,
    StackGroup,
    grouped,
    label,
    located,
    stragglers,
    verdict,
)
from launcher.engines.attempt import RunningAttempt
from launcher.errors import CommandFailed, CommandTimeout, DdpctlError
from launcher.hosts.fold import ranges
from launcher.logs.events import parsed
from launcher.plan.plan import Place
from launcher.runs.attempt import running_attempt
from launcher.runs.record import RunFolder
from launcher.ssh.many import ask_each
from launcher.ssh.node import Node
from launcher.supervisor.events import Frame, StackAnswer
from launcher.terminal.console import Console

PATIENCE = 10  # seconds for a supervisor to answer
ENDED, NO_ANSWER = 5, 4

# $1 the node's folder of attempts, $2 main or all, $3 a word of this question's own, $4 tenths of a
# second to wait. The journal's last record tells whether there is still a supervisor to ask.
ASK = r"""
cd "$1" 2>/dev/null || exit 3
cd "$(ls -d attempt-* | sort -t - -k 2n | tail -n 1)" || exit 3
ended() { tail -n 1 journal | grep -q '^[0-9.]*[[:space:]]![[:space:]]{.*"kind": "end"}$'; }
ended && exit 5
: > "ask-$2-$3" || exit 3
n=0
while [ ! -e "stacks-$3.json" ]; do
  sleep 0.1
  n=$((n + 1))
  [ "$n" -lt "$4" ] || { rm -f "ask-$2-$3"; exit 4; }
  if ended; then rm -f "ask-$2-$3"; exit 5; fi
done
cat "stacks-$3.json"
rm -f "stacks-$3.json"
"""


@dataclass(frozen=True)
class Answer:
    """One node: its ranks, or that its part of the run has ended."""

    host: str
    node_rank: int
    attempt: int
    state: str  # running, starting: no rank of it yet, ended
    ranks: tuple[RankStack, ...] = ()


def stacks(folder: RunFolder, console: Console, *, all_threads: bool, as_json: bool) -> int:
    """0, or 4 when a host was not seen: then what the others have is shown all the same."""
    with running_attempt(folder, folder.load()) as party, console.step("asking every node"):
        answers, failures = ask(party, "all" if all_threads else "main")
    newest = max((answer.attempt for answer in answers), default=0)
    answers = [answer for answer in answers if answer.attempt in (0, newest)]
    groups = grouped(rank for answer in answers for rank in answer.ranks)
    for error in failures.values():
        console.error(f"cannot see {error}")
    if as_json:
        console.json(document(folder.run_id, answers, groups, failures))
    else:
        show(folder.run_id, answers, groups, console, seen=not failures)
    return 4 if failures else 0


def ask(party: RunningAttempt, kind: str) -> tuple[list[Answer], dict[str, DdpctlError]]:
    """Every node's answer, and the hosts that gave none."""
    places = dict(zip(party.nodes, party.places, strict=True))
    found, failures = ask_each(party.nodes, lambda node: _ask(node, places[node], kind))
    return list(found.values()), failures


def _ask(node: Node, place: Place, kind: str) -> Answer:
    attempts = place.control_dir.rpartition("/")[0]
    token = secrets.token_hex(8)
    done = node.script(ASK, attempts, kind, token, str(10 * PATIENCE), timeout=3.0 * PATIENCE)
    if done.code == ENDED:
        return Answer(node.name, place.node_rank, 0, "ended")
    if done.code == NO_ANSWER:
        raise CommandTimeout(
            f"{node.name}: no answer from the run's supervisor within {PATIENCE} s: its container is "
            "gone or paused, see `ddpctl ps`"
        )
    if done.code != 0:
        raise CommandFailed(
            f"{node.name}: {attempts} cannot be used: "
            f"{done.stderr.decode(errors='replace').strip() or 'it is gone'}; see `ddpctl ps`"
        )
    try:
        answer = parsed(StackAnswer, json.loads(done.stdout))
    except (ValueError, RecursionError):
        raise CommandFailed(f"{node.name}: cannot read its supervisor's answer") from None
    ranks = tuple(located(stack, node.name, place.node_rank) for stack in answer.ranks)
    state = "running" if ranks or answer.phase != "running" else "starting"
    return Answer(node.name, place.node_rank, answer.attempt, state, ranks)


# --- what is shown -------------------------------------------------------------------------------


def show(
    run_id: str,
    answers: Sequence[Answer],
    groups: Sequence[StackGroup],
    console: Console,
    *,
    seen: bool,
) -> None:
    """The groups as `clush -b` has them, the largest first; the last lines name the stragglers."""
    for group in groups:
        console.print("\n".join(block(group)))
    for answer in answers:
        if answer.state == "starting":
            console.print(
                f"{answer.host} (node {answer.node_rank}): no rank there yet: "
                "torchrun is starting, or waits for another node"
            )
    for line in verdict(groups):
        console.print(line)
    over = [answer for answer in answers if answer.state == "ended"]
    if seen and len(over) == len(answers):
        console.say(
            f"run {run_id} has ended, so no rank stands anywhere: see `ddpctl logs {run_id}`"
        )
        return
    for answer in over:
        console.print(f"{answer.host} (node {answer.node_rank}): its part of the run has ended")


def block(group: StackGroup) -> list[str]:
    rule = "-" * 15
    count = f" ({len(group.members)})" if len(group.members) > 1 else ""
    lines = [rule, f"{ranges(group.ranks)}{count}  {' '.join(group.hosts)}", rule]
    first = group.first
    if not first.frames:
        return [*lines, f"  {first.describe()}"]
    own = first.own_frames
    lines += [_line(frame, frame in own) for frame in first.frames]
    for member in group.members:
        for thread in member.threads:
            lines.append(f"  thread {thread.thread} of rank {member.rank}:")
            lines += [_line(frame, False) for frame in thread.frames]
    return lines


def _line(frame: Frame, own: bool) -> str:
    """Frames that are not the user's are indented further."""
    return f"  {label(frame)}" if own else f"    {label(frame)}"


def document(
    run_id: str,
    answers: Sequence[Answer],
    groups: Sequence[StackGroup],
    failures: Mapping[str, DdpctlError],
) -> dict[str, Any]:
    """stacks --json, version 1."""
    return {
        "version": 1,
        "run_id": run_id,
        "attempt": max((answer.attempt for answer in answers), default=0) or None,
        "verdict": verdict(groups),
        "elsewhere": sorted(rank for group in stragglers(groups) for rank in group.ranks),
        "groups": [
            {"ranks": group.ranks, "hosts": group.hosts, "place": group.first.describe()}
            for group in groups
        ],
        "nodes": [
            {
                "host": answer.host,
                "node_rank": answer.node_rank,
                "state": answer.state,
                "ranks": [_rank(rank) for rank in answer.ranks],
            }
            for answer in answers
        ],
        "unseen": [{"host": host, "error": str(error)} for host, error in failures.items()],
    }


def _rank(rank: RankStack) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "pid": rank.pid,
        "state": rank.state,
        "note": rank.note,
        "frames": [vars(frame) for frame in rank.frames],
        "threads": [asdict(thread) for thread in rank.threads],
    }
