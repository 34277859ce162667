"""Files that this machine makes once and reuses in later pushes: converted images and wheels."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..own_folders import locked, make_folder

KEPT = 3  # files or folders of one kind


def make_once(path: Path, make: Callable[[Path], None]) -> None:
    """Create a file or folder in the cache unless it exists.

    Then removes all but the KEPT most recently used files and folders in the same folder.
    make: called with the path to write to, which is in a temporary folder of its own.
    """
    make_folder(path.parent)
    with locked(path.parent / ".lock"):
        for left in path.parent.glob(".*/"):  # by a process that was killed
            # an unpacked image may have read-only folders, or its converter may still be running
            shutil.rmtree(left, ignore_errors=True)
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
