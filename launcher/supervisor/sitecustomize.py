"""Runs in every rank as Python starts: from then on a signal makes it tell where it stands.

The supervisor puts this file into a folder of its own and that folder at the head of torchrun's
PYTHONPATH. It must break nothing: what fails, fails silently; the folder leaves PYTHONPATH and sys.path
again, so that neither the script nor its children see it; a sitecustomize of the user's own runs after
it. Nothing is imported that Python does not import anyway, or that takes time.
"""

from __future__ import annotations

import os
import sys

# Real-time signals: no one sends them unasked, and they queue. faulthandler writes the stack from
# within the signal's handler, so that a thread which waits in C for another rank tells as well.
MAIN_THREAD, ALL_THREADS = 58, 59
HIGH = 200  # descriptors below it keep the numbers that the script is used to


def listen(folder: str) -> None:
    """Registers the signals; the file is named by the process, as a launcher script may come before."""
    import faulthandler
    import fcntl

    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
    low = os.open(os.path.join(folder, str(os.getpid())), flags, 0o600)
    try:
        out = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
    finally:
        os.close(low)
    faulthandler.register(MAIN_THREAD, file=out, all_threads=False, chain=False)
    faulthandler.register(ALL_THREADS, file=out, all_threads=True, chain=False)


def leave(folder: str, is_rank: bool) -> None:
    """Takes the folder out again; torchrun itself hands it on to its ranks."""
    sys.path[:] = [path for path in sys.path if path != folder]
    if not is_rank:
        return
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    if own:
        os.environ["PYTHONPATH"] = os.pathsep.join(own)
    else:
        os.environ.pop("PYTHONPATH", None)


def begin() -> None:
    folder = os.path.dirname(__file__)
    is_rank = "RANK" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ
    try:
        leave(folder, is_rank)
        if is_rank:
            listen(folder)
    except Exception:  # the run is more than what can be seen of it
        pass
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")  # the user's, or the image's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":  # and not in the supervisor, which reads the numbers
    begin()
