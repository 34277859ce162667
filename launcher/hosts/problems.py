"""What is wrong with a hosts file: one line a problem, all of them at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from launcher.errors import HostsFileError

SHOWN = 60  # characters of a wrong value that a message repeats


@dataclass
class Problems:
    """Collects problems; the lines come out in the order of the file.

    source: the file as the user wrote it, or the flag that the text came from.
    """

    source: str
    _lines: list[tuple[int, str]] = field(default_factory=list)

    def add(
        self,
        line: int,
        key: str,
        found: str,
        *,
        allowed: str = "",
        remedy: str = "",
        near: str | None = None,
    ) -> None:
        """Line 0 stands for the whole source (a flag has no lines)."""
        place = f"{self.source}:{line}: " if line else f"{self.source}: "
        parts = [
            found,
            f"allowed: {allowed}" if allowed else "",
            remedy,
            f"did you mean '{near}'?" if near else "",
        ]
        text = place + (f"{key}: " if key else "") + "; ".join(part for part in parts if part)
        self._lines.append((line, text))

    def __bool__(self) -> bool:
        return bool(self._lines)

    def lines(self) -> list[str]:
        """Each problem once, by line."""
        return list(dict.fromkeys(text for _, text in sorted(self._lines, key=lambda p: p[0])))

    def raise_any(self) -> None:
        if self._lines:
            raise HostsFileError(self.lines())


def shown(text: str, most: int = SHOWN) -> str:
    """`text` on one line, safe to print on a terminal, and at most `most` characters of it."""
    short = text if len(text) <= most else text[:most] + "..."
    return short if short.isprintable() and short.strip() == short and short else repr(short)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` looks like a slip of, if any."""
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), 1, 0.6)
    return matches[0] if matches else None
