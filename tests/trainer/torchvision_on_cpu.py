"""PyPI has only torchvision's CUDA build. Beside a CPU torch it imports once two operators exist."""

from __future__ import annotations

import contextlib

import torch

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

for _name in ("torchvision::nms", "torchvision::qnms"):
    with contextlib.suppress(RuntimeError):  # a torchvision that fits torch has them already
        torch.library.define(_name, BOXES)
