"""Runs when Python starts in a rank: sets TORCHELASTIC_RESTART_COUNT, and prepares for `stacks`.

It installs a signal handler that writes the rank's stack. torchrun's own count is always 0, because
ddpctl starts torchrun again for each restart in place.

The supervisor copies this file to its own folder and puts that folder first on torchrun's
PYTHONPATH. This code must not break anything. So it ignores errors, removes the folder from
PYTHONPATH and sys.path again, so that the script and its children do not see it, and then runs the
user's own sitecustomize. It imports only modules that Python has loaded anyway or that load fast.
"""

from __future__ import annotations

import os
import sys

# Real-time signals: no program sends them by accident, and they are queued. faulthandler writes the
# stack inside the signal handler, so even a thread that waits in C for another rank responds.
MAIN_THREAD, ALL_THREADS = 58, 59
HIGH = 200  # the script may expect its descriptors to have the usual low numbers


def listen(folder: str) -> None:
    """Install the signal handlers. They write to a file named after this process's pid.

    The process may be a child of the rank.
    """
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
    """Remove the folder from sys.path and, in a rank, from PYTHONPATH: torchrun passes it on."""
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
            if "DDPCTL_RESTART_COUNT" in os.environ:
                os.environ["TORCHELASTIC_RESTART_COUNT"] = os.environ["DDPCTL_RESTART_COUNT"]
            listen(folder)
    except Exception:  # the run matters more than its stacks
        pass
    ours = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")  # the user's, or the image's
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if __name__ == "sitecustomize":  # the supervisor imports the signal numbers from here
    begin()
