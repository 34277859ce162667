"""Run one function on many hosts concurrently, and wait for all of them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..errors import DdpctlError, NodesFailed
from .background import AT_ONCE, in_background
from .host_connection import HostConnection

T = TypeVar("T")


def each_node(
    connections: Sequence[HostConnection], do: Callable[[HostConnection], T]
) -> dict[HostConnection, T]:
    """Run `do` on all hosts concurrently; return the results. Raises NodesFailed if a host fails."""
    results, failures = try_each(connections, do)
    if failures:
        raise NodesFailed(by_name(connections, failures))
    return results


def ask_each(
    connections: Sequence[HostConnection], ask: Callable[[HostConnection], T]
) -> tuple[dict[str, T], dict[str, DdpctlError]]:
    """Run `ask` on all hosts concurrently; return results and errors by name (see `by_name`)."""
    answers, failures = try_each(connections, ask)
    return by_name(connections, answers), by_name(connections, failures)


def try_each(
    connections: Sequence[HostConnection], do: Callable[[HostConnection], T]
) -> tuple[dict[HostConnection, T], dict[HostConnection, DdpctlError]]:
    """Run `do` on all hosts, at most AT_ONCE at a time; return results and errors by connection.

    Whatever `do` raises for a host becomes the error of that host.
    """
    results: dict[HostConnection, T] = {}
    failures: dict[HostConnection, DdpctlError] = {}
    todo = iter([*connections])  # shared by the threads

    def work() -> None:
        for connection in todo:
            try:
                results[connection] = do(connection)
            except Exception as error:
                failure = failures[connection] = connection.explain(error)
                # These refer to frames, and so to the host's answer, until the next garbage collection.
                failure.__traceback__ = failure.__context__ = failure.__cause__ = None

    for thread in [in_background(work) for _ in connections[:AT_ONCE]]:
        thread.result()  # raises exceptions that end ddpctl itself, such as SystemExit
    return (
        {connection: results[connection] for connection in connections if connection in results},
        {connection: failures[connection] for connection in connections if connection in failures},
    )


def one_per_account(connections: Iterable[HostConnection]) -> list[HostConnection]:
    """Return one connection per account, because several may log in to the same one."""
    first: dict[tuple[str | None, str, int], HostConnection] = {}
    for connection in connections:
        first.setdefault(connection.host.account, connection)
    return [*first.values()]


def unique_names(connections: Sequence[HostConnection]) -> dict[HostConnection, str]:
    """Return a unique name for each connection. The second connection to a host is called `name (2)`."""
    counts = Counter[str]()
    unique = {}
    for connection in connections:
        counts[connection.name] += 1
        count = counts[connection.name]
        unique[connection] = connection.name if count == 1 else f"{connection.name} ({count})"
    return unique


def by_name(
    connections: Sequence[HostConnection], values: Mapping[HostConnection, T]
) -> dict[str, T]:
    """Return `values` by the unique names of their connections, in the order of `connections`."""
    return {
        name: values[connection]
        for connection, name in unique_names(connections).items()
        if connection in values
    }
