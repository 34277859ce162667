"""Open a file of a folder that somebody else may be changing."""

import errno
import os
import stat
from io import FileIO


def open_file(path: bytes) -> FileIO:
    """Open a regular file for reading. Raises OSError if the path has become something else.

    Opening a pipe would wait for its writer.
    """
    safe = os.O_NOFOLLOW | os.O_NONBLOCK
    file = FileIO(path, opener=lambda name, flags: os.open(name, flags | safe))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no longer a file")
    return file
