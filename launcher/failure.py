"""The first failure of an attempt, as run.json and messages show it. `diagnosis` determines it."""

from dataclasses import dataclass

from .supervisor.events import headline


@dataclass(frozen=True)
class FirstFailure:
    """The first failure. kind: see failure_kinds.txt. time: RFC 3339, by the launching machine's clock."""

    host: str
    node_rank: int
    rank: int | None
    local_rank: int | None
    exit_code: int | None
    signal: str | None
    kind: str
    time: str
    message: str
    excerpt: str
    remedy: str

    @property
    def headline(self) -> str:
        """A sentence that says which rank or node failed first, and how."""
        return headline(self.message, self.host, self.node_rank, self.rank, self.local_rank)
