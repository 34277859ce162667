"""Three steps of the trainer and three steps of plain torch give the same weights, for every setting
of the optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW, RMSprop
from trainer_ranks import batches, make, same

from trainer import train
from trainer.errors import UsageError
from trainer.optim import load_optimizer, set_rate
from trainer.state import Training

FLAT = ("--schedule", "constant", "--warmup-epochs", "0", "--lr", "0.05")
Make = Callable[[list[nn.Parameter], list[nn.Parameter]], torch.optim.Optimizer]


def after_three_steps(
    *flags: str,
    optimizer: Make,
    rates: tuple[float, ...] = (0.05, 0.05, 0.05),
    smoothing: float = 0.0,
    clip: float = 0.0,
    scaled: bool = False,
) -> tuple[Training, nn.Module]:
    """The trainer with these flags, and a network that plain torch has trained on the same images."""
    t = make(None, *FLAT, *flags)
    if scaled:
        t.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plain = copy.deepcopy(t.net.model).train()
    matrices = [p for p in plain.parameters() if p.ndim > 1]
    vectors = [p for p in plain.parameters() if p.ndim <= 1]
    reference = optimizer(matrices, vectors)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    images = batches(t)
    for rate in rates:
        _, x, y = next(images)
        for group in reference.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", torch.float16, enabled=scaled):
            logits = plain(x)
        loss = cross_entropy(logits.float(), y, label_smoothing=smoothing)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(reference)
            nn.utils.clip_grad_norm_(plain.parameters(), clip)
        scaler.step(reference)
        scaler.update()
        reference.zero_grad()
    t.net.model.train()
    ours = batches(t)
    for _ in rates:
        train.train_step(t, ours)
    return t, plain


def differs(t: Training, plain: nn.Module) -> list[str]:
    """The values of the trainer's network that are not those of the plain one."""
    pairs = zip(t.net.model.state_dict().items(), plain.state_dict().values(), strict=True)
    return [n for (n, a), b in pairs if not torch.allclose(a, b, rtol=1e-4, atol=2e-6)]


def sgd(**settings: Any) -> Make:
    usual = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4} | settings
    return lambda matrices, vectors: SGD([*matrices, *vectors], 0.05, fused=False, **usual)


def sgd_with_plain_norms(matrices: list[nn.Parameter], vectors: list[nn.Parameter]) -> Any:
    groups = [{"params": matrices, "weight_decay": 0.2}, {"params": vectors, "weight_decay": 0.0}]
    return SGD(groups, 0.05, momentum=0.9, nesterov=True, fused=False)


CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {"optimizer": sgd()}),
    (("--no-nesterov",), {"optimizer": sgd(nesterov=False)}),
    (("--momentum", "0.5"), {"optimizer": sgd(momentum=0.5)}),
    (("--momentum", "0"), {"optimizer": sgd(momentum=0.0, nesterov=False)}),
    (("--weight-decay", "0.2"), {"optimizer": sgd(weight_decay=0.2)}),
    (
        ("--weight-decay", "0.2", "--norm-weight-decay", "0"),
        {"optimizer": sgd_with_plain_norms},
    ),
    (
        ("--opt", "adam", "--weight-decay", "0.2"),
        {"optimizer": lambda a, b: Adam([*a, *b], 0.05, weight_decay=0.2, fused=False)},
    ),
    (
        # Adam's first step depends on a gradient's sign: with this seed, none is close to zero
        ("--opt", "adamw", "--weight-decay", "0.2", "--seed", "3"),
        {"optimizer": lambda a, b: AdamW([*a, *b], 0.05, weight_decay=0.2, fused=False)},
    ),
    (
        ("--opt", "torch.optim:RMSprop"),
        {"optimizer": lambda a, b: RMSprop([*a, *b], 0.05, weight_decay=5e-4)},
    ),
    (("--label-smoothing", "0.3"), {"optimizer": sgd(), "smoothing": 0.3}),
    (("--clip-grad-norm", "0.1"), {"optimizer": sgd(), "clip": 0.1}),
    (("--amp", "fp16"), {"optimizer": sgd(), "scaled": True}),
    (
        ("--amp", "fp16", "--clip-grad-norm", "0.1"),
        {"optimizer": sgd(), "clip": 0.1, "scaled": True},
    ),
    (("--grad-accum-steps", "1", "--no-channels-last"), {"optimizer": sgd()}),
    (
        ("--lr-scaling", "linear", "--lr-base-size", "4"),
        {"optimizer": sgd(), "rates": (0.2, 0.2, 0.2)},
    ),
    (
        ("--lr-scaling", "sqrt", "--lr-base-size", "4"),
        {"optimizer": sgd(), "rates": (0.1, 0.1, 0.1)},
    ),
    (
        ("--warmup-epochs", "0.3", "--schedule", "triangular", "--max-steps", "12"),
        {"optimizer": sgd(), "rates": (0.025, 0.05, 0.05)},
    ),
]


