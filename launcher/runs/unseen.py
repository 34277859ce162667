"""Show hosts that gave no answer, to the user or in a JSON document."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import DdpctlError, StateError
from ..hosts import fold
from ..terminal.console import Console


def report_unseen(failures: Mapping[str, DdpctlError], console: Console) -> None:
    what = {
        host: f"{'not recorded:' if isinstance(error, StateError) else 'no answer from'} {error}"
        for host, error in failures.items()
    }
    for line in fold.errors(what):
        console.error(line)


def unseen(failures: Mapping[str, DdpctlError]) -> list[dict[str, str]]:
    return [{"host": host, "error": str(error)} for host, error in failures.items()]
