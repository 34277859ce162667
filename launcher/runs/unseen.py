"""Hosts that gave no answer, for the user and for a JSON document."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import DdpctlError, StateError
from ..terminal.console import Console


def report_unseen(failures: Mapping[str, DdpctlError], console: Console) -> None:
    for error in failures.values():
        local = isinstance(error, StateError)
        console.error(f"not recorded: {error}" if local else f"no answer from {error}")


def unseen(failures: Mapping[str, DdpctlError]) -> list[dict[str, str]]:
    return [{"host": host, "error": str(error)} for host, error in failures.items()]
