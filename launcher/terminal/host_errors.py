"""Report the errors of hosts, such as those that did not answer, to the user or in JSON."""

from collections.abc import Mapping

from ..errors import DdpctlError, NodesFailed
from .console import Console


def report_errors(failures: Mapping[str, DdpctlError], console: Console) -> None:
    """Print the errors, given by host name. Hosts that have the same error share a line."""
    if failures:
        console.error(str(NodesFailed(failures)))


def report_unconfirmed(failures: Mapping[str, DdpctlError], console: Console) -> None:
    """Print the hosts that may still run something, and why that is unknown."""
    what = "stop not confirmed; ddpctl will finish it when it next reaches the host"
    report_errors({host: error.prefixed(what) for host, error in failures.items()}, console)


def unseen(failures: Mapping[str, DdpctlError]) -> list[dict[str, str]]:
    return [{"host": host, "error": str(error)} for host, error in failures.items()]
