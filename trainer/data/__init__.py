"""A run's images, from the source that --data names, behind one protocol: `Images`."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ..config import Config, is_function_name
from ..errors import DataError
from . import cifar, fetch
from .images import Batch, Images
from .own import load_own
from .resident import Resident
from .synthetic import synthetic

__all__ = ["Batch", "Images", "Resident", "load_dataset"]


def load_dataset(config: Config, device: torch.device) -> Images:
    """Return the images that --data names. Raises DataError."""
    if is_function_name(config.data):
        return load_own(config, device)
    if config.data == "synthetic":
        classes, size = config.num_classes or 10, config.synthetic_size
        arrays = synthetic(config.synthetic_train, config.synthetic_test, classes, size)
        return Resident(arrays, config, device)
    path = Path(config.data) if config.data != "download" else downloaded()
    try:
        return from_folder(path, config, device)
    except OSError as error:  # as for a folder that this user may not read
        where = error.filename or path
        raise DataError(
            f"--data {path}: {where}: {error.strerror or error}; make it readable, or pass another folder"
        ) from error


def from_folder(path: Path, config: Config, device: torch.device) -> Images:
    """Return the images in a folder. Raises DataError or OSError."""
    if not path.is_dir():
        raise DataError(
            f"--data {path}: no such folder; pass a folder, `--data synthetic` or `--data download`"
        )
    if folder := cifar.find(path):
        arrays = cifar.load(folder)
        if config.num_classes is not None and arrays.num_classes > config.num_classes:
            raise DataError(
                f"{folder}: {arrays.num_classes} classes, but --num-classes {config.num_classes}; "
                "leave out --num-classes"
            )
        return Resident(arrays, config, device)
    if (path / "train").is_dir():  # a tree or a pack
        from .imagefolder import Pictures  # needs PIL
        from .loader import Loaded

        return Loaded(Pictures(path, config), config, device)
    raise DataError(
        f"--data {path}: not a dataset; pass a pack (see `trainer data pack`) or a folder that "
        "has cifar-10-batches-py, cifar-100-python, or train/ and val/ with one folder per class"
    )


def downloaded() -> Path:
    """Return the cache folder with CIFAR-10. The first process on this machine downloads it."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "ddpctl-trainer"
    fetch.fetch("cifar10", folder)
    return folder
