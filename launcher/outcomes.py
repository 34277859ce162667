"""The states of runs and nodes, and the exit codes of commands."""

import enum
from collections.abc import Collection
from dataclasses import dataclass


class Exit(enum.IntEnum):
    """The exit code of a command."""

    DONE = 0  # for a run: every rank succeeded
    FAILED = 1  # the run failed
    USAGE = 2  # a wrong flag, argument or hosts file
    PREFLIGHT = 3  # the checks found a failure, or other runs are using the GPUs
    UNREACHABLE = 4  # a host did not answer
    PUSH = 5
    UNCONFIRMED = 6  # a host may still run something
    CANCELLED = 7  # `kill` or the time limit ended the run
    INTERNAL = 70  # a bug in ddpctl; EX_SOFTWARE in sysexits.h
    INTERRUPTED = 130


class RunState(enum.StrEnum):
    """The state of a run or of one attempt."""

    WAITING = "WAITING"  # in line for GPUs
    PENDING = "PENDING"  # being started
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # a host that may still be running it did not answer

    @property
    def is_starting(self) -> bool:
        return self in (RunState.WAITING, RunState.PENDING)

    @property
    def is_live(self) -> bool:
        return self.is_starting or self is RunState.RUNNING

    @property
    def is_final(self) -> bool:
        return self in EXIT_OF


class NodeState(enum.StrEnum):
    """The state of one node of an attempt."""

    WAITING = "WAITING"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"  # ended because another node had failed
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"  # ended without an exit code, or not seen

    @property
    def is_live(self) -> bool:
        return self in (NodeState.WAITING, NodeState.PENDING, NodeState.RUNNING)

    @property
    def is_final(self) -> bool:
        return not self.is_live and self is not NodeState.UNKNOWN


EXIT_OF = {
    RunState.SUCCEEDED: Exit.DONE,
    RunState.FAILED: Exit.FAILED,
    RunState.CANCELLED: Exit.CANCELLED,
}


def run_state(nodes: Collection[NodeState], nnodes: int) -> RunState:
    """Derive the state of an attempt from its nodes' known states. nnodes: how many nodes it has."""
    if NodeState.RUNNING in nodes:
        return RunState.RUNNING
    if NodeState.WAITING in nodes:
        return RunState.WAITING
    if {*nodes} == {NodeState.PENDING}:
        return RunState.PENDING
    if NodeState.CANCELLED in nodes:
        return RunState.CANCELLED
    if NodeState.FAILED in nodes:
        return RunState.FAILED
    all_succeeded = {*nodes} == {NodeState.SUCCEEDED} and len(nodes) == nnodes
    return RunState.SUCCEEDED if all_succeeded else RunState.UNKNOWN


@dataclass(frozen=True)
class Outcome:
    """The state in which a command leaves the run that it started or followed."""

    state: RunState  # if live, the run continues without this command
    interrupted: bool = False  # whether a signal other than Ctrl-\ ended the command

    @property
    def exit(self) -> Exit:
        if self.state is RunState.UNKNOWN:
            return Exit.UNCONFIRMED
        return Exit.INTERRUPTED if self.interrupted else EXIT_OF.get(self.state, Exit.DONE)
