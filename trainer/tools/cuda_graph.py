"""`--cuda-graph`: a whole step, from making the batch to the optimizer, in one launch.

A graph repeats the same kernels on the same memory. What changes with each step is therefore kept in
fixed tensors: the batch's indices, the learning rate, and torch's random numbers, whose seed a replay
reads anew. What changes with the epoch, the key of crops, is part of the graph: each epoch captures
its own, after a first step without. Smaller last batches also run without a graph.

Never run on a GPU yet; off by default.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..state import Training


class GraphedStep:
    def __init__(self, body: Callable[[Training, torch.Tensor], None]) -> None:
        """body: what to capture, given the training and a batch's indices."""
        self._body = body
        self._epoch = -1
        self._replay: Callable[[], None] | None = None
        self._batch = torch.empty(0)

    def __call__(self, t: Training, batch: torch.Tensor) -> None:
        epoch = t.step // t.plan.steps_per_epoch
        if epoch != self._epoch or len(batch) != len(self._batch):
            self._epoch, self._batch, self._replay = epoch, batch.clone(), None
            aside(t, batch, self._body)
            return
        self._batch.copy_(batch)
        if self._replay is None:
            self._replay = capture(t, self._batch, self._body)
        self._replay()


def aside(t: Training, batch: torch.Tensor, body: Callable[[Training, torch.Tensor], None]) -> None:
    """Run the step on a stream of its own: what autograd keeps of it must not wait for the default
    stream, as that would be an error while capturing."""
    stream = torch.cuda.Stream(t.ranks.device)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body(t, batch)
    torch.cuda.current_stream().wait_stream(stream)


def capture(
    t: Training, batch: torch.Tensor, body: Callable[[Training, torch.Tensor], None]
) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    # Another thread may use CUDA during the capture: the checkpoint writer frees pinned memory.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        body(t, batch)
    return graph.replay
