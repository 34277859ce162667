"""Mistakes in a hosts file, and how to show them: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import HostsFileError, UsageError
from ..text import LONGEST_PATH, quoted

MOST = 1000  # mistakes that are shown


@dataclass(frozen=True)
class Mistake:
    """A mistake. line: 0 if there is none, as for a flag. near: what the user probably meant.

    allowed: all names that would be right, which are printed once per file. source: the file, if it
    is not the one that is read.
    """

    line: int
    key: str
    what: str
    remedy: str = ""
    near: str | None = None
    allowed: str = ""
    source: str = ""

    def within(self, key: str, remedy: str = "") -> Mistake:
        """Return the mistake with `key` before its own key. `remedy` counts only if it has none."""
        return replace(self, key=key + self.key, remedy=self.remedy or remedy)

    def error(self, source: str) -> UsageError:
        """Return the error for a mistake in the file `source`."""
        place = quoted(self.source or source, LONGEST_PATH) + (f":{self.line}" if self.line else "")
        near = f"did you mean '{self.near}'?" if self.near else ""
        allowed = f"allowed: {self.allowed}" if self.allowed else ""
        what = ": ".join(filter(None, [place, self.key, self.what]))
        return UsageError(what, "; ".join(filter(None, [self.remedy, near, allowed])))


class Wrong(Exception):
    """A value is wrong. The keys of its mistakes are relative to that value."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__()
        self.mistakes = mistakes


def raise_any(source: str, mistakes: Sequence[Mistake]) -> None:
    """Raise HostsFileError if there are mistakes. It has each once, in the order of the file."""
    errors, printed = list[UsageError](), set[str]()
    for mistake in sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.line)[:MOST]:
        if mistake.allowed in printed:
            mistake = replace(mistake, allowed="")
        printed.add(mistake.allowed)
        errors.append(mistake.error(source))
    if len(mistakes) > MOST:
        errors.append(Mistake(0, "", "found more mistakes", "correct these first").error(source))
    if errors:
        raise HostsFileError(errors)
