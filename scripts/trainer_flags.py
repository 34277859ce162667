"""Write the table of the trainer's flags into docs/trainer.md, from the fields that define them.

Run: python scripts/trainer_flags.py
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trainer.md"
sys.path.insert(0, str(ROOT))

from trainer.config import GROUPS, Config  # noqa: E402


def table() -> str:
    lines = ["| flag | default | |", "|---|---|---|"]
    for field in dataclasses.fields(Config):
        if field.name in GROUPS:
            lines.append(f"| **{GROUPS[field.name]}** | | |")
        lines.append(row(field))
    return "\n".join(lines) + "\n"


def row(field: dataclasses.Field[object]) -> str:
    meta = field.metadata
    name = field.name.replace("_", "-")
    names = [f"--[no-]{name}" if meta["kind"] is bool else f"--{name}", *meta["aliases"]]
    default = shown(field.default)
    text = meta["help"]
    if meta["choices"]:
        text += ": " + ", ".join(f"`{choice}`" for choice in meta["choices"])
    return f"| {', '.join(f'`{n}`' for n in names)} | {default} | {text} |"


def shown(default: object) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default is None else str(default)


def with_table(page: str) -> str:
    start, end = "<!-- flags: python scripts/trainer_flags.py -->\n", "<!-- end of flags -->"
    inner = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    return inner.sub(lambda _: start + "\n" + table() + "\n" + end, page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