@pytest.mark.parametrize(("flags", "settings"), CASES, ids=[" ".join(f) or "sgd" for f, _ in CASES])
def test_three_steps_are_those_of_plain_torch(
    flags: tuple[str, ...], settings: dict[str, Any]
) -> None:
    t, plain = after_three_steps(*flags, **settings)
    assert differs(t, plain) == []


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_optimizers_are_fused(name: str) -> None:
    """One kernel for all parameters."""
    assert make(None, "--opt", name).optimizer.defaults["fused"] is True


def test_the_comparison_notices_a_small_difference() -> None:
    t, plain = after_three_steps("--momentum", "0.9", optimizer=sgd(momentum=0.89))
    assert differs(t, plain)


def test_the_average_of_the_weights_is_that_of_its_formula() -> None:
    t = make(None, *FLAT, "--ema", "0.15")
    assert t.net.ema
    images = batches(t)
    t.net.model.train()
    averaged = [value.detach().clone() for value in t.net.ema.live]
    for step in range(3):
        train.train_step(t, images)
        decay = min(0.15, (1 + step) / (10 + step))  # 0.1, 0.15, 0.15
        for value, live in zip(averaged, t.net.ema.live, strict=True):
            value.mul_(decay).add_(live.detach(), alpha=1 - decay)
    for ours, value in zip(t.net.ema.values, averaged, strict=True):
        torch.testing.assert_close(ours, value)
    assert set(t.net.ema.names) <= set(t.net.model.state_dict())
    assert "bn1.running_var" in t.net.ema.names


def test_parameters_that_need_no_gradient_stay_as_they_are() -> None:
    t = make(None, "--model", "own_parts:frozen_backbone")
    backbone = {n: p.clone() for n, p in t.net.model.named_parameters() if not p.requires_grad}
    head = {n: p.clone() for n, p in t.net.model.named_parameters() if p.requires_grad}
    images = batches(t)
    for _ in range(3):
        train.train_step(t, images)
    named = dict(t.net.model.named_parameters())
    assert backbone and same({n: named[n].detach() for n in backbone}, backbone)
    assert head and not any(torch.equal(named[n], head[n]) for n in head)


def test_a_network_without_trainable_parameters_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="this network has no trainable parameters"):
        make(None, "--model", "own_parts:all_frozen")


def test_groups_of_the_users_optimizer_may_have_a_multiple_of_the_rate() -> None:
    a, b = (nn.Parameter(torch.ones(1)) for _ in "ab")
    optimizer = SGD([{"params": [a]}, {"params": [b], "lr_scale": 64.0}], 0.1)
    set_rate(optimizer, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 32.0]


def test_an_unknown_optimizer_or_schedule_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--opt lion: unknown optimizer; use sgd, adam, adamw, or"):
        make(None, "--opt", "lion")
    with pytest.raises(UsageError, match="--schedule wavy: unknown schedule; use cosine, multi"):
        make(None, "--schedule", "wavy")


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_momentum_in_another_memory_layout_loads_by_value(name: str) -> None:
    """A checkpoint from a GPU has NHWC momentum; fused optimizers read memory, not values."""
    flags = (*FLAT, "--opt", name, "--weight-decay", "0.01")
    whole, resumed = make(None, *flags), make(None, *flags)
    images = batches(whole)
    for _ in range(2):
        train.train_step(whole, images)
    resumed.net.model.load_state_dict(whole.net.model.state_dict())
    state = copy.deepcopy(whole.optimizer.state_dict())
    for values in state["state"].values():
        for key, value in values.items():
            if value.ndim == 4:
                values[key] = value.to(memory_format=torch.channels_last)
    load_optimizer(resumed.optimizer, state)
    resumed.step = 2
    train.train_step(whole, images)
    train.train_step(resumed, batches(resumed))
    assert same(
        [p.detach() for p in whole.net.parameters], [p.detach() for p in resumed.net.parameters]
    )


def test_settings_of_the_optimizer_are_this_runs_and_its_momentum_the_checkpoints() -> None:
    before, after = make(None), make(None, "--weight-decay", "0.3", "--momentum", "0.5")
    train.train_step(before, batches(before))
    load_optimizer(after.optimizer, before.optimizer.state_dict())
    assert {group["weight_decay"] for group in after.optimizer.param_groups} == {0.3}
    assert {group["momentum"] for group in after.optimizer.param_groups} == {0.5}
    buffers = [
        [state["momentum_buffer"] for state in t.optimizer.state.values()] for t in (before, after)
    ]
    assert same(*buffers) and buffers[0][0].any()
