"""Run one function on many nodes concurrently. All functions here wait for all nodes."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..errors import DdpctlError, NodesFailed
from .background import AT_ONCE, in_background
from .host_connection import HostConnection

T = TypeVar("T")


def each_node(
    nodes: Sequence[HostConnection], do: Callable[[HostConnection], T]
) -> dict[HostConnection, T]:
    """Run `do` on all nodes concurrently; raise NodesFailed with every error if any fails."""
    results, failures = try_each(nodes, do)
    if failures:
        raise NodesFailed(by_name(nodes, failures))
    return results


def ask_each(
    nodes: Sequence[HostConnection], ask: Callable[[HostConnection], T]
) -> tuple[dict[str, T], dict[str, DdpctlError]]:
    """Run `ask` on all nodes concurrently; return results and errors by name (see `by_name`)."""
    answers, failures = try_each(nodes, ask)
    return by_name(nodes, answers), by_name(nodes, failures)


def try_each(
    nodes: Sequence[HostConnection], do: Callable[[HostConnection], T]
) -> tuple[dict[HostConnection, T], dict[HostConnection, DdpctlError]]:
    """Run `do` on all nodes, at most AT_ONCE at a time; return results and errors by node.

    Whatever `do` raises for one node becomes the error of that node.
    """
    results: dict[HostConnection, T] = {}
    failures: dict[HostConnection, DdpctlError] = {}
    todo = iter([*nodes])  # shared by the threads

    def work() -> None:
        for node in todo:
            try:
                results[node] = do(node)
            except Exception as error:
                failures[node] = node.explain(error)

    for thread in [in_background(work) for _ in nodes[:AT_ONCE]]:
        thread.result()  # raises what ends ddpctl itself, such as SystemExit
    return (
        {node: results[node] for node in nodes if node in results},
        {node: failures[node] for node in nodes if node in failures},
    )


def one_per_account(nodes: Iterable[HostConnection]) -> list[HostConnection]:
    """Return the first node of each account: two nodes may be the same user on the same machine."""
    first: dict[tuple[str | None, str, int], HostConnection] = {}
    for node in nodes:
        first.setdefault(node.host.account, node)
    return [*first.values()]


def unique_names(nodes: Sequence[HostConnection]) -> dict[HostConnection, str]:
    """Return the nodes with their names. A second node of the same name is `name (2)`."""
    counts = Counter[str]()
    unique = {}
    for node in nodes:
        counts[node.name] += 1
        count = counts[node.name]
        unique[node] = node.name if count == 1 else f"{node.name} ({count})"
    return unique


def by_name(nodes: Sequence[HostConnection], values: Mapping[HostConnection, T]) -> dict[str, T]:
    """Return `values` by the unique names of the nodes, in the order of `nodes`."""
    return {name: values[node] for node, name in unique_names(nodes).items() if node in values}
