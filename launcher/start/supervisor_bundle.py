"""Pack the supervisor into the one file that goes to the hosts: a zip that any Python can run."""

from __future__ import annotations

import functools
import io
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "supervisor"
MAIN = "import sys\nfrom supervisor.main import main\nsys.exit(main())\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same sources give the same bytes


@functools.cache
def supervisor_file() -> bytes:
    """Return the zip file; run it with `python3 -I -S supervisor.pyz spec.json`."""
    files = {f"supervisor/{path.name}": path.read_bytes() for path in sorted(FOLDER.glob("*.py"))}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, content in {"__main__.py": MAIN.encode(), **files}.items():
            bundle.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
