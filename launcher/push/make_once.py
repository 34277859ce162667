"""What this machine makes for pushes only once: converted images and downloaded wheels."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..own_folders import locked, make_folder

KEPT = 3  # of one kind


def make_once(path: Path, make: Callable[[Path], None]) -> None:
    """Make a file or folder of the cache unless it is there, and remove the oldest beside it.

    make: is called with a path to write to. That path's folder is for this call alone.
    """
    make_folder(path.parent)
    with locked(path.parent / ".lock"):
        if not path.exists():
            with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as scratch:
                draft = Path(scratch, path.name)
                make(draft)
                draft.rename(path)
        os.utime(path)
        for old in sorted(path.parent.glob("[!.]*"), key=os.path.getmtime)[:-KEPT]:
            if old.is_dir():
                shutil.rmtree(old)
            else:
                old.unlink()
