"""torchvision beside a CPU torch: PyPI has only its CUDA build, which needs two names defined."""

from __future__ import annotations

import contextlib

import torch

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

for _name, _signature in (
    ("torchvision::nms", BOXES),
    ("torchvision::qnms", BOXES),
):
    with contextlib.suppress(RuntimeError):  # a torchvision that fits has them already
        torch.library.define(_name, _signature)
