"""The recorder: a process of the launching machine that keeps the logs of a run nobody watches.

    python -m launcher.recorder RUN_FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launcher.console import Console
from launcher.errors import DdpctlError
from launcher.record import RunFolder


def spawn(folder: RunFolder) -> None:
    """Starts it, outside this terminal's session; it ends with the run."""
    with (folder.path / "recorder.log").open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-m", "launcher.recorder", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
            start_new_session=True,
        )


def main() -> int:
    from launcher.attach import attach

    console = Console()
    console.stdout_closed = True  # it only records
    try:
        return attach(RunFolder(Path(sys.argv[1])), console)
    except DdpctlError as error:
        console.error(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
