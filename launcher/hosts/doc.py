"""Regenerate docs/hosts-file.md, with tables from hosts.schema.json and hosts.example.yaml.

python -m launcher.hosts.doc
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .schema import HOST, JOB, Key


def document(page: str, example: str) -> str:
    """Return the page with its two tables and its example up to date."""
    tables = iter([_table(HOST), _table(JOB)])
    page = re.sub(r"(^\|.*\n)+", lambda _: next(tables), page, flags=re.MULTILINE)
    before, fence, _ = page.partition("```yaml\n")
    return f"{before}{fence}{example}```\n"


def _table(keys: Mapping[str, Key]) -> str:
    rows = ["| key | meaning | value | default |", "|---|---|---|---|"]
    for name, key in keys.items():
        cells = [text.replace("|", "\\|") for text in (key.meaning, key.allowed, key.default)]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    root = Path(__file__).parents[2]
    path = root / "docs" / "hosts-file.md"
    path.write_text(document(path.read_text(), (root / "hosts.example.yaml").read_text()))
