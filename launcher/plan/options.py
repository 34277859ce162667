"""What the command line asks of a launch beyond the hosts file, as one value.

To add a flag to `launch`: a field here, its option in launcher/commands/launch.py, and the code that
acts on it. The plan carries the options whole, `--dry-run` prints them, run.json keeps RunOptions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError

OUR_TRAINER = ("-m", "trainer")
TRAINER_HANG_TIMEOUT = 1800.0  # seconds; our trainer logs every minute, except while it evaluates


@dataclass(frozen=True)
class RunOptions:
    """Options that hold for every attempt of a run. All values are plain JSON."""

    name: str = ""
    hang_timeout: float | None = None  # seconds without progress; 0: never; None: by command
    wait: int | None = None  # seconds in line for GPUs; 0: as long as it takes; None: do not wait
    nodes: int | None = None  # run on so many hosts of the file, any whose GPUs are free
    push: bool = True
    check: bool = True
    network_only: bool = False  # nodes that share a machine use the network between them too

    def __post_init__(self) -> None:
        timeout = self.hang_timeout
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            raise UsageError(f"--hang-timeout {timeout:g}: use seconds, or 0 for never")


@dataclass(frozen=True)
class LaunchOptions(RunOptions):
    """All options of one attempt."""

    detach: bool = False
    on_exit: str | None = None  # for `sh -c` once the run has ended; may hold a token
    on_event: str | None = None  # the same, for each event
    by: Literal["launch", "resume", "restart"] = "launch"  # what starts this attempt

    def settled(self, command: Sequence[str]) -> LaunchOptions:
        """With the hang timeout that applies to `command`; other scripts may be silent for long."""
        if self.hang_timeout is not None:
            return self
        is_ours = tuple(command[:2]) == OUR_TRAINER
        return dataclasses.replace(self, hang_timeout=TRAINER_HANG_TIMEOUT if is_ours else 0.0)

    def for_restart(self) -> LaunchOptions:
        return dataclasses.replace(self, by="restart", detach=False)

    def of_run(self) -> RunOptions:
        names = [field.name for field in dataclasses.fields(RunOptions)]
        return RunOptions(**{name: getattr(self, name) for name in names})
