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

from launcher.supervisor.error_texts import ERROR_TEXTS  # noqa: E402
from launcher.supervisor.failure_kinds import FailureKind  # noqa: E402

KINDS = "| kind | what happened | what to do | restart |\n|---|---|---|---|\n"
TEXTS = "| kind | error text | what to do |\n|---|---|---|\n"


def tables() -> dict[str, str]:
    """Return each table by its header."""
    kinds = [
        f"| `{kind.value}` | {kind.meaning} | {_sentence(kind.remedy)} | {kind.restart.value} |\n"
        for kind in FailureKind
    ]
    texts = [
        f"| `{text.kind.value}` | {', '.join(f'`{phrase}`' for phrase in text.phrases)} "
        f"| {_sentence(text.remedy or text.kind.remedy)} |\n"
        for text in ERROR_TEXTS
    ]
    return {KINDS: KINDS + "".join(kinds), TEXTS: TEXTS + "".join(texts)}


def _sentence(remedy: str) -> str:
    remedy = remedy or "see the excerpt"
    return f"{remedy[0].upper()}{remedy[1:]}."


if __name__ == "__main__":
    page = PAGE.read_text()
    for header, table in tables().items():
        old = re.compile(re.escape(header) + r"(\|.*\n)*")
        page = old.sub(lambda _, table=table: table, page)
    PAGE.write_text(page)
