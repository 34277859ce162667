"""Update docs/hosts-file.md: its tables from hosts.schema.json and its example from hosts.example.yaml.

Run: python scripts/hosts_page.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from launcher.hosts.schema import HOST, JOB, Shape  # noqa: E402


def document(page: str, example: str) -> str:
    """Return the page with its two tables and its example updated."""
    tables = iter([_table(HOST), _table(JOB)])
    page = re.sub(r"(^\|.*\n)+", lambda _: next(tables), page, flags=re.MULTILINE)
    before, fence, _ = page.partition("```yaml\n")
    return f"{before}{fence}{example}```\n"


def _table(keys: Mapping[str, Shape]) -> str:
    rows = ["| key | meaning | value | default |", "|---|---|---|---|"]
    for name, key in keys.items():
        texts = (key[keyword] for keyword in ("description", "x-allowed", "x-default"))
        cells = [text.replace("|", "\\|") for text in texts]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    path = ROOT / "docs" / "hosts-file.md"
    path.write_text(document(path.read_text(), (ROOT / "hosts.example.yaml").read_text()))
