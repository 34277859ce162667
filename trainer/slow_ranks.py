"""Find slow ranks. In a step of DistributedDataParallel, all ranks take the same time, because they
wait for the slowest. So each rank measures its own share: the time until its last gradient, before
it waits for the others."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

SLOWER = 1.15  # times the median
WINDOW = 45.0  # seconds for which a rank must have been slow
SLICE = 5.0  # seconds; a slow rank must have been slow in each slice of the window
Moment = tuple[float, torch.cuda.Event | None]


class OwnWork:
    """Times this rank's steps: data, forward and backward, without the wait for others' gradients.

    On a GPU, events in the stream of the computation measure what the device did. With --bn sync, the
    ranks already wait for one another in the forward pass, so they all seem to take equally long.
    """

    def __init__(self, device: torch.device, first: torch.nn.Parameter) -> None:
        """first: the parameter nearest to the input, which gets its gradient last."""
        self._on_gpu = device.type == "cuda"
        self._began: Moment | None = None
        self._ended: Moment | None = None
        self._steps: deque[tuple[Moment, Moment]] = deque()  # not yet counted
        first.register_post_accumulate_grad_hook(self._has_gradient)

    def begin(self) -> None:
        """Record that a step begins."""
        if self._began and self._ended:
            self._steps.append((self._began, self._ended))
        self._began, self._ended = self._now(), None

    def take(self) -> float:
        """Return the seconds of own work in the steps that have ended since the last call."""
        seconds = 0.0
        while self._steps and _has_passed(self._steps[0][1]):
            seconds += _between(*self._steps.popleft())
        return seconds

    def _has_gradient(self, _: torch.Tensor) -> None:
        self._ended = self._now()

    def _now(self) -> Moment:
        event = torch.cuda.Event(enable_timing=True) if self._on_gpu else None
        if event:
            event.record()
        return time.perf_counter(), event


def _has_passed(moment: Moment) -> bool:
    return moment[1] is None or moment[1].query()


def _between(first: Moment, second: Moment) -> float:
    if first[1] and second[1]:
        return first[1].elapsed_time(second[1]) / 1000
    return second[0] - first[0]


class SlowRanks:
    """Finds the ranks whose own work took over SLOWER times the median for the whole window."""

    def __init__(self, world_size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.ratios: dict[int, float] = {}  # slow rank -> its time per image divided by the median
        self._clock, self._since = clock, clock()
        self._work, self._images = [0.0] * world_size, [0.0] * world_size
        self._slices: deque[tuple[float, list[float]]] = deque()  # seconds, ratios of all ranks

    def add(self, work: Sequence[float], images: Sequence[float]) -> bool:
        """Add each rank's own seconds and images. Return whether the set of slow ranks changed."""
        self._work = [a + b for a, b in zip(self._work, work, strict=True)]
        self._images = [a + b for a, b in zip(self._images, images, strict=True)]
        seconds = self._clock() - self._since
        if seconds < SLICE:
            return False
        pace = [w / n if n else 0.0 for w, n in zip(self._work, self._images, strict=True)]
        median = statistics.median(pace)
        self._slices.append((seconds, [each / median if median else 0.0 for each in pace]))
        while sum(seconds for seconds, _ in self._slices) - self._slices[0][0] >= WINDOW:
            self._slices.popleft()
        self._since += seconds
        self._work, self._images = [0.0] * len(pace), [0.0] * len(pace)
        before, self.ratios = self.ratios, {}
        if sum(seconds for seconds, _ in self._slices) >= WINDOW:
            for rank, ratios in enumerate(zip(*(r for _, r in self._slices), strict=True)):
                if min(ratios) > SLOWER:
                    self.ratios[rank] = round(statistics.fmean(ratios), 2)
        return before.keys() != self.ratios.keys()
