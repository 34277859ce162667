"""Hosts that gave no answer, for the user and for a JSON document."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import DdpctlError
from launcher.terminal.console import Console


def report_unseen(failures: Mapping[str, DdpctlError], console: Console) -> None:
    for error in failures.values():
        console.error(f"no answer from {error}")


def unseen(failures: Mapping[str, DdpctlError]) -> list[dict[str, str]]:
    return [{"host": host, "error": str(error)} for host, error in failures.items()]
