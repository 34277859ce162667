"""`--profile FIRST:LAST`: a Chrome trace of these steps, from each rank."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from ..config import Config
from ..distributed import Ranks


def make_profiler(config: Config, ranks: Ranks) -> profile | None:
    """To be entered around the training loop, and told of each step. Steps count from the start or
    the resume, so that a resumed run can be profiled, too."""
    if config.parsed_profile is None:
        return None
    first, last = config.parsed_profile
    warmup = min(1, first - 1)
    on_gpu = [ProfilerActivity.CUDA] if ranks.device.type == "cuda" else []
    return profile(
        activities=[ProfilerActivity.CPU, *on_gpu],
        schedule=schedule(
            wait=first - 1 - warmup, warmup=warmup, active=last - first + 1, repeat=1
        ),
        on_trace_ready=partial(_write, Path(config.out) / f"trace-rank-{ranks.rank}.json"),
    )


def _write(path: Path, recorded: torch.profiler.profile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)  # on other nodes, nothing else is written there
    recorded.export_chrome_trace(str(path))
