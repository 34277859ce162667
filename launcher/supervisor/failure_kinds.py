"""The kinds of failure, and the error texts that mean them, for the launcher and the supervisors. Pure.

Each is one table: failure_kinds.txt and error_texts.txt. In run.json, `first_failure.kind` is the name of
a kind. docs/troubleshooting.md shows both tables; scripts/failure_kinds.py writes them there.

The first error text that occurs wins, so specific phrases come before general ones. A phrase that may have
several causes does not belong there: no name is better than a wrong name.
"""

from __future__ import annotations

import enum
import pkgutil
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import Iterator, Pattern, Sequence


class Restart(enum.Enum):
    """Whether a restart can help after a failure of some kind."""

    NEVER = "no"
    ONCE = "once"
    ALWAYS = "yes"
    ELSEWHERE = "on another host"


@dataclass(frozen=True)
class FailureKind:
    name: str
    restart: Restart
    meaning: str
    remedy: str


@dataclass(frozen=True)
class ErrorText:
    """kind: what the phrases mean. remedy: "" if the kind's own fits.

    phrases: any of them, as whole words, in upper or lower case; ` | ` separates them in the table,
    `...` stands for anything on the same line, `$` for the end of a line.
    """

    kind: str
    phrases: tuple[str, ...]
    remedy: str

    @cached_property
    def pattern(self) -> Pattern[str]:
        text = "|".join(map(_pattern, self.phrases))
        return re.compile(text, re.IGNORECASE | re.MULTILINE)


def meaning_of(texts: Sequence[str]) -> tuple[str, str, str]:
    """Return the first of `texts` that means a kind, as (kind, remedy, text), or three "".

    remedy: "" for the kind's own.
    """
    for text in texts:
        for entry in ERROR_TEXTS:
            if entry.pattern.search(text):
                return entry.kind, entry.remedy, text.strip()
    return "", "", ""


def _pattern(phrase: str) -> str:
    start = r"(?<![A-Za-z0-9])" if phrase[0].isalnum() else ""
    end = r"(?![A-Za-z0-9])" if phrase[-1].isalnum() else ""
    words = ".*".join(map(re.escape, phrase.rstrip("$").split("...")))
    return start + words + ("$" if phrase.endswith("$") else end)


def _kind(head: str, meaning: str, remedy: str) -> FailureKind:
    """head: `KIND (RESTART)`, or `KIND` if a restart cannot help."""
    name, _, restart = head.rstrip(")").partition(" (")
    return FailureKind(name, Restart(restart or "no"), meaning, remedy)


def _entries(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield the head, the body and the remedy ("" without one) of each entry of a table.

    Entries are separated by blank lines. The body is indented, the remedy begins with `  = `.
    """
    text = (pkgutil.get_data(__package__, table) or b"").decode()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    for entry in re.split(r"\n\n+", text.strip()):
        head, _, rest = entry.partition("\n")
        body, _, remedy = rest.partition("\n  = ")
        yield head, " ".join(body.split()), " ".join(remedy.split())


KINDS = {kind.name: kind for kind in starmap(_kind, _entries("failure_kinds.txt"))}
ERROR_TEXTS = [
    ErrorText(kind, tuple(phrases.split(" | ")), remedy)
    for kind, phrases, remedy in _entries("error_texts.txt")
]
