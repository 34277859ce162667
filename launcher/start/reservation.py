"""Reserve an attempt on its hosts, so that only one of several commands starts it."""

from collections.abc import Sequence

from ..errors import CommandFailed, HostUnreachable, UsageError
from ..ssh.node import Node
from ..ssh.script_files import load_script
from ..terminal.console import Console
from .request import Request

RESERVE = load_script(__file__, "reserve_attempt.sh")
TAKEN = 17  # exit code of RESERVE if another command was first


class Reservation:
    """One attempt that a command is about to start, or to wait for. It is kept for good."""

    def __init__(self, request: Request, hosts: Sequence[Node], console: Console) -> None:
        self._request, self._hosts, self._console = request, hosts, console
        self._taken = request.handed_over

    def take(self) -> None:
        """Reserve the attempt, unless this was done before. Raises UsageError if it is too late.

        The first host that answers decides: all commands for a run have its hosts in one order.
        """
        if self._taken:
            return
        run_id, attempt = self._request.run_id, self._request.attempt
        for node in self._hosts:
            try:
                with self._console.step("reserving the attempt"):
                    done = node.script(RESERVE, run_id, str(attempt))
            except HostUnreachable:
                if node is self._hosts[-1]:
                    raise
                continue
            if done.code == TAKEN:
                raise UsageError(
                    f"attempt {attempt} was already started, by another command or from another machine",
                    "`ddpctl ps HOSTS` shows it",
                    host=node.name,
                )
            if done.code != 0:
                what = f"could not create ~/.ddpctl/runs/{run_id}: {done.reason}"
                remedy = "look at `df -h` and the permissions of ~/.ddpctl there"
                raise CommandFailed(what, remedy, host=node.name)
            self._taken = True
            return
