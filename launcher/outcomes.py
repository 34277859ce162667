"""How runs, nodes and commands end: one word and one exit code for each."""

import enum


class Exit(enum.IntEnum):
    """The exit codes of every command."""

    DONE = 0  # for a run: every rank succeeded
    FAILED = 1  # the run failed
    USAGE = 2  # a wrong flag, argument or hosts file
    PREFLIGHT = 3  # the checks found a failure, or other runs use the GPUs
    UNREACHABLE = 4  # a host did not answer
    PUSH = 5
    UNCONFIRMED = 6  # a host may still run something
    CANCELLED = 7  # `kill` or the time limit ended the run
    INTERNAL = 70  # a bug in ddpctl; EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130


class RunState(enum.StrEnum):
    """The state of a run and of each attempt."""

    WAITING = "WAITING"  # in line for GPUs
    PENDING = "PENDING"  # being started
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # a host that may still run it did not answer

    @property
    def is_live(self) -> bool:
        return self in (RunState.WAITING, RunState.PENDING, RunState.RUNNING)

    @property
    def is_final(self) -> bool:
        return self in EXIT_OF

    @property
    def words(self) -> str:
        """The state in a sentence: `run X succeeded`."""
        return self.lower()


EXIT_OF = {
    RunState.SUCCEEDED: Exit.DONE,
    RunState.FAILED: Exit.FAILED,
    RunState.CANCELLED: Exit.CANCELLED,
}
