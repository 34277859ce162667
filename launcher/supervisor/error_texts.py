"""The error texts that ddpctl recognizes, and which kind of failure each one means. Pure.

They are in error_texts.txt, the only table of them, for the launcher and the supervisors.
docs/troubleshooting.md lists it; scripts/failure_kinds.py writes it there.

The first entry that occurs in a text wins, so specific phrases come before general ones. A phrase that
may have several causes does not belong there: no name is better than a wrong name.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from .classify import KindTable
from .failure_kinds import FailureKind
from .text_table import table_entries


@dataclass(frozen=True)
class ErrorText:
    """kind: what the phrases mean. remedy: "" if the kind's own fits.

    phrases: any of them, as whole words, in upper or lower case; `...` stands for anything on the
    same line, `$` for the end of a line.
    """

    kind: FailureKind
    phrases: tuple[str, ...]
    remedy: str

    @property
    def pattern(self) -> str:
        return "|".join(map(_pattern, self.phrases))


def parse_error_texts(text: str) -> tuple[ErrorText, ...]:
    """Parse entries: a kind, then indented phrases separated by ` | `, then perhaps `= remedy`."""
    return tuple(
        ErrorText(FailureKind(kind), tuple(phrases.split(" | ")), remedy)
        for kind, phrases, remedy in table_entries(text)
    )


def _pattern(phrase: str) -> str:
    start = r"(?<![A-Za-z0-9])" if phrase[0].isalnum() else ""
    end = r"(?![A-Za-z0-9])" if phrase[-1].isalnum() else ""
    words = ".*".join(map(re.escape, phrase.removesuffix("$").split("...")))
    return start + words + ("$" if phrase.endswith("$") else end)


ERROR_TEXTS = parse_error_texts(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))
RESTART_RULES = {kind.value: kind.restart.value for kind in FailureKind}
ROWS = [(text.kind.value, text.pattern, text.remedy or text.kind.remedy) for text in ERROR_TEXTS]
FAILURE_TABLE = {"restart_rules": RESTART_RULES, "error_texts": ROWS}  # for spec.json
TABLE = KindTable(RESTART_RULES, ROWS)
