"""Mistakes in a hosts file, and the errors that report them, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import HostsFileError, UsageError
from ..text import LONGEST_PATH, quoted

MOST = 1000  # maximum number of mistakes shown


@dataclass(frozen=True)
class Mistake:
    """A mistake in a hosts file or a flag. line: 0 if there is none, as for a flag.

    allowed: all valid names, which are printed only once per file. source: the file with the
    mistake, if it is not the one being read.
    """

    line: int
    key: str
    what: str
    remedy: str = ""
    allowed: str = ""
    source: str = ""

    def error(self, source: str) -> UsageError:
        """Return the mistake as an error. source: the name of the file that is being read."""
        place = quoted(self.source or source, LONGEST_PATH) + (f":{self.line}" if self.line else "")
        allowed = f"allowed: {self.allowed}" if self.allowed else ""
        what = ": ".join(filter(None, [place, self.key, self.what]))
        return UsageError(what, "; ".join(filter(None, [self.remedy, allowed])))


class Wrong(Exception):
    """Raised when a value is wrong. The keys of its mistakes are relative to that value."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__()
        self.mistakes = mistakes

    def within(self, key: str, remedy: str = "") -> Wrong:
        """Return the error with `key` prefixed to each key. Mistakes without a remedy get `remedy`."""
        return Wrong(
            *(replace(m, key=key + m.key, remedy=m.remedy or remedy) for m in self.mistakes)
        )


def hosts_file_error(source: str, mistakes: Sequence[Mistake]) -> HostsFileError:
    """Return the error for a file with mistakes. It has each mistake once, in line order."""
    errors, printed = list[UsageError](), set[str]()
    for mistake in sorted(dict.fromkeys(mistakes), key=lambda mistake: mistake.line)[:MOST]:
        if mistake.allowed in printed:
            mistake = replace(mistake, allowed="")
        printed.add(mistake.allowed)
        errors.append(mistake.error(source))
    if len(mistakes) > MOST:
        errors.append(Mistake(0, "", "found more mistakes", "fix these first").error(source))
    return HostsFileError(errors)
