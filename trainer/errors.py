"""Every way a run can end that is not success, each with its exit code.

    TrainerError              exit 1
    ├── PeerLost              exit 1   another rank is gone; every rank that notices says so
    ├── OutOfMemory           exit 1   the GPU of this rank is full
    ├── UsageError            exit 2   a flag or a combination of flags that cannot be
    ├── DataError             exit 3   the images are missing, incomplete or do not fit the network
    ├── CheckpointError       exit 4   a checkpoint cannot be written, or is not whole
    ├── Diverged              exit 5   the loss is not a number any more
    └── ReplicaMismatch       exit 6   ranks that must hold equal weights do not

75 means stopped by a signal with everything saved (0 under torchrun, which ends the job on any
other code), 143 stopped by a second signal with nothing saved. A message is one line: where, what,
remedy. One rank says it; all ranks exit with the same code.
"""

from __future__ import annotations

PREEMPTED = 75
KILLED = 143


class TrainerError(Exception):
    """Base of all errors that are the user's to mend. `str(error)` is what the user reads."""

    exit_code = 1
    state = "failed"  # what status.json says
    everyone = False  # does every rank print it, not only rank 0?


class PeerLost(TrainerError):
    everyone = True


class OutOfMemory(TrainerError):
    everyone = True


class UsageError(TrainerError):
    exit_code = 2


class DataError(TrainerError):
    exit_code = 3


class CheckpointError(TrainerError):
    exit_code = 4


class Diverged(TrainerError):
    exit_code = 5
    state = "diverged"


class ReplicaMismatch(TrainerError):
    exit_code = 6


KINDS: dict[str, type[TrainerError]] = {
    kind.__name__: kind
    for kind in (TrainerError, UsageError, DataError, CheckpointError, Diverged, ReplicaMismatch)
}
