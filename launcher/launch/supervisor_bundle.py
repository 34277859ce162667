"""The supervisor as the one file that goes to the hosts: a zip that any Python runs.

Bytecode goes along where an installer has left some: a Python of the same version starts sooner by it,
and any other reads the source.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "supervisor"
MAIN = "import sys\nfrom supervisor.main import main\nsys.exit(main())\n"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


def supervisor_file() -> bytes:
    """`python3 -I -S supervisor.pyz spec.json` runs it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(zipfile.ZipInfo("__main__.py", EPOCH), MAIN)
        for path in sorted(FOLDER.glob("*.py")):
            bundle.writestr(zipfile.ZipInfo(f"supervisor/{path.name}", EPOCH), path.read_bytes())
            if code := bytecode(path):
                bundle.writestr(zipfile.ZipInfo(f"supervisor/{path.stem}.pyc", EPOCH), code)
    return buffer.getvalue()


def bytecode(path: Path) -> bytes | None:
    """What Python has cached of a source, as bytecode that is not held against the source's time
    (PEP 552: magic number, flags, hash); None where it has nothing, or something of another state."""
    magic = importlib.util.MAGIC_NUMBER
    source = path.stat()
    changed = int(source.st_mtime).to_bytes(4, "little") + source.st_size.to_bytes(4, "little")
    try:
        cached = Path(importlib.util.cache_from_source(str(path))).read_bytes()
    except OSError:
        return None
    if cached[:16] != magic + bytes(4) + changed:
        return None
    return magic + b"\1\0\0\0" + importlib.util.source_hash(path.read_bytes()) + cached[16:]
