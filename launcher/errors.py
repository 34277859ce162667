"""The errors that ddpctl reports to users. Each has a place, a problem, a remedy and an exit code.

Only `launcher.cli` and `launcher.start.recorder` print an error that ends their process.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Self

from .outcomes import Exit
from .text import names, one_line


class DdpctlError(Exception):
    """Base class of all errors that a user can fix. `str(error)` is one line: `HOST: WHAT; REMEDY`.

    `what` and `remedy` must not contain the host's name, because hosts with the same error share a line.
    """

    exit_code = Exit.FAILED

    def __init__(self, what: str, remedy: str = "", *, host: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy, self.host = map(one_line, (what, remedy, host))

    def __str__(self) -> str:
        return formatted(self.host, self.what, self.remedy)

    def on(self, host: str) -> Self:
        """Return a copy of this error that names `host`."""
        error = copy.copy(self)
        error.host = host
        return error


class UsageError(DdpctlError):
    exit_code = Exit.USAGE


class PreflightError(DdpctlError):
    exit_code = Exit.PREFLIGHT


class HostUnreachable(DdpctlError):
    exit_code = Exit.UNREACHABLE  # no SSH connection


class UnknownHostKey(HostUnreachable):
    """Raised when known_hosts has no key for the host."""


class DockerUnavailable(DdpctlError):
    exit_code = Exit.PREFLIGHT  # SSH works, but the host's engine does not answer


class CommandTimeout(DdpctlError):
    exit_code = Exit.UNREACHABLE  # SSH works, but the host does not answer in time


class UnusableAnswer(DdpctlError):
    exit_code = Exit.UNREACHABLE  # the host answers, but ddpctl cannot use the answer


class CommandFailed(DdpctlError):
    """Raised when a command on a host fails."""


class StateError(DdpctlError):
    """Raised when a file or folder on this machine cannot be written."""


class PushFailed(DdpctlError):
    exit_code = Exit.PUSH


class StopUnconfirmed(DdpctlError):
    exit_code = Exit.UNCONFIRMED  # a host may still run something


class RunKilled(DdpctlError):
    exit_code = Exit.CANCELLED  # `kill` ended a run that was being started


class RunFailed(DdpctlError):
    """Raised when a run that `ddpctl.run` started fails.

    `ddpctl.find_run(error.run_id)` has its logs and cause.
    """

    def __init__(self, run_id: str, what: str, remedy: str = "", *, host: str = "") -> None:
        super().__init__(f"{run_id}: {what}", remedy, host=host)
        self.run_id = run_id


class RemoteError(RunFailed):
    """An exception that a rank raised. type: its class name. traceback: without ddpctl's frames."""

    def __init__(
        self, run_id: str, host: str, rank: int, type: str, message: str, traceback: str
    ) -> None:
        super().__init__(run_id, f"rank {rank}: {type}: {message}", host=host)
        self.rank, self.type, self.message, self.traceback = rank, type, message, traceback

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.traceback}".rstrip()


class Several(DdpctlError):
    """Several errors that were found together. `str(error)` has one line per problem; see `lines`."""

    def __init__(self, errors: Iterable[DdpctlError]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors[0].what, self.errors[0].remedy)
        codes = [error.exit_code for error in self.errors]
        # this code wins, because nothing is known about a host that does not answer
        self.exit_code = Exit.UNREACHABLE if Exit.UNREACHABLE in codes else max(codes)

    def __str__(self) -> str:
        return "\n".join(lines(self.errors))


class NodesFailed(Several):
    """The errors of several hosts. failures: each host's error, by host name. more: other errors."""

    def __init__(self, failures: Mapping[str, DdpctlError], *more: DdpctlError) -> None:
        of_hosts = (each if each.host else each.on(host) for host, each in failures.items())
        super().__init__([*of_hosts, *more])
        self.failures = dict(failures)


class HostsFileError(Several, UsageError):
    """Raised with every mistake that was found in a hosts file."""


def exit_of(error: BaseException) -> Exit:
    """Return the exit code of a command that `error` ends."""
    if isinstance(error, DdpctlError):
        return error.exit_code
    return Exit.INTERRUPTED if isinstance(error, KeyboardInterrupt) else Exit.INTERNAL


def formatted(where: str, what: str, remedy: str) -> str:
    """Return `WHERE: WHAT; REMEDY`, leaving out empty parts."""
    return ": ".join(filter(None, [where, "; ".join(filter(None, [what, remedy]))]))


def lines(errors: Iterable[DdpctlError]) -> list[str]:
    """Return one line per problem. Hosts that have the same problem share it: `gpu[1-3]: ...`."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for error in errors:
        for each in error.errors if isinstance(error, Several) else [error]:
            hosts.setdefault((each.what, each.remedy), []).append(each.host)
    return [formatted(names(filter(None, group)), *key) for key, group in hosts.items()]
