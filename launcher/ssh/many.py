"""Run one function on many nodes concurrently. All functions here wait for all nodes."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from ..errors import DdpctlError, NodesFailed
from .limits import AT_ONCE
from .node import Node

T = TypeVar("T")
V = TypeVar("V")


def each_node(nodes: Sequence[Node], do: Callable[[Node], T]) -> dict[Node, T]:
    """Run `do` on all nodes concurrently; raise NodesFailed with every error if any fails."""
    results, failures = try_each(nodes, do)
    if failures:
        raise NodesFailed(by_name(nodes, failures))
    return results


def ask_each(
    nodes: Sequence[Node], ask: Callable[[Node], T]
) -> tuple[dict[str, T], dict[str, DdpctlError]]:
    """Run `ask` on all nodes concurrently; return results and errors by name (see `by_name`)."""
    answers, failures = try_each(nodes, ask)
    return by_name(nodes, answers), by_name(nodes, failures)


def try_each(
    nodes: Sequence[Node], do: Callable[[Node], T]
) -> tuple[dict[Node, T], dict[Node, DdpctlError]]:
    """Run `do` on all nodes, at most AT_ONCE at a time; return results and errors by node.

    Whatever `do` raises for one node becomes the error of that node.
    """
    results: dict[Node, T] = {}
    failures: dict[Node, DdpctlError] = {}
    stops: list[BaseException] = []  # of ddpctl itself, such as SystemExit
    todo = iter([*nodes])  # shared by the threads

    def work() -> None:
        for node in todo:
            try:
                results[node] = do(node)
            except Exception as error:
                failures[node] = node.explain(error)
            except BaseException as stop:
                stops.append(stop)

    threads = [threading.Thread(target=work, daemon=True) for _ in nodes[:AT_ONCE]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if stops:
        raise stops[0]

    def in_order(by_node: Mapping[Node, V]) -> dict[Node, V]:
        return {node: by_node[node] for node in nodes if node in by_node}

    return in_order(results), in_order(failures)


def in_background(call: Callable[[], T]) -> Future[T]:
    """Run `call` in a thread. Unlike those of an Executor, it does not delay the exit on Ctrl-C."""
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def one_per_account(nodes: Iterable[Node]) -> list[Node]:
    """Return the first node of each account: two nodes may be the same user on the same machine."""
    found: dict[tuple[str | None, str, int], Node] = {}
    for node in nodes:
        found.setdefault(node.host.account, node)
    return [*found.values()]


def by_name(nodes: Sequence[Node], found: Mapping[Node, T]) -> dict[str, T]:
    """Replace the nodes in `found` by their names. A second node of that name is `name (2)`."""
    seen: dict[str, int] = {}
    named = {}
    for node in nodes:
        seen[node.name] = count = seen.get(node.name, 0) + 1
        if node in found:
            named[node.name if count == 1 else f"{node.name} ({count})"] = found[node]
    return named
