"""Report the errors of hosts, such as those that did not answer, to the user or in JSON."""

from collections.abc import Mapping

from .. import text as fold
from ..errors import DdpctlError, StateError
from .console import Console


def report_errors(errors: Mapping[str, object], console: Console) -> None:
    for line in fold.errors(errors):
        console.error(line)


def report_unseen(failures: Mapping[str, DdpctlError], console: Console) -> None:
    what = {
        host: f"{'not recorded:' if isinstance(error, StateError) else 'no answer from'} {error}"
        for host, error in failures.items()
    }
    report_errors(what, console)


def report_unconfirmed(failures: Mapping[str, DdpctlError], console: Console) -> None:
    what = "stop not confirmed; ddpctl will finish it when it next reaches the host"
    report_errors({host: f"{host}: {what}: {error}" for host, error in failures.items()}, console)


def unseen(failures: Mapping[str, DdpctlError]) -> list[dict[str, str]]:
    return [{"host": host, "error": str(error)} for host, error in failures.items()]
