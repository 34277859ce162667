"""The console script `ddpctl`, and `python -m launcher`."""

import contextlib
import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it with exit code 130, even during the imports."""
    try:
        from .cli import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        print("ddpctl: error: interrupted", file=sys.stderr)
    except SystemExit as ending:
        if ending.code != 130:
            raise
    # Not sys.exit: if SIGINT interrupted an exec(), as in an import, Python would kill itself with SIGINT.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
