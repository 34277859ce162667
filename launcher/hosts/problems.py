"""Problems of a hosts file, and how to show them: one line each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..errors import HostsFileError
from ..text import LONGEST_PATH, quoted


@dataclass(frozen=True)
class Problem:
    """A problem. line: 0 if there is none, as for a flag. near: what the user probably meant."""

    line: int
    key: str
    what: str
    remedy: str = ""
    allowed: str = ""
    near: str | None = None

    def within(self, key: str, allowed: str = "") -> Problem:
        """Return the problem with `key` prefixed to its own key. `allowed` counts only if it has none."""
        return replace(self, key=key + self.key, allowed=self.allowed or allowed)

    def text(self, source: str) -> str:
        place = quoted(source, LONGEST_PATH) + (f":{self.line}" if self.line else "")
        allowed = f"allowed: {self.allowed}" if self.allowed else ""
        near = f"did you mean '{self.near}'?" if self.near else ""
        text = "; ".join(filter(None, [self.what, allowed, self.remedy, near]))
        return ": ".join(filter(None, [place, self.key, text]))


class Wrong(Exception):
    """A value is invalid. The problems' keys are relative to that value."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__()
        self.problems = problems


def raise_any(source: str, problems: Sequence[Problem]) -> None:
    """Raise HostsFileError if there are problems. It has each once, in the order of the file."""
    if problems:
        lines = [problem.text(source) for problem in sorted(problems, key=lambda p: p.line)]
        raise HostsFileError(list(dict.fromkeys(lines)))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` is probably a typo of, or None."""
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), 1, 0.6)
    return matches[0] if matches else None
