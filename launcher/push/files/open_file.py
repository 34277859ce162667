"""Open a file in a folder that another process may be changing."""

import errno
import os
import stat
from io import FileIO


def open_file(path: bytes) -> FileIO:
    """Open a regular file for reading. Raises OSError if it is no longer a regular file.

    Never blocks, even if the path is now a pipe without a writer.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | safe))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no longer a file")
    return file
