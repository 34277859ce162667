"""Every way a run can end other than success, each with its exit code.

    TrainerError              exit 1
    ├── PeerLost              exit 1   another rank is gone
    ├── OutOfMemory           exit 1   this rank's GPU is full
    ├── UsageError            exit 2   an impossible flag or combination of flags
    ├── DataError             exit 3   images are missing or incomplete, or do not fit the network
    ├── CheckpointError       exit 4   a checkpoint is missing, damaged, unsuitable or not writable
    ├── Diverged              exit 5   the loss is no longer a finite number
    └── ReplicaMismatch       exit 6   ranks that must hold equal weights do not

75 means stopped by a signal or --max-time with everything saved (0 under torchrun, which ends the
job on any other code); 143 means stopped by a second signal without saving. A message is one line,
`where: what; remedy`. One rank prints it; all ranks exit with the same code.
"""

from __future__ import annotations

import os
import sys

PREEMPTED = 75
KILLED = 143


class TrainerError(Exception):
    """Base of all errors that the user can fix. The user reads `str(error)`."""

    exit_code = 1
    state = "failed"  # as written to status.json
    located = False  # whether the message already names the rank, or applies to all ranks


class PeerLost(TrainerError):
    located = True


class OutOfMemory(TrainerError):
    located = True


class UsageError(TrainerError):
    exit_code = 2


class DataError(TrainerError):
    exit_code = 3


class CheckpointError(TrainerError):
    exit_code = 4


class Diverged(TrainerError):
    exit_code = 5
    state = "diverged"
    located = True


class ReplicaMismatch(TrainerError):
    exit_code = 6
    located = True


KINDS: dict[str, type[TrainerError]] = {"TrainerError": TrainerError}
KINDS |= {kind.__name__: kind for kind in TrainerError.__subclasses__()}


def print_error(error: Exception, every_rank: bool = False) -> None:
    """Print an error to stderr. Unless `every_rank`, only rank 0 prints, for all ranks."""
    if every_rank or os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
