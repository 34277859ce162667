"""A finding: one problem on one host, with its remedy."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .. import errors
from ..errors import DdpctlError, HostUnreachable, PreflightError
from ..text import one_line

Severity = Literal["failure", "warning"]
LONGEST = 400  # maximum characters of a clause

# The columns of the table, in the order in which a launch depends on them.
CHECKS = ("ssh", "docker", "gpus", "image", "disk", "memory", "clock", "network", "ports", "runs")
BY_ENGINE = ("image", "runs")  # not checked where the engine does not answer


@dataclass(frozen=True)
class Finding:
    """A problem. what, remedy: one clause each. A failure stops a launch, a warning does not.

    A check makes it without `host` and `check`, which `at` adds.
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
    return failure(error.what, error.remedy or "log in to the host and look")


def in_order(findings: Iterable[Finding], hosts: Sequence[str]) -> list[Finding]:
    """Sort findings: failures first, then by host and check. Removes duplicates."""
    places = {host: i for i, host in enumerate(hosts)}
    return sorted(
        dict.fromkeys(findings),
        key=lambda f: (f.severity, places[f.host], CHECKS.index(f.check)),
    )


def lines(findings: Iterable[Finding]) -> list[str]:
    """Format one line per finding. Hosts with the same finding share a line: `gpu[1-47]`."""
    by_severity: dict[Severity, list[DdpctlError]] = {}
    for finding in findings:
        by_severity.setdefault(finding.severity, []).append(finding.error())
    return [
        f"{severity}: {line}"
        for severity, group in by_severity.items()
        for line in errors.lines(group)
    ]


def table(hosts: Sequence[str], findings: Sequence[Finding]) -> list[list[str]]:
    """Return a row per host and a cell per check: ok, warn, FAIL, or `-` if not checked."""
    failed = [f for f in findings if f.severity == "failure"]
    cells = {(f.host, check): "-" for f in findings if f.check == "ssh" for check in CHECKS}
    cells |= {(f.host, check): "-" for f in failed if f.check == "docker" for check in BY_ENGINE}
    cells |= {(f.host, f.check): "warn" for f in findings}
    cells |= {(f.host, f.check): "FAIL" for f in failed}
    return [[host, *(cells.get((host, check), "ok") for check in CHECKS)] for host in hosts]
