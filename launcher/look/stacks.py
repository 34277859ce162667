"""Get the Python stack of every rank, from all hosts concurrently.

To request stacks, write a file into the control folder of a node. Its supervisor writes the answer
to another file there. The run itself is not affected.
"""

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..budget import parse_json
from ..diagnosis.stack_groups import (
    RankStack,
    StackGroup,
    grouped,
    label,
    located,
    stragglers,
    verdict,
    without_importlib,
)
from ..engines.node_handle import NodeHandle
from ..errors import CommandTimeout, UsageError
from ..logs.event_reader import parsed
from ..outcomes import Exit, RunState
from ..runs.newest_attempt import newest_attempt
from ..runs.run_folder import RunFolder
from ..ssh.many import ask_each
from ..ssh.script_files import load_script
from ..supervisor.events import Phase, StackAnswer
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..text import duration, names, ranges

TIMEOUT = 10  # seconds for a supervisor to answer
ASK = load_script(__file__, "ask_stacks.sh")
NO_ANSWER, ENDED = 4, 5  # exit codes of ASK
RULE = "-" * 15
SNAPSHOT = "this is a snapshot: suspect a hang only if a rank is at the same place in the next one"


@dataclass(frozen=True)
class Answer:
    """One node's answer to a request for stacks."""

    host: str
    node_rank: int
    state: str  # running, starting (no rank yet) or ended
    ranks: tuple[RankStack, ...] = ()


def stacks(folder: RunFolder, console: Console, *, all_threads: bool, as_json: bool) -> Exit:
    """Print the stacks of all ranks that answer. Return UNREACHABLE if a host did not answer.

    Raises UsageError if the run is waiting in line.
    """
    if (record := folder.load_if_readable(console)) and record.state is RunState.WAITING:
        what = f"{folder.run_id} is waiting in line and has nothing to show yet"
        raise UsageError(what, "run `ddpctl ps` to see what it is waiting for")
    with newest_attempt(folder, console) as attempt, console.step("asking every node"):
        kind = "all" if all_threads else "main"
        by_connection, failures = ask_each(
            attempt.connections, lambda each: _ask(attempt.by_connection[each], kind)
        )
    answers = [*by_connection.values()]
    is_live = any(answer.state != "ended" for answer in answers)
    groups = grouped(rank for answer in answers for rank in answer.ranks)
    report_errors(failures, console)
    if as_json:
        console.json(
            {
                "version": 1,
                "run_id": folder.run_id,
                "attempt": attempt.number if is_live else None,
                "verdict": verdict(groups),
                "elsewhere": sorted(rank for group in stragglers(groups) for rank in group.ranks),
                "groups": [
                    {"ranks": group.ranks, "hosts": group.hosts, "place": group.first.describe()}
                    for group in groups
                ],
                "nodes": [_document(answer) for answer in answers],
                "unseen": unseen(failures),
            }
        )
    elif failures or is_live:
        if shown := lines(answers, groups):
            console.print("\n".join(shown))
    else:
        console.say(f"run {folder.run_id} has ended; see `ddpctl logs {folder.run_id}`")
    return Exit.UNREACHABLE if failures else Exit.DONE


def _ask(member: NodeHandle, kind: str) -> Answer:
    connection, place = member.connection, member.place
    argv = [place.control_dir, kind, secrets.token_hex(8), str(10 * TIMEOUT)]
    done = connection.script(ASK, *argv, timeout=3.0 * TIMEOUT)
    if done.code == ENDED:
        return Answer(connection.name, place.node_rank, "ended")
    if done.code == NO_ANSWER:
        why = f"its {member.engine.traits.unit} may be gone or paused"
        what = f"the run's supervisor did not answer within {duration(TIMEOUT)}: {why}"
        raise CommandTimeout(what, "see `ddpctl ps`", host=connection.name)
    done.expect("cannot ask the run's supervisor for stacks", "see `ddpctl ps`", connection.name)
    answer = parsed(StackAnswer, parse_json(done.stdout))
    ranks = tuple(located(stack, connection.name, place.node_rank) for stack in answer.ranks)
    state = "running" if ranks or answer.phase is not Phase.RUNNING else "starting"
    return Answer(connection.name, place.node_rank, state, ranks)


def lines(answers: Sequence[Answer], groups: Sequence[StackGroup]) -> list[str]:
    """Format the groups as `clush -b` does, with the verdict and the nodes that have no ranks."""

    def nodes(state: str, text: str) -> list[str]:
        return [f"{a.host} (node {a.node_rank}): {text}" for a in answers if a.state == state]

    return [
        *(line for group in groups for line in block(group)),
        *nodes("starting", "no ranks yet; torchrun is starting or waiting for another node"),
        *verdict(groups),
        *([SNAPSHOT] if stragglers(groups) else []),
        *nodes("ended", "has ended"),
    ]


def block(group: StackGroup) -> list[str]:
    count = f" ({len(group.members)})" if len(group.members) > 1 else ""
    first = group.first
    shown = [RULE, f"{ranges(group.ranks)}{count}  {names(group.hosts)}", RULE]
    if not first.frames:
        return [*shown, f"  {first.describe()}"]
    own = first.own_frames  # indented less, so that they stand out
    frames = without_importlib(first.frames)
    shown += [f"  {label(f)}" if f in own else f"    {label(f)}" for f in frames]
    for member in group.members:
        for thread in member.threads:
            shown.append(f"  thread {thread.thread} of rank {member.rank}:")
            shown += [f"    {label(frame)}" for frame in without_importlib(thread.frames)]
    return shown


def _document(answer: Answer) -> dict[str, Any]:
    document = asdict(answer)
    for rank in document["ranks"]:
        del rank["host"], rank["node_rank"]
    return document
