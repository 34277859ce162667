"""The supervisor as the one file that goes to the hosts: a zip that any Python runs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

FOLDER = Path(__file__).with_name("supervisor")
NAME = "supervisor.pyz"
MAIN = "import sys\nfrom supervisor.story import main\nsys.exit(main())\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def supervisor_file() -> bytes:
    """`python3 supervisor.pyz spec.json` runs it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(zipfile.ZipInfo("__main__.py", EPOCH), MAIN)
        for path in sorted(FOLDER.glob("*.py")):
            bundle.writestr(zipfile.ZipInfo(f"supervisor/{path.name}", EPOCH), path.read_bytes())
    return buffer.getvalue()
