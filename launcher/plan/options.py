"""Options of a launch beyond the hosts file, as one value.

To add a flag to `launch`, add a field here, its option in launcher/commands/launch.py, and the code
that acts on it. The plan contains all options, `--dry-run` prints them, run.json keeps RunOptions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import UsageError

OUR_TRAINER = ("-m", "trainer")
TRAINER_HANG_TIMEOUT = 1800.0  # seconds; our trainer logs every minute except during evaluation


@dataclass(frozen=True)
class RunOptions:
    """Options for every attempt of a run. All values are plain JSON."""

    name: str = ""
    hang_timeout: float | None = None  # seconds without progress; 0: never; None: default
    wait: int | None = None  # seconds in line for GPUs; 0: no limit; None: do not wait
    nodes: int | None = None  # use any N hosts of the file whose GPUs are free
    push: bool = True
    check: bool = True
    network_only: bool = False  # nodes on one machine communicate over the network too

    def __post_init__(self) -> None:
        timeout = self.hang_timeout
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            raise UsageError(f"--hang-timeout {timeout:g}: use seconds, or 0 for never")


@dataclass(frozen=True)
class LaunchOptions(RunOptions):
    detach: bool = False
    on_exit: str | None = None  # for `sh -c` once the run has ended; may contain a token
    on_event: str | None = None  # for `sh -c` on each event; may contain a token
    by: Literal["launch", "resume", "restart"] = "launch"  # what starts this attempt

    def settled(self, command: Sequence[str]) -> LaunchOptions:
        """Fill in the default hang timeout for `command`. Other scripts may be silent for long."""
        if self.hang_timeout is not None:
            return self
        is_ours = tuple(command[:2]) == OUR_TRAINER
        return dataclasses.replace(self, hang_timeout=TRAINER_HANG_TIMEOUT if is_ours else 0.0)

    def for_restart(self) -> LaunchOptions:
        return dataclasses.replace(self, by="restart", detach=False)

    def of_run(self) -> RunOptions:
        names = [field.name for field in dataclasses.fields(RunOptions)]
        return RunOptions(**{name: getattr(self, name) for name in names})
