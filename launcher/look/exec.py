"""The `exec` command: run a command on one node of a run or on all of them."""

import codecs
import contextlib
import os
import re
import sys
import threading
from dataclasses import dataclass

from ..engines.node_handle import AttemptHandle, NodeHandle
from ..engines.status import ContainerState
from ..errors import CommandTimeout, DdpctlError, NodesFailed, UsageError
from ..logs.log_entry import OutputLines
from ..runs.newest_attempt import newest_attempt
from ..runs.run_folder import RunFolder
from ..ssh.host_connection import HostConnection
from ..ssh.many import by_name, each_node, try_each
from ..ssh.stream import CHUNK, Stream
from ..terminal.console import Console
from ..terminal.host_errors import report_errors
from ..terminal.raw import raw_terminal
from ..terminal.sanitize import colored, without_overwritten
from ..terminal.streams import abandon
from ..text import ESCAPE_BODY, duration

LONGEST_LINE = 1 << 20  # bytes; longer lines are printed in parts
LONGEST_ESCAPE = 4096  # maximum characters in an unfinished escape sequence
END_TIMEOUT = 60.0  # seconds for a command to end after its output has ended
UNFINISHED = re.compile(rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|{ESCAPE_BODY}\x1b?|\x1b[ -/]*|\r)\Z")
# two numbers in spec.json, as a pattern for both Python and grep -E
RANKS = r'"(first_rank|nproc_per_node)": ([0-9]{1,7})'


@dataclass(frozen=True)
class ExecOptions:
    """The command and where to run it: on one node (default: 0), a rank's node, or all nodes."""

    command: tuple[str, ...]
    node: int | None = None
    rank: int | None = None
    on_all: bool = False
    stdin: bool = False
    tty: bool = False


def exec_in_run(folder: RunFolder, wanted: ExecOptions, console: Console) -> int:
    """Run the command. Return its exit code; with `on_all`, the first non-zero one in node order."""
    with newest_attempt(folder, console) as attempt:
        if wanted.on_all:
            return _on_all(attempt, folder.run_id, wanted, console)
        with console.step(f"starting {wanted.command[0]} in the run"):
            member = _chosen(attempt, folder.run_id, wanted)
            asked = each_node([member.connection], lambda _: _start(member, folder.run_id, wanted))
        with asked[member.connection] as running:
            if wanted.stdin:
                threading.Thread(target=_forward_stdin, args=(running,), daemon=True).start()
            with raw_terminal(running.resize) if wanted.tty else contextlib.nullcontext():
                _print_output(running, console, unchanged=wanted.tty)
            return _exit_code(running, member.connection.name)


def _exit_code(running: Stream, host: str) -> int:
    try:
        return running.wait(END_TIMEOUT)
    except TimeoutError:
        raise CommandTimeout(
            f"the command was still running {duration(END_TIMEOUT)} after its output ended",
            "run `ps` inside the node to see whether it is still running",
            host=host,
        ) from None


def _print_output(running: Stream, console: Console, *, unchanged: bool) -> None:
    """Print the output. On a terminal, remove escape sequences except colors, unless `unchanged`."""
    sanitizers = {1: Sanitizer(), 2: Sanitizer()}
    for number, data in running.output():
        stream = sys.stdout if number == 1 else sys.stderr
        if stream.isatty() and not unchanged:
            data = sanitizers[number].feed(data)
        if number == 1 and not unchanged:
            console.write(data)
            console.flush()
        else:
            try:
                stream.buffer.write(data)
                stream.buffer.flush()
            except OSError:  # nobody reads it any more
                abandon(stream)


class Sanitizer:
    """Makes output safe for a terminal. It may arrive in pieces that split an escape sequence."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""  # an unfinished escape sequence

    def feed(self, data: bytes) -> bytes:
        text = self._rest + self._decode(data)
        cut = UNFINISHED.search(text)
        whole = text[: cut.start()] if cut and len(cut[0]) < LONGEST_ESCAPE else text
        self._rest = text[len(whole) :]
        return colored(without_overwritten(whole.encode()).decode()).encode()


def _chosen(attempt: AttemptHandle, run_id: str, wanted: ExecOptions) -> NodeHandle:
    """Return the selected node. Raises UsageError if the run has no such node or rank."""
    if wanted.rank is None:
        number, last = wanted.node or 0, len(attempt.connections) - 1
        if number > last:
            what = f"--node {number}: the last node of {run_id} is {last}"
            raise UsageError(what, "choose a node that exists")
        return attempt.members[number]

    def ranks_of(connection: HostConnection) -> range:
        control_dir = attempt.by_connection[connection].place.control_dir
        answer = connection.run(["grep", "-oE", RANKS, f"{control_dir}/spec.json"])
        if answer.code:
            what = "its node has no ranks: the run is waiting in line, or its files were removed"
            raise UsageError(what, "see `ddpctl ps`", host=connection.name)
        numbers = dict(re.findall(RANKS, answer.stdout.decode(errors="replace")))
        first = int(numbers["first_rank"])
        return range(first, first + int(numbers["nproc_per_node"]))

    all_ranks, failures = try_each(attempt.connections, ranks_of)
    for connection, ranks in all_ranks.items():
        if wanted.rank in ranks:
            return attempt.by_connection[connection]
    if failures:
        raise NodesFailed(by_name(attempt.connections, failures))
    last = max((ranks.stop for ranks in all_ranks.values()), default=0) - 1
    what = f"--rank {wanted.rank}: the last rank of {run_id} is {last}"
    raise UsageError(what, "choose a rank that exists")


def _start(member: NodeHandle, run_id: str, wanted: ExecOptions) -> Stream:
    """Start the command and return it. Raises UsageError if the node is not running."""
    rank, state = member.place.node_rank, "gone"
    for status in member.engine.nodes(run_id):
        if status.node_rank == rank:
            state = status.state
            if status.state is ContainerState.RUNNING:
                stdin, tty = wanted.stdin, wanted.tty
                return member.engine.exec(status, wanted.command, stdin=stdin, tty=tty)
    what = f"node {rank} of {run_id} is not running ({state})"
    raise UsageError(what, "see `ddpctl ps`", host=member.connection.name)


def _forward_stdin(running: Stream) -> None:
    """Send stdin to the command. Ignore errors, which its output or exit code will show."""
    with contextlib.suppress(OSError, DdpctlError):
        while data := os.read(sys.stdin.fileno(), CHUNK):
            running.write(data)
        running.close_stdin()


def _on_all(attempt: AttemptHandle, run_id: str, wanted: ExecOptions, console: Console) -> int:
    def run(connection: HostConnection) -> int:
        member = attempt.by_connection[connection]
        partial = {1: b"", 2: b""}

        def show(*lines: bytes) -> None:
            node_rank = member.place.node_rank
            console.show([OutputLines(connection.name, node_rank, 0.0, None, lines)])

        with _start(member, run_id, wanted) as running:
            for number, data in running.output():
                *lines, partial[number] = (partial[number] + data).split(b"\n")
                if lines:
                    show(*lines)
                    console.flush()
                if len(partial[number]) > LONGEST_LINE:  # shown in parts
                    show(partial[number])
                    partial[number] = b""
            for rest in filter(None, partial.values()):
                show(rest)
            return _exit_code(running, connection.name)

    codes, failures = try_each(attempt.connections, run)
    console.flush()
    report_errors(by_name(attempt.connections, failures), console)
    codes |= {connection: failure.exit_code for connection, failure in failures.items()}
    return next((codes[each] for each in attempt.connections if codes[each] != 0), 0)
