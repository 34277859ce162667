"""The entry point of `python -m trainer`."""

import atexit
import os
import sys
import traceback

from .cli import main

if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        code = 1
    try:
        sys.exit(code)  # trackers such as W&B take the exit code from this call
    finally:
        distributed = sys.modules.get(f"{__package__}.distributed")
        if distributed is not None and distributed.kept:
            atexit._run_exitfuncs()  # where trackers send what is left
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # a normal exit would destroy what `distributed.kept` keeps alive
