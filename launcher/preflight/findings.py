"""A finding: one thing that is wrong on one host, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["failure", "warning"]

# In the order in which a launch meets them; also the columns of the table.
CHECKS = ("ssh", "docker", "gpus", "image", "disk", "memory", "clock", "network", "ports", "runs")


@dataclass(frozen=True)
class Finding:
    """what and remedy are each a clause of one line. A failure stops a launch, a warning does not."""

    severity: Severity
    host: str
    check: str
    what: str
    remedy: str

    def line(self) -> str:
        return f"{self.severity}: {self.host}: {self.check}: {self.what}; {self.remedy}"


def failure(host: str, check: str, what: str, remedy: str) -> Finding:
    return Finding("failure", host, check, what, remedy)


def warning(host: str, check: str, what: str, remedy: str) -> Finding:
    return Finding("warning", host, check, what, remedy)


def in_order(findings: Iterable[Finding], hosts: Sequence[str]) -> list[Finding]:
    """Failures first, then by host and by check; the same finding once."""
    places = {host: i for i, host in enumerate(hosts)}
    checks = {check: i for i, check in enumerate(CHECKS)}
    return sorted(
        dict.fromkeys(findings),
        key=lambda f: (f.severity, places.get(f.host, -1), checks.get(f.check, 99)),
    )


def table(
    hosts: Sequence[str], findings: Iterable[Finding], unseen: Iterable[str]
) -> list[list[str]]:
    """One row a host, one cell a check: ok, warning, FAILURE, or - where nothing could be seen."""
    worst: dict[tuple[str, str], str] = {}
    for finding in findings:
        cell = "FAILURE" if finding.severity == "failure" else "warning"
        if worst.get((finding.host, finding.check)) != "FAILURE":
            worst[finding.host, finding.check] = cell
    blind = set(unseen)
    return [
        [host, *(worst.get((host, c), _unless(c, host, worst, blind)) for c in CHECKS)]
        for host in hosts
    ]


def _unless(check: str, host: str, worst: Mapping[tuple[str, str], str], blind: set[str]) -> str:
    """`-` for what could not be looked at: a host behind a broken SSH, an image in a dead engine."""
    dead = worst.get((host, "docker")) == "FAILURE" and check in ("image", "runs")
    return "-" if host in blind or dead else "ok"


def document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings]
