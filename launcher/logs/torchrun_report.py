"""Hide torchrun's own reports about failed ranks and stopped nodes. Pure.

They take up to 40 lines per node and repeat what ddpctl prints. A report is a traceback from torchrun
that ends with SignalException, or with ChildFailedError and a box below it. torchrun also prints one
line for each rank that it ends. The ranks' own lines show the cause and stay. The log file keeps every
line.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from .log_entry import OutputLines

MOST_LINES, LONGEST_LINE = 200, 4096  # the limits of one traceback; bound memory
START = b"Traceback (most recent call last):"
CHILD_FAILED = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
STOPPED = b"torch.distributed.elastic.multiprocessing.api.SignalException"
BORDER = b"====="  # the upper and lower edge of the box below ChildFailedError
NOTICE = re.compile(
    rb"[\]:] ?(?:Received \w+(?:\.\w+)? death signal, shutting down workers"
    rb"|Sending process \d+ closing signal \w+|Closing process \d+ via signal \w+"
    rb"|failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: \d+\) of binary: .*)\s*$"
)


@dataclass
class AgentOutput:
    """The state of parsing one node's output from torchrun."""

    newest: OutputLines
    held: list[bytes] = field(default_factory=list)  # an unfinished traceback
    borders: int = 0  # edges of the box that are still expected once a report has begun

    def may_hold(self, line: bytes) -> bool:
        return len(self.held) < MOST_LINES and len(line) <= LONGEST_LINE


class TorchrunReports:
    """Removes torchrun's reports from entries. hidden_on: the node ranks whose reports were hidden."""

    def __init__(self) -> None:
        self.hidden_on: set[int] = set()
        self._agents: dict[int, AgentOutput] = {}  # by node rank

    def feed(self, entries: Iterable[OutputLines]) -> list[OutputLines]:
        """Return the entries without torchrun's reports."""
        shown = []
        for entry in entries:
            if entry.rank is not None:
                shown.append(entry)
            elif lines := self._shown(entry):
                shown.append(entry._replace(lines=lines))
        return shown

    @property
    def held(self) -> list[OutputLines]:
        """The lines that are held back, because a traceback has not ended."""
        agents = [agent for agent in self._agents.values() if agent.held]
        return [agent.newest._replace(lines=agent.held) for agent in agents]

    def _shown(self, entry: OutputLines) -> list[bytes]:
        agent = self._agents.setdefault(entry.node_rank, AgentOutput(entry))
        agent.newest = entry
        shown: list[bytes] = []
        for line in entry.lines:
            if agent.borders:
                agent.borders -= line.startswith(BORDER)
            elif line.startswith((CHILD_FAILED, STOPPED)):
                agent.held.clear()
                agent.borders = 2 if line.startswith(CHILD_FAILED) else 0
                self.hidden_on.add(entry.node_rank)
            elif NOTICE.search(line):
                self.hidden_on.add(entry.node_rank)
            elif agent.held and line.startswith((b" ", b"\t")) and agent.may_hold(line):
                agent.held.append(line)
            else:
                shown += agent.held
                agent.held.clear()
                (agent.held if line.rstrip() == START else shown).append(line)
        return shown
