"""The command line as a process of its own, forked from this one, in which the launcher is imported.

Imports are nearly all of the CPU time that a command takes:

    subprocess.run(line, env=env, preexec_fn=forked_ddpctl(line, env))
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import os
import pkgutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import launcher
from launcher.__main__ import main

NEEDS_TORCH = "launcher.sanity.collectives"


def forked_ddpctl(line: Sequence[str], env: Mapping[str, str]) -> Callable[[], None]:
    """Return what Popen calls in the child. It does what the program would. line: PYTHON -m launcher ..."""
    import_launcher()
    return functools.partial(become_ddpctl, line, env)


@functools.cache
def import_launcher() -> None:
    """Import all that a command imports once it needs it."""
    for module in pkgutil.walk_packages(launcher.__path__, "launcher."):
        if module.name != NEEDS_TORCH:
            importlib.import_module(module.name)


def become_ddpctl(line: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the command line in this child, as in a new Python. Does not return."""
    code: Any = 1
    try:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # among others, what Popen waits for
        begin_anew()
        os.environ.clear()
        os.environ.update(env)
        sys.executable, sys.argv = line[0], [*line[2:]]
        try:
            main()
            code = 0
        except SystemExit as ending:
            code = ending.code or 0
        except BaseException:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
    finally:
        os._exit(code)


def begin_anew() -> None:
    """Leave behind what pytest and its plugins have set in this process."""
    gc.freeze()  # pytest's objects, which a collection would copy from page to page
    gc.enable()
    faulthandler.disable()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
