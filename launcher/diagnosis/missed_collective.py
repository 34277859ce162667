"""Name the ranks that missed a collective or called a different one. Pure.

Torch's flight recorder shows which collectives each rank has called.
"""

import statistics
from collections.abc import Iterable, Mapping

from ..supervisor.events import Collective, Collectives
from ..text import names, ranges
from .evidence import Evidence

LONGEST_NAME = 80  # characters


def missed_collective(evidence: Evidence) -> str:
    """Return `rank 3 (gpu2) did not call all_reduce ...`; "" if no rank is known to have missed one.

    Ranks number the calls of each process group, and calls with the same number belong together. A
    run that hangs waits in the call after the lowest of the ranks' newest numbers, or in a call
    that has different names on different ranks.
    """
    hosts: dict[int, str] = {}
    groups: dict[str, dict[int, Collective]] = {}
    for node in evidence.nodes:
        for event in node.of(Collectives)[-1:]:
            for each in event.newest:
                if each.rank in range(evidence.world_size) and each.names:
                    hosts.setdefault(each.rank, node.host)
                    groups.setdefault(each.group, {}).setdefault(each.rank, each)
    verdicts = (_missed(group, hosts) for group in groups.values())
    return next(filter(None, verdicts), "")


def _missed(group: Mapping[int, Collective], hosts: Mapping[int, str]) -> str:
    number = min(each.number for each in group.values())
    called = {rank: _name(each, number) for rank, each in group.items()}
    usual = statistics.mode(called[rank] for rank in sorted(called))
    odd = [rank for rank, name in called.items() if name != usual]
    if odd and all(called.values()):
        others = [rank for rank in called if rank not in odd]
        return (
            f"{_who(odd, hosts)} called {called[odd[0]]}, but {_who(others)} called {usual} "
            f"(call {number} of their process group)"
        )
    late = [rank for rank, each in group.items() if each.number == number]
    ahead = [rank for rank in group if rank not in late]
    if not ahead:
        return ""
    name = _name(group[ahead[0]], number + 1) or "a collective"
    return (
        f"{_who(late, hosts)} did not call {name}, in which {_who(ahead)} waited "
        f"(call {number + 1} of their process group)"
    )


def _name(each: Collective, number: int) -> str:
    """Return the name of the rank's call with this number; "" if it is not reported."""
    place = len(each.names) - 1 - (each.number - number)
    return each.names[place][:LONGEST_NAME] if 0 <= place < len(each.names) else ""


def _who(ranks: Iterable[int], hosts: Mapping[int, str] | None = None) -> str:
    listed = sorted(ranks)
    where = f" ({names(dict.fromkeys(hosts[rank] for rank in listed))})" if hosts else ""
    return f"rank{'s' * (len(listed) > 1)} {ranges(listed)}{where}"
