"""Datasets as `--data bad_data:NAME` names them. Most of them do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from trainer.config import Config
from trainer.data import Resident
from trainer.data.synthetic import synthetic


class Made:
    """16 samples, or as many as told, from a function of their number."""

    classes = ("a", "b")

    def __init__(self, make: Callable[[int], Any], size: int = 16, classes: int = 2) -> None:
        self.make, self.size = make, size
        self.classes = ("a", "b", *"c" * (classes - 2))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


def both(make: Callable[[int], Any], size: int = 16) -> tuple[Made, Made]:
    return Made(make, size), Made(make, size)


def one_set() -> Any:
    return (Made(lambda n: (torch.zeros(3, 8, 8), 0)),)


def empty() -> Any:
    return Made(lambda n: None), []


def no_classes() -> Any:
    samples = [(torch.zeros(3, 8, 8), 0)]
    return samples, samples


def bytes_() -> Any:
    return both(lambda n: (np.zeros((3, 8, 8), np.uint8), 0))


def flat() -> Any:
    return both(lambda n: (torch.zeros(8, 8), 0))


def pictures() -> Any:
    return both(lambda n: (Image.new("RGB", (8, 8)), 0))


def lonely() -> Any:
    return both(lambda n: torch.zeros(3, 8, 8))


def out_of_range() -> Any:
    return both(lambda n: (torch.zeros(3, 8, 8), 2))


def negative() -> Any:
    return both(lambda n: (torch.zeros(3, 8, 8), -1))


def ragged() -> Any:
    return both(lambda n: (torch.zeros(3, 8, 9 if n == 7 else 8), 0), 40)


def late() -> Any:
    return both(lambda n: (torch.zeros(3, 8, 8), 9 if n == 7 else 1), 40)


def numbered() -> Any:
    """Every image and every label tells its number."""
    train = Made(lambda n: (np.full((1, 2, 2), n, np.float64), np.int64(15 - n)), 16, 16)
    return train, Made(lambda n: (torch.full((1, 2, 2), 100.0 + n), torch.tensor(n)), 5, 16)


def images() -> Any:
    return Resident(synthetic(20, 10, 10, 8), Config(), torch.device("cpu"))
