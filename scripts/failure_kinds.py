"""Write the tables of failure kinds and of error texts into docs/troubleshooting.md.

Run: python scripts/failure_kinds.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
sys.path.insert(0, str(ROOT))

from launcher.supervisor.failure_kinds import ERROR_TEXTS, KINDS  # noqa: E402

KIND_HEADER = "| kind | what happened | what to do | restart |\n|---|---|---|---|\n"
TEXT_HEADER = "| kind | error text | what to do |\n|---|---|---|\n"


def tables() -> dict[str, str]:
    """Return each table of the page, by its header."""
    kinds = [
        f"| `{kind.name}` | {kind.meaning} | {_sentence(kind.remedy)} | {kind.restart.value} |\n"
        for kind in KINDS.values()
    ]
    texts = [
        f"| `{text.kind}` | {', '.join(map(_code, text.phrases))} "
        f"| {_sentence(text.remedy or KINDS[text.kind].remedy)} |\n"
        for text in ERROR_TEXTS
    ]
    shown = {KIND_HEADER: kinds, TEXT_HEADER: texts}
    return {header: header + "".join(rows) for header, rows in shown.items()}


def _code(phrase: str) -> str:
    return f"`` {phrase} ``" if "`" in phrase else f"`{phrase}`"


def _sentence(remedy: str) -> str:
    remedy = remedy or "see the excerpt"
    return f"{remedy[0].upper()}{remedy[1:]}."


if __name__ == "__main__":
    page = PAGE.read_text()
    for header, table in tables().items():
        old = re.compile(re.escape(header) + r"(\|.*\n)*")
        page = old.sub(lambda _, table=table: table, page)
    PAGE.write_text(page)
