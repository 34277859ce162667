"""The kinds of failure and the error texts that reveal them, for launcher and supervisors. Pure.

They are in two tables: failure_kinds.txt and error_texts.txt. In run.json, `first_failure.kind` is
the name of a kind. scripts/failure_kinds.py copies both tables to docs/troubleshooting.md.

The first error text that matches wins, so specific phrases come before general ones. A phrase that
may have several causes does not belong in the table, because no kind at all is better than a wrong one.
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
    """Phrases that reveal a kind of failure. remedy: "" if the kind's own remedy applies.

    phrases: any of them matches, as whole words and in any case. In the table, ` | ` separates
    them, `...` stands for anything on the same line, and `$` for the end of a line.
    """

    kind: str
    phrases: tuple[str, ...]
    remedy: str

    @cached_property
    def pattern(self) -> Pattern[str]:
        text = "|".join(map(_pattern, self.phrases))
        return re.compile(text, re.IGNORECASE | re.MULTILINE)


def meaning_of(texts: Sequence[str]) -> tuple[str, str, str]:
    """Return (kind, remedy, text) for the first text that reveals a kind, or three empty strings.

    remedy: "" if the kind's own remedy applies.
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
    """Return a FailureKind. head: `KIND (RESTART)`, or `KIND` if a restart cannot help."""
    name, _, restart = head.rstrip(")").partition(" (")
    return FailureKind(name, Restart(restart or "no"), meaning, remedy)


def _entries(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield each entry of a table: its head, its body, and its remedy or "".

    Entries are separated by blank lines. The body is indented, and the remedy begins with `  = `.
    """
    package = __name__.rpartition(".")[0]  # Python 3.8 sets __package__ only after the import
    text = (pkgutil.get_data(package, table) or b"").decode()
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
