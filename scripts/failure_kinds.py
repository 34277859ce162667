"""Write the table of failure kinds into docs/troubleshooting.md.

Run: python scripts/failure_kinds.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
sys.path.insert(0, str(ROOT))

from launcher.diagnosis.failure_kinds import FailureKind  # noqa: E402

HEADER = "| kind | what happened | what to do | restart |\n|---|---|---|---|\n"


def table() -> str:
    rows = []
    for kind in FailureKind:
        remedy = (kind.remedy or "see the excerpt") + "."
        remedy = f"{remedy[0].upper()}{remedy[1:]}"
        rows.append(f"| `{kind.value}` | {kind.meaning} | {remedy} | {kind.restart.value} |\n")
    return HEADER + "".join(rows)


if __name__ == "__main__":
    old = re.compile(re.escape(HEADER) + r"(\|.*\n)*")
    PAGE.write_text(old.sub(lambda _: table(), PAGE.read_text()))
