"""PyPI has only torchvision's CUDA build. Beside a CPU torch it imports once two operators exist."""

import contextlib
import importlib.util
from pathlib import Path

import torch

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def needed() -> bool:
    found = importlib.util.find_spec("torchvision")
    if torch.version.cuda is not None or not found or not found.origin:
        return False
    return "+cu" in (Path(found.origin).parent / "version.py").read_text()


for _name in ("torchvision::nms", "torchvision::qnms") if needed() else ():
    with contextlib.suppress(RuntimeError):  # defined by an earlier import of this file
        torch.library.define(_name, BOXES)
