"""Networks: ResNets for small images, torchvision's ResNets for large ones, and the user's own.
Also contains helpers for batch-norm statistics and for vectors of parameters.

`stem="cifar"`: a 3x3 first layer without pooling, so that 32x32 images keep their size.
`stem="imagenet"`: torchvision's version of He et al.'s network, so that weights can be exchanged.
resnet8 and resnet20 are the paper's CIFAR networks, for small machines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from .config import is_function_name, named_function
from .errors import CheckpointError, UsageError

SMALL = {"resnet8": 1, "resnet20": 3}  # blocks in each of three stages
LARGE = {  # blocks in each of four stages, and whether they are bottlenecks
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}
NAMES = (*SMALL, *LARGE)


def choose_stem(name: str, stem: str, width: int | None, image_size: int) -> str:
    """Return the stem, with `auto` resolved. At 224 pixels, cifar takes 16 times the work of imagenet."""
    if stem != "auto" or is_function_name(name):
        return stem
    return "imagenet" if name in LARGE and width is None and image_size >= 64 else "cifar"


def build_model(
    name: str, *, num_classes: int, stem: str = "cifar", width: int | None = None
) -> nn.Module:
    """Return a network that maps (N, 3, H, W) floats to (N, num_classes) logits.

    name: one of NAMES, or package.module:function, which is called with num_classes=N (so timm's
    networks work, too: timm.models:resnet18).
    width: channels of the first stage (default 16 for resnet8/20, 64 for the others).
    Raises UsageError for an unknown name or an impossible combination.
    """
    if is_function_name(name):
        own: nn.Module = named_function("--model", name)(num_classes=num_classes)
        return own
    if name not in NAMES:
        raise UsageError(
            f"--model {name}: unknown network; use {', '.join(NAMES)}, or package.module:function"
        )
    if name in SMALL:
        if stem != "cifar":
            raise UsageError(
                f"--model {name} --stem {stem}: this network is for small images only; use --stem cifar"
            )
        return ResNet([SMALL[name]] * 3, num_classes, width or 16, bottleneck=False)
    blocks, bottleneck = LARGE[name]
    if stem == "cifar":
        return ResNet(list(blocks), num_classes, width or 64, bottleneck)
    if width not in (None, 64):
        raise UsageError(
            f"--width {width} --stem imagenet: torchvision's network has width 64; leave out --width"
        )
    from torchvision import models

    network: nn.Module = getattr(models, name)(num_classes=num_classes)
    return network


def load_weights(model: nn.Module, path: str) -> list[str]:
    """Copy the weights of a .pth file (a state_dict) into the network. Return the names of the network's
    weights that keep their values because the file lacks them or has them in another shape, such as
    those of a new last layer.

    Raises CheckpointError if the file cannot be read or none of its tensors fit.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        found = {name.removeprefix("module."): tensor for name, tensor in found.items()}
    except Exception as error:  # unpickling fails in many ways
        reason = str(error).strip().split("\n")[0][:200]
        raise CheckpointError(f"--weights {path}: {reason}; pass a state_dict") from error
    own = model.state_dict()
    fitting = {n: w for n, w in found.items() if n in own and own[n].shape == w.shape}
    if not fitting:
        raise CheckpointError(
            f"--weights {path}: none of its tensors fit this network; pass weights of the same --model"
        )
    model.load_state_dict(fitting, strict=False)
    return [name for name in own if name not in fitting]


def norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextlib.contextmanager
def fixed_statistics(model: nn.Module, when: bool) -> Iterator[None]:
    """Context manager: if `when`, batch norms use their running statistics, without updates."""
    modules = [module for module in norms(model) if module.training] if when else []
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for module in modules:
            module.train()


def flatten(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all values in one new vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def unflatten(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Split a flat vector into views with the shapes of the tensors `like`."""
    parts = flat.split([tensor.numel() for tensor in like])
    return [part.view_as(tensor) for part, tensor in zip(parts, like, strict=True)]


@torch.no_grad()
def copy(values: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


@contextlib.contextmanager
def replaced(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Context manager: give `tensors` these values, and restore their own at the end."""
    own = [tensor.detach().clone() for tensor in tensors]
    copy(values, tensors)
    try:
        yield
    finally:
        copy(own, tensors)


class ResNet(nn.Module):
    """A ResNet with the CIFAR stem. blocks: the number of blocks in each stage. Each stage but
    the first halves the resolution."""

    def __init__(self, blocks: list[int], num_classes: int, width: int, bottleneck: bool) -> None:
        super().__init__()
        kind = Bottleneck if bottleneck else Basic
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(kind(channels, width * 2**stage, stride))
                channels = width * 2**stage * kind.expansion
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layers(x)
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


class Basic(nn.Module):
    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x), inplace=True)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * 4)
        self.shortcut = _shortcut(channels, width * 4, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.shortcut(x), inplace=True)


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
