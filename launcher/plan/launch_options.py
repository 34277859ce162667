"""The options of a launch, and the defaults that depend on its command."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UsageError

OUR_TRAINER = ("-m", "trainer")
TRAINER_HANG_TIMEOUT = 1800.0  # seconds; our trainer logs every minute except during evaluation


@dataclass(frozen=True)
class RunOptions:
    """Launch options that apply to every attempt of a run. Their values are plain JSON.

    To add a flag to `launch`, add a field here or in LaunchOptions, its option in
    launcher/commands/launch.py, and the code that acts on it. `--dry-run` prints all options.
    """

    name: str = ""
    hang_timeout: float | None = None  # seconds without progress; 0: no limit; None: the default
    wait: int | None = None  # seconds to wait in line for GPUs; 0: no limit; None: do not wait
    nodes: int | None = None  # how many hosts with free GPUs to use; None: all hosts
    push: bool = True
    check: bool = True
    network_only: bool = False  # nodes on one machine communicate over the network too

    def __post_init__(self) -> None:
        timeout = self.hang_timeout
        if timeout is not None and not (math.isfinite(timeout) and timeout >= 0):
            what = f"hang_timeout {timeout:g}: not a duration"
            raise UsageError(what, "pass a number of seconds, or 0 for no limit")


@dataclass(frozen=True)
class LaunchOptions(RunOptions):
    detach: bool = False
    on_exit: str | None = None  # command for `sh -c` once the run has ended; may contain a secret
    on_event: str | None = None  # command for `sh -c` on each event; may contain a secret

    def settled(self, command: Sequence[str]) -> LaunchOptions:
        """Return the options with the default hang timeout filled in. Only our trainer has a default."""
        if self.hang_timeout is not None:
            return self
        is_ours = tuple(command[:2]) == OUR_TRAINER
        return dataclasses.replace(self, hang_timeout=TRAINER_HANG_TIMEOUT if is_ours else 0.0)

    def of_run(self) -> RunOptions:
        names = [each.name for each in dataclasses.fields(RunOptions)]
        return RunOptions(**{name: getattr(self, name) for name in names})
