"""Report hosts' errors, such as missing answers, to the user or in JSON."""

from collections.abc import Mapping

from ..errors import DdpctlError, NodesFailed, StopUnconfirmed
from .console import Console


def report_errors(failures: Mapping[str, DdpctlError], console: Console) -> None:
    """Print the errors, given by host name. Hosts with the same error share a line."""
    if failures:
        console.error(str(NodesFailed(failures)))


def report_unconfirmed(failures: Mapping[str, DdpctlError], console: Console) -> None:
    """Print which hosts may still be running something, and why ddpctl cannot tell."""
    later = "the next `ddpctl ps` or `launch` that reaches the host will finish the stop"
    unconfirmed = {
        host: StopUnconfirmed(
            f"stop not confirmed: {error.what}", "; ".join(filter(None, [error.remedy, later]))
        )
        for host, error in failures.items()
    }
    report_errors(unconfirmed, console)


def unseen(failures: Mapping[str, DdpctlError]) -> list[dict[str, str]]:
    return [{"host": host, "error": str(error)} for host, error in failures.items()]
