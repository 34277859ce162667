"""Every error that ddpctl reports to a user, and its exit code.

A message is one line: where, what, remedy. Only `launcher.cli` prints it.
"""

from collections.abc import Iterable, Mapping


class DdpctlError(Exception):
    """Base of all errors that a user can fix. `str(error)` is the message."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        """Replace control characters: parts of a message may come from a host."""
        super().__init__("".join(c if c.isprintable() or c == "\n" else "?" for c in message))


class UsageError(DdpctlError):
    exit_code = 2  # a wrong flag or argument


class HostsFileError(UsageError):
    """problems: every problem of the file, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PreflightError(DdpctlError):
    exit_code = 3  # `check` found a failure, or other runs are using the GPUs


class HostUnreachable(DdpctlError):
    exit_code = 4  # no SSH connection


class DockerUnavailable(DdpctlError):
    exit_code = 3  # SSH works, but the host's engine does not answer


class CommandTimeout(DdpctlError):
    exit_code = 4  # SSH works, but the host does not answer in time


class CommandFailed(DdpctlError):
    """A command on a host failed."""


class StateError(DdpctlError):
    """A file or folder on this machine cannot be written."""


class PushFailed(DdpctlError):
    exit_code = 5


class StopUnconfirmed(DdpctlError):
    exit_code = 6  # a host may still run something


class RunFailed(DdpctlError):
    """A call by `ddpctl.run` failed. `ddpctl.find_run(error.run_id)` has the logs and first failure."""

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(f"{run_id}: {message}")
        self.run_id = run_id


class RemoteError(RunFailed):
    """An exception of one rank. type: its class name. traceback: as printed on the rank."""

    def __init__(
        self, run_id: str, host: str, rank: int, type: str, message: str, traceback: str
    ) -> None:
        super().__init__(run_id, f"rank {rank} on {host}: {type}: {message}\n\n{traceback}".strip())
        self.host, self.rank = host, rank
        self.type, self.message, self.traceback = type, message, traceback


class RunKilled(DdpctlError):
    exit_code = 7  # `kill` ended a run that waited in line


class NodesFailed(DdpctlError):
    """Errors of several hosts. failures: by host name. lines: of the message."""

    def __init__(self, failures: Mapping[str, DdpctlError], lines: Iterable[str]) -> None:
        super().__init__("\n".join(lines))
        self.failures = dict(failures)
        # 4 (unreachable) wins, because the state of that host is unknown.
        codes = [error.exit_code for error in failures.values()]
        self.exit_code = 4 if 4 in codes else max(codes, default=1)
