"""Runs killed at random moments, with and without a launcher, leave nothing and touch nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cluster import Cluster, Home
from rounds import play, strangers, write_job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_three_rounds_leave_nothing(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    """`benchmarks/rounds.py` plays a hundred."""
    file = write_job(cluster, tmp_path)
    with strangers(cluster) as others:
        for seed in range(3):
            played = play(cluster, home, file, random.Random(seed), others)
            assert (played.strays, played.touched) == ([], []), played
            assert set(played.kills) == {0}, played
