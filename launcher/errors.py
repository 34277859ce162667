"""Every error that a user can meet.

    DdpctlError                 exit 1
    ├── UsageError              exit 2   a flag or an argument that cannot be
    │   └── HostsFileError      exit 2   all problems of a hosts file at once
    ├── PreflightError          exit 3   check found a failure
    ├── HostUnreachable         exit 4   SSH did not get there
    ├── DockerUnavailable       exit 3   the host is there, its Docker Engine is not
    ├── CommandTimeout          exit 4   the host is there but does not answer in time
    ├── CommandFailed           exit 1   a remote command said no
    ├── PushFailed              exit 5
    ├── StopUnconfirmed         exit 6   a host could not be seen to be clean
    └── NodesFailed             the worst exit code of the errors it carries, one a host

A message is one line: where, what, remedy. `launcher.cli` prints it; nobody else does.
"""

from __future__ import annotations

from collections.abc import Mapping


class DdpctlError(Exception):
    """Base of all errors that are the user's to mend. `str(error)` is what the user reads."""

    exit_code = 1


class UsageError(DdpctlError):
    exit_code = 2


class HostsFileError(UsageError):
    """A hosts file that cannot be used; `problems` has one line each, all of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class PreflightError(DdpctlError):
    exit_code = 3


class HostUnreachable(DdpctlError):
    exit_code = 4


class DockerUnavailable(DdpctlError):
    exit_code = 3


class CommandTimeout(DdpctlError):
    exit_code = 4


class CommandFailed(DdpctlError):
    exit_code = 1


class PushFailed(DdpctlError):
    exit_code = 5


class StopUnconfirmed(DdpctlError):
    exit_code = 6


class NodesFailed(DdpctlError):
    """Some hosts failed. failures: host name -> its error."""

    def __init__(self, failures: Mapping[str, DdpctlError]) -> None:
        super().__init__("\n".join(str(error) for error in failures.values()))
        self.failures = dict(failures)
        # Unreachable before anything else: the user must know that a host was not seen.
        codes = [error.exit_code for error in failures.values()]
        self.exit_code = 4 if 4 in codes else max(codes, default=1)
