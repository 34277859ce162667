"""A finding: one problem on one host, with its remedy."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .. import errors
from ..errors import DdpctlError, HostUnreachable, PreflightError
from ..text import one_line

Severity = Literal["failure", "warning"]
LONGEST = 400  # characters; a longer clause is cut


@dataclass(frozen=True)
class Finding:
    """A problem. what, remedy: one clause each. A failure stops a launch; a warning does not.

    Checks create findings without `host` and `check`; `at` adds them.
    """

    severity: Severity
    host: str
    check: str
    what: str
    remedy: str

    def error(self) -> DdpctlError:
        kind = HostUnreachable if self.check == "ssh" else PreflightError
        return kind(f"{self.check}: {self.what}", self.remedy, host=self.host)

    def at(self, host: str, check: str) -> "Finding":
        what, remedy = (one_line(text, LONGEST) for text in (self.what, self.remedy))
        return Finding(self.severity, host, check, what, remedy)


failure = functools.partial(Finding, "failure", "", "")
warning = functools.partial(Finding, "warning", "", "")


def failure_of(error: DdpctlError) -> Finding:
    return failure(error.what, error.remedy or "log in to the host to find the cause")


def in_order(findings: Iterable[Finding], hosts: Sequence[str]) -> list[Finding]:
    """Return the findings without duplicates: failures first, then in the order of `hosts`."""
    return sorted(dict.fromkeys(findings), key=lambda f: (f.severity, hosts.index(f.host)))


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return one line per finding. Hosts with the same finding share a line: `gpu[1-47]: ...`."""
    by_severity: dict[Severity, list[DdpctlError]] = {}
    for finding in findings:
        by_severity.setdefault(finding.severity, []).append(finding.error())
    return [
        f"{severity}: {line}"
        for severity, group in by_severity.items()
        for line in errors.lines(group)
    ]
