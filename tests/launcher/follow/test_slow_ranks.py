"""Which nodes hold up a live run: from the trainer's own measure, and from the GPUs of any script."""

from __future__ import annotations

import pytest

from launcher.follow.slow_ranks import slow_nodes
from launcher.supervisor.events import GpuLoad, Usage

HEALTHY = GpuLoad(98, 60000, 81920, 1980)


def usages(*odd: GpuLoad, ranks: int = 2) -> dict[int, Usage]:
    """Return what three nodes with two GPUs each report. odd: the second GPU of node 1, for example."""
    loads = [HEALTHY] * 6
    loads[3 : 3 + len(odd)] = odd
    return {
        node: Usage(
            1.0,
            minute=tuple(loads[2 * node : 2 * node + 2]),
            ranks=tuple(range(ranks * node, ranks * node + ranks)),
        )
        for node in range(3)
    }


def test_healthy_gpus_name_no_node() -> None:
    assert slow_nodes({}, usages()) == {}
    almost = GpuLoad(86, 60000, 81920, 1730)  # 14% less than the median
    assert slow_nodes({}, usages(almost)) == {}
    assert slow_nodes({}, {}) == {} and slow_nodes({}, {0: Usage(1.0, ranks=(0,))}) == {}


def test_the_trainers_slow_rank_names_its_node() -> None:
    assert slow_nodes({5: 1.62}, usages()) == {2: "slow: rank 5 at 1.62 times the median step time"}
    assert slow_nodes({77: 9.0}, usages()) == {}  # a rank that no node has


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (GpuLoad(60, 60000, 81920, 1980), "slow: rank 3's GPU at 60% use, median 98%"),
        (GpuLoad(98, 60000, 81920, 900), "slow: rank 3's GPU at 900 MHz, median 1980 MHz"),
    ],
)
def test_a_gpu_that_idles_or_is_throttled_names_its_rank(gpu: GpuLoad, words: str) -> None:
    assert slow_nodes({}, usages(gpu)) == {1: words}
    [by_gpu] = slow_nodes({}, usages(gpu, ranks=1)).values()  # one rank uses both
    assert by_gpu == words.replace("rank 3's GPU", "GPU 1")


def test_gpus_of_another_model_and_idle_runs_are_not_compared() -> None:
    assert slow_nodes({}, usages(GpuLoad(50, 9000, 16384, 1200))) == {}
    idle = [GpuLoad(3, 60000, 81920, 345)] * 3  # between epochs, all but three GPUs are idle
    few_busy = usages(*idle)
    few_busy[0] = few_busy[2]
    assert slow_nodes({}, few_busy) == {}
