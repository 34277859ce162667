"""Find the nodes that hold up a live run. Pure.

In a synchronous run, all ranks take the same time per step, because they wait for the slowest one.
Two other measures show which one that is. ddpctl's trainer reports how long each rank works before it
waits for the others. In any script, a GPU that is used less is waiting for its host, and a GPU with
a lower clock is throttled; a GPU that waits in NCCL for another rank counts as used and keeps its
full clock.
"""

import statistics
from collections.abc import Callable, Mapping

from ..facts.nvidia import BUSY
from ..supervisor.events import GpuLoad, Usage

SLOWER = 1.15  # a multiple of the median; the trainer uses the same limit
MEASURES: dict[str, Callable[[GpuLoad], int]] = {
    "{}% use, median {:.0f}%": lambda load: load.use,
    "{} MHz, median {:.0f} MHz": lambda load: load.clock,
}


def slow_nodes(ratios: Mapping[int, float], usages: Mapping[int, Usage]) -> dict[int, str]:
    """Return why nodes are slow, by node rank: `slow: rank 3 at 1.6 times the median step time`.

    ratios: each slow rank's step time divided by the median, from the trainer. usages: each node's
    newest Usage.
    """
    places = {rank: node for node, usage in usages.items() for rank in usage.ranks}
    slow: dict[int, str] = {}
    for rank, ratio in ratios.items():
        if rank in places:
            words = f"slow: rank {rank} at {ratio:g} times the median step time"
            slow.setdefault(places[rank], words)
    # compare GPUs of the most common model only, because other models have other clocks
    size = statistics.mode([load.total for each in usages.values() for load in each.minute] or [0])
    gpus = {
        (node, gpu): load
        for node, usage in usages.items()
        for gpu, load in enumerate(usage.minute)
        if load.total == size
    }
    if statistics.median([load.use for load in gpus.values()] or [0]) < BUSY:
        return slow  # between epochs, or a script that is slow everywhere
    for what, value in MEASURES.items():
        median = statistics.median(map(value, gpus.values()))
        for (node, gpu), load in gpus.items():
            if value(load) * SLOWER < median:
                ranks = usages[node].ranks
                whole = len(ranks) == len(usages[node].minute)
                who = f"rank {ranks[gpu]}'s GPU" if whole else f"GPU {gpu}"
                slow.setdefault(node, f"slow: {who} at {what.format(value(load), median)}")
    return slow
