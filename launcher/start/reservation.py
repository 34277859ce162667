"""Reserve an attempt on its hosts: only one of several commands starts it, and `kill` can cancel it."""

import secrets
from collections.abc import Sequence

from ..errors import CommandFailed, RunKilled, UsageError
from ..ssh.many import try_each
from ..ssh.node import Node
from ..ssh.script_files import load_script
from ..ssh.stream import Completed
from ..terminal.console import Console
from .request import Request

RESERVE = load_script(__file__, "reserve_attempt.sh")
CANCELLED = load_script(__file__, "reservation_cancelled.sh")
REFUSED = 17  # exit code of RESERVE if another command was first, and of CANCELLED after a kill


class Reservation:
    """One attempt that a command is about to start, or to wait for. It is kept for good."""

    def __init__(self, request: Request, hosts: Sequence[Node], console: Console) -> None:
        self._hosts, self._console = hosts, console
        self._run_id, self._attempt = request.run_id, str(request.attempt)
        self._taken = request.handed_over

    def take(self) -> None:
        """Reserve the attempt, unless this was done before. Raises UsageError if it is too late.

        The first host that answers decides: all commands for a run have its hosts in one order.
        """
        if self._taken:
            return
        token = secrets.token_hex(8)

        def reserve(node: Node) -> Completed:
            return node.script(RESERVE, self._run_id, self._attempt, token)

        with self._console.step("reserving the attempt"):
            answers, failures = try_each(self._hosts, reserve)
        if not answers:
            raise failures[self._hosts[-1]]
        node, done = next(iter(answers.items()))
        if done.code == REFUSED:
            raise UsageError(
                f"attempt {self._attempt} was already started, by another command or from another machine",
                "`ddpctl ps HOSTS` shows it",
                host=node.name,
            )
        if done.code != 0:
            what = f"could not create ~/.ddpctl/runs/{self._run_id}: {done.reason}"
            remedy = "look at `df -h` and the permissions of ~/.ddpctl there"
            raise CommandFailed(what, remedy, host=node.name)
        self._taken = True

    def confirm(self, nodes: Sequence[Node]) -> None:
        """Raise RunKilled if `kill` has cancelled the attempt on one of these hosts.

        Call this when the run has nodes or tickets there, and before it relies on them. `kill` marks the
        reservation first and then looks for nodes and tickets. So either it sees them, or this call
        sees the mark.
        """

        def is_cancelled(node: Node) -> bool:
            return node.script(CANCELLED, self._run_id, self._attempt).code == REFUSED

        answers, _ = try_each(nodes, is_cancelled)
        if any(answers.values()):
            raise RunKilled(f"run {self._run_id} was killed before it started")
