"""Checkpoints on disk: after the first save, a complete one always exists, and damage is detected.

    <dir>/ckpt/step-00001234/state.pt    tensors and plain values, torch.load(weights_only=True)
                             meta.json   step, epoch, settings, versions, for people and tools
                             MANIFEST    sha256 of both, written last, for `sha256sum -c`
    <dir>/ckpt/latest                    name of the newest step-*, for people; nothing relies on it

A save writes a hidden folder, syncs its files, renames it and syncs the parent, so a folder called
step-* is complete unless the disk lost data. The hashes catch that case: torch.load would read a
weight with a flipped bit without any error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import CheckpointError

FILES = ("state.pt", "meta.json")
NAME = re.compile(r"step-(\d{8,})")
EXPORT = re.compile(r"epoch_(\d+)\.pth")
MANIFEST = re.compile(r"([0-9a-f]{64})  state\.pt\n([0-9a-f]{64})  meta\.json\n")


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint. Equal `identity` means equal bytes."""

    path: Path
    step: int
    identity: str


Written = tuple[Saved, float]  # a checkpoint and the seconds that writing it took


def save(root: Path, state: Mapping[str, Any], meta: Mapping[str, Any], keep: int) -> Written:
    """Write a checkpoint under root/ckpt and delete all but the `keep` newest.

    Raises CheckpointError if it cannot be written; earlier ones stay untouched.
    """
    began = time.perf_counter()
    files = {
        "state.pt": encoded(state),
        "meta.json": memoryview(json.dumps(meta, indent=2).encode() + b"\n"),
    }
    saved = publish(root, int(meta["step"]), files)
    prune(root, keep)
    return saved, time.perf_counter() - began


def encoded(value: Mapping[str, Any]) -> memoryview:
    """Return the bytes that torch.save writes. If torch.save wrote the file itself, it would hide why
    a write failed."""
    buffer = io.BytesIO()
    torch.save(dict(value), buffer)
    return buffer.getbuffer()


def publish(root: Path, step: int, files: Mapping[str, memoryview | bytes]) -> Saved:
    """Write files to disk as checkpoint `step`, all or nothing. Return the checkpoint."""
    folder = root / "ckpt"
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        temporary.mkdir()
        for name, content in files.items():
            write_synced(temporary / name, content)
        manifest = "".join(
            f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()
        )
        write_synced(temporary / "MANIFEST", manifest.encode())
        sync_folder(temporary)
        earlier = _hidden(final)  # an earlier save of the same step
        temporary.rename(final)
        sync_folder(folder)
        shutil.rmtree(earlier, ignore_errors=True)
        replace_file(folder / "latest", f"{final.name}\n".encode())
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove(temporary)
        raise CheckpointError(
            f"cannot write {final}: {error.strerror or error}; earlier checkpoints are intact"
        ) from error
    return Saved(final, step, hashlib.sha256(manifest.encode()).hexdigest())


def snapshot(value: Any) -> Any:
    """Return a copy of nested dicts and lists, with their tensors copied to CPU memory. Tensors on
    a GPU are copied to pinned memory asynchronously, so call `synchronize` before reading
    them."""
    if isinstance(value, torch.Tensor):
        target = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
        return target.copy_(value.detach(), non_blocking=True)
    if isinstance(value, dict):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(snapshot(item) for item in value)
    return value


def synchronize(device: torch.device) -> None:
    """Wait until snapshots have arrived in CPU memory."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def write_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a state_dict atomically. Raises CheckpointError."""
    try:
        replace_file(path, encoded(weights))
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}") from error


def write_exports(out: Path, names: Sequence[str], weights: Mapping[str, torch.Tensor]) -> None:
    """Write a state_dict under these names; epoch_N.pth replaces the files of earlier epochs."""
    for name in names:
        write_weights(out / name, weights)
        if newest := EXPORT.fullmatch(name):
            for path in out.glob("epoch_*.pth"):
                number = EXPORT.fullmatch(path.name)
                if number and int(number[1]) < int(newest[1]):
                    path.unlink(missing_ok=True)


def verify(path: Path) -> Saved:
    """Return the checkpoint in folder `path`, after reading and hashing all of it.

    Raises CheckpointError, which says what is wrong.
    """
    name = NAME.fullmatch(path.name)
    if not name:
        raise CheckpointError(f"{path}: not a checkpoint folder, whose name is step- and digits")
    try:
        manifest = (path / "MANIFEST").read_bytes()
        digests = MANIFEST.fullmatch(manifest.decode("ascii", errors="replace"))
        if not digests:
            raise CheckpointError(f"{path}: MANIFEST is damaged")
        for file, digest in zip(FILES, digests.groups(), strict=True):
            if _sha256(path / file) != digest:
                raise CheckpointError(f"{path}: {file} is damaged (sha256 differs)")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    return Saved(path, int(name[1]), hashlib.sha256(manifest).hexdigest())


def folders(root: Path) -> list[Path]:
    """Return all step-* folders under root/ckpt, damaged or not, highest step first."""
    steps = [
        (int(match[1]), path)
        for path in (root / "ckpt").glob("step-*")
        if (match := NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(steps, reverse=True)]


def newest_intact(root: Path) -> tuple[Saved | None, list[str]]:
    """Return the newest intact checkpoint, if there is one, and what is wrong with each newer one."""
    problems: list[str] = []
    for path in folders(root):
        try:
            return verify(path), problems
        except CheckpointError as error:
            problems.append(str(error))
    return None, problems


def read(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FILES}


def decode(files: Mapping[str, bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (state, meta) from the bytes of a verified checkpoint, tensors on the CPU.

    Raises CheckpointError if the bytes were not written by `save`. Never runs code in them.
    """
    try:
        state = torch.load(io.BytesIO(files["state.pt"]), map_location="cpu", weights_only=True)
        return state, json.loads(files["meta.json"])
    except Exception as error:  # unpickling fails in many ways
        reason = str(error).strip().split("\n")[0][:200]
        raise CheckpointError(f"not a checkpoint of this trainer: {reason}") from error


def prune(root: Path, keep: int) -> None:
    for path in folders(root)[keep:]:
        _remove(path)


def clean(root: Path) -> None:
    """Remove what an interrupted save or removal left behind. Call this only before the first save."""
    for path in (root / "ckpt").glob(".*-step-*"):
        shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path, prefix: str) -> Path | None:
    """Rename a file or folder to `<prefix>-<name>`, with a number if that name is taken. Return the
    new path, or None if there is nothing to rename."""
    if not path.exists():
        return None
    for number in range(1, 10_000):
        target = path.with_name(f"{prefix}-{path.name}" + (f"-{number}" if number > 1 else ""))
        if not target.exists():
            return path.rename(target)
    raise CheckpointError(f"{path}: too many old copies beside it; remove some")


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Replace a file atomically: readers see either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_synced(temporary, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_synced(path: Path, content: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a folder.

    If files stay behind, as on NFS while another process reads them, the run goes on, and `clean`
    removes them later.
    """
    shutil.rmtree(_hidden(path), ignore_errors=True)


def _hidden(path: Path) -> Path:
    """Rename a folder, if it exists, so that it is no longer called step-*. Return the new path."""
    hidden = path.with_name(f".gone-{path.name.lstrip('.')}-{os.getpid()}")
    if path.exists():
        path.rename(hidden)
    return hidden


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
