"""Starting the recorder, which looks after a run that no command is following."""

from __future__ import annotations

import subprocess
import sys

from launcher.launch import exit_hook
from launcher.runs.record import RunFolder


def start_recorder(folder: RunFolder) -> None:
    """Starts it outside this terminal's session; it ends with the run."""
    exit_hook.hand_over(folder)
    with (folder.path / "recorder.log").open("ab") as out:
        subprocess.Popen(
            [sys.executable, "-m", "launcher.launch.recorder", str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=out,
            start_new_session=True,
        )
