"""Flags of older DDP scripts, and what they stand for today."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..errors import UsageError


def add_older_spellings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("older spellings", "torchrun's environment wins over these")
    for name in ("init-method", "rank", "world-size", "local-rank", "ip", "port"):
        group.add_argument(*both_spellings([f"--{name}"]), metavar="S", help=argparse.SUPPRESS)
    group.add_argument(
        *both_spellings(["--enable-gpu"]), metavar="BOOL", help="true: --device auto, false: cpu"
    )
    group.add_argument(
        *both_spellings(["--custom-data"]), metavar="BOOL", help="true: --data synthetic"
    )
    group.add_argument(*both_spellings(["--sync-bn"]), action="store_true", help="--bn sync")
    group.add_argument(*both_spellings(["--gpu", "--gpu-id"]), dest="gpu", help=argparse.SUPPRESS)


def take_older_spellings(given: dict[str, Any]) -> dict[str, str]:
    """Remove the older spellings from `given`. Returns those about ranks as environment variables.

    --rank and --world-size count nodes, as in the scripts that have them: NODE_RANK and NNODES.
    """
    if "gpu" in given:
        raise UsageError("--gpu: set CUDA_VISIBLE_DEVICES instead, or `gpus:` in the hosts file")
    if "enable_gpu" in given:
        given.setdefault("device", "auto" if strict_bool(given.pop("enable_gpu")) else "cpu")
    if "custom_data" in given and strict_bool(given.pop("custom_data")):
        given.setdefault("data", "synthetic")
    if given.pop("sync_bn", False):
        given.setdefault("bn", "sync")
    variables = {}
    for name, variable in (
        ("rank", "NODE_RANK"),
        ("world_size", "NNODES"),
        ("local_rank", "LOCAL_RANK"),
        ("ip", "MASTER_ADDR"),
        ("port", "MASTER_PORT"),
        ("init_method", "INIT_METHOD"),
    ):
        if name in given:
            variables[variable] = str(given.pop(name))
    method = variables.pop("INIT_METHOD", "env://")
    if method.startswith("tcp://"):
        address, _, port = method.removeprefix("tcp://").rpartition(":")
        variables |= {"MASTER_ADDR": address.strip("[]"), "MASTER_PORT": port}
    elif method.startswith("file://"):
        variables["TRAINER_STORE"] = method.removeprefix("file://")
    elif method != "env://":
        raise UsageError(f"--init-method {method}: use tcp://ADDRESS:PORT, file://PATH or env://")
    return variables


def strict_bool(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise UsageError(f"{text!r} is neither true nor false")


def both_spellings(names: Sequence[str]) -> list[str]:
    """Each name, and each long one also with underscores."""
    both = [n for name in names for n in (name, name[:2] + name[2:].replace("-", "_"))]
    return list(dict.fromkeys(both))
