"""What the command line asks of a launch beyond the hosts file, as one value.

A new flag of `launch` is a field here, its option in launcher/commands/launch.py and the code that
acts on it: the plan carries these options whole, `--dry-run` prints them and run.json keeps them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

OUR_TRAINER = ("-m", "trainer")
TRAINER_HANG_TIMEOUT = 1800.0  # seconds; our trainer logs every minute, except while it evaluates


@dataclass(frozen=True)
class LaunchOptions:
    """How to launch one attempt. All values are plain JSON."""

    name: str = ""
    detach: bool = False
    push: bool = True
    check: bool = True
    hang_timeout: float | None = None  # seconds without progress; 0: never; None: by command
    on_exit: str | None = None  # for `sh -c` once the run has ended
    network_only: bool = False  # nodes that share a machine use the network between them too
    by: Literal["launch", "resume", "restart"] = "launch"  # what starts this attempt

    def settled(self, command: Sequence[str]) -> LaunchOptions:
        """With the hang timeout that applies to `command`; other scripts may be silent for long."""
        if self.hang_timeout is not None:
            return self
        is_ours = tuple(command[:2]) == OUR_TRAINER
        return dataclasses.replace(self, hang_timeout=TRAINER_HANG_TIMEOUT if is_ours else 0.0)

    def for_restart(self) -> LaunchOptions:
        return dataclasses.replace(self, by="restart", detach=False)
