"""The optimizer that --opt names, and the moving average of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from .config import Config, is_function_name, named_function
from .errors import UsageError
from .model import replaced

Groups = list[dict[str, Any]]  # parameters, each group with its own settings
# what this run sets in a group
FROM_FLAGS = ("params", "lr", "weight_decay", "momentum", "nesterov")

OPTIMIZERS: dict[str, Callable[[Groups, Config], Optimizer]] = {
    "sgd": lambda groups, c: SGD(
        groups, c.lr, c.momentum, nesterov=c.nesterov and c.momentum > 0, fused=True
    ),
    "adam": lambda groups, c: Adam(groups, c.lr, fused=True),
    "adamw": lambda groups, c: AdamW(groups, c.lr, fused=True),
}


def make_optimizer(model: nn.Module, config: Config) -> Optimizer:
    """Return the optimizer for all parameters that need gradients. Raises UsageError."""
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise UsageError(
            f"--model {config.model}: this network has no trainable parameters; set requires_grad on "
            "those to train"
        )
    decay, other_decay = config.weight_decay, config.norm_weight_decay
    weights = [p for p in trained if p.ndim > 1]
    others = [p for p in trained if p.ndim <= 1]  # batch norm and biases
    groups: Groups = [
        {"params": weights, "weight_decay": decay},
        {"params": others, "weight_decay": decay if other_decay is None else other_decay},
    ]
    if keeps_gradients(config):
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
    if is_function_name(config.opt):
        own: Optimizer = named_function("--opt", config.opt)(groups, lr=config.lr)
        return own
    if config.opt not in OPTIMIZERS:
        names = ", ".join(OPTIMIZERS)
        raise UsageError(
            f"--opt {config.opt}: unknown optimizer; use {names}, or package.module:function"
        )
    optimizer = OPTIMIZERS[config.opt](groups, config)
    if config.opt == "sgd" and config.momentum:
        # torch leaves momentum buffers uninitialized if fp16 overflows in the first step.
        for parameter in trained:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate. A group of the user's own optimizer may scale it by `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load the optimizer's values, such as momentum.

    Settings that flags set, such as the weight decay, stay those of this run. All other values of a
    group are loaded, because some optimizers count steps there.
    """
    groups = optimizer.state_dict()["param_groups"]
    for group, saved in zip(groups, state["param_groups"], strict=True):
        group |= {name: value for name, value in saved.items() if name not in FROM_FLAGS}
    optimizer.load_state_dict({**state, "param_groups": groups})
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            # torch keeps the checkpoint's strides, but fused optimizers read memory in the
            # parameter's order. Weights are NHWC on a GPU, but not on a CPU.
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def keeps_gradients(config: Config) -> bool:
    """Return whether gradients must keep their memory from step to step. With torch.compile's own CUDA
    graphs they must: the graphs would overwrite gradients that the first of several micro-batches
    allocated."""
    return config.compile and config.compile_mode != "default"


class Ema:
    """Exponential moving average of a network's weights and running statistics (--ema).

    The decay warms up, because otherwise the first steps' weights would count for hundreds of steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        named: dict[str, torch.Tensor] = dict(model.named_parameters())
        named |= {name: b for name, b in model.named_buffers() if b.is_floating_point()}
        self.names, self.live = list(named), list(named.values())
        self.values = [tensor.detach().clone() for tensor in self.live]

    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self.values, self.live, 1 - decay)

    def load(self, averaged: Mapping[str, torch.Tensor]) -> None:
        """Continue from a state_dict of averaged values."""
        for name, value in zip(self.names, self.values, strict=True):
            value.copy_(averaged.get(name, value))

    def in_place(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which the network has the averaged values."""
        return replaced(self.live, self.values)
