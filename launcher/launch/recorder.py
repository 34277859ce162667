"""The recorder: a process of the launching machine that looks after a run that nobody watches.

It keeps the logs and starts the attempts that job.max_restarts allows.

python -m launcher.launch.recorder RUN_FOLDER
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launcher.errors import DdpctlError
from launcher.launch import exit_hook
from launcher.runs.record import RunFolder
from launcher.terminal.console import Console


def spawn(folder: RunFolder) -> None:
    """Starts it, outside this terminal's session; it ends with the run."""
    exit_hook.hand_over(folder)
    with (folder.path / "recorder.log").open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-m", "launcher.launch.recorder", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
            start_new_session=True,
        )


def main() -> int:
    from launcher.hosts import load
    from launcher.launch.attach import attach
    from launcher.launch.launch import Wishes, with_restarts

    console = Console()
    console.stdout_closed = True  # it only records
    folder = RunFolder(Path(sys.argv[1]))
    try:
        with exit_hook.at_the_end(folder, console, exit_hook.HANDED_OVER) as ending:
            ending.code = attach(folder, console)
            cluster = load(folder.hosts_file, job_files=False)
            wishes = Wishes(hang_timeout=folder.load().hang_timeout)
            ending.code = with_restarts(cluster, wishes, console, folder.run_id, ending.code)
        return ending.code
    except DdpctlError as error:
        console.error(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
