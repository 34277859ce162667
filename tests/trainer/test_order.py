"""Every sample once per epoch, whatever the number of samples and ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.order import epoch_order, held_out, mixed_seed
from trainer.plan import part_bounds


@pytest.mark.parametrize("n", [1, 7, 1797, 10_000, 50_000])
def test_an_epoch_is_a_permutation(n: int) -> None:
    assert torch.equal(epoch_order(3, 5, n).sort().values, torch.arange(n))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 6, 7, 8, 16])
@pytest.mark.parametrize("n", [1, 7, 1797, 10_000, 50_000])
def test_the_ranks_of_any_world_see_each_sample_once(n: int, world_size: int) -> None:
    order, batch, seen = epoch_order(0, 0, n), 256, []
    for start in range(0, n, batch):
        part = order[start : start + batch]
        for rank in range(world_size):
            first, last = part_bounds(len(part), world_size, rank)
            seen.append(part[first:last])
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(n))


def test_epochs_differ_and_repeat() -> None:
    assert not torch.equal(epoch_order(0, 0, 1000), epoch_order(0, 1, 1000))
    assert torch.equal(epoch_order(0, 1, 1000), epoch_order(0, 1, 1000))


def test_orders_stay_the_same_from_version_to_version() -> None:
    """A run goes on with the order that it began with."""
    assert epoch_order(1, 2, 8).tolist() == [1, 4, 0, 6, 5, 2, 3, 7]
    assert mixed_seed("order/1/2/8") == 8855486084371009822
    assert mixed_seed("") < 1 << 63


def test_seed_and_epoch_are_not_added_up() -> None:
    assert not torch.equal(epoch_order(0, 1, 1000), epoch_order(1, 0, 1000))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(2, 5000), part=st.floats(0.0, 0.5))
def test_held_out_images_are_never_trained_on(n: int, part: float) -> None:
    train, val = held_out(n, part)
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(n))
    assert len(val) == (max(1, int(n * part)) if part else 0)
