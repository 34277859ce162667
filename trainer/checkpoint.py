"""Checkpoints on disk: at every instant there is a complete one, and damage is always noticed.

    <dir>/ckpt/step-00001234/state.pt    tensors and plain values, torch.load(weights_only=True)
                             meta.json   step, epoch, settings, versions, for people and tools
                             MANIFEST    sha256 of both, written last; `sha256sum -c` reads it
    <dir>/ckpt/latest                    name of the newest one, for people; nothing relies on it

A save writes a hidden folder, syncs its files, renames it and syncs the parent, so a folder called
step-* is complete unless the disk lied. The hashes are for that case: torch.load reads a weight with
a flipped bit without any error.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.errors import CheckpointError

FILES = ("state.pt", "meta.json")
NAME = re.compile(r"step-(\d{8,})")
LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint. Equal `identity` means equal bytes."""

    path: Path
    step: int
    identity: str


def save(root: Path, state: Mapping[str, Any], meta: Mapping[str, Any], keep: int) -> Saved:
    """Write a checkpoint under root/ckpt and drop all but the `keep` newest.

    Raises CheckpointError if it cannot be written; earlier ones are untouched.
    """
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    files = {
        "state.pt": buffer.getbuffer(),
        "meta.json": memoryview(json.dumps(meta, indent=2).encode() + b"\n"),
    }
    saved = publish(root, int(meta["step"]), files)
    prune(root, keep)
    return saved


def publish(root: Path, step: int, files: Mapping[str, memoryview | bytes]) -> Saved:
    """Write files to disk as checkpoint `step`, all or nothing."""
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
        if final.exists():
            _remove(final)
        temporary.rename(final)
        sync_folder(folder)
        replace_file(folder / "latest", f"{final.name}\n".encode())
    except OSError as error:
        with contextlib.suppress(OSError):
            _remove(temporary)
        raise CheckpointError(
            f"cannot write {final}: {error.strerror or error}: earlier checkpoints are intact"
        ) from error
    return Saved(final, step, hashlib.sha256(manifest.encode()).hexdigest())


def verify(path: Path) -> Saved:
    """The checkpoint in folder `path`, once all of it has been read and hashed.

    Raises CheckpointError saying what is wrong.
    """
    name = NAME.fullmatch(path.name)
    if not name:
        raise CheckpointError(f"{path}: not a checkpoint folder (step-NNNNNNNN)")
    try:
        manifest = (path / "MANIFEST").read_bytes()
        wanted = dict(_entries(manifest.decode("ascii")))
        if set(wanted) != set(FILES):
            raise CheckpointError(f"{path}: MANIFEST is damaged")
        for file, digest in wanted.items():
            if _sha256(path / file) != digest:
                raise CheckpointError(f"{path}: {file} is damaged (sha256 differs)")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "MANIFEST is damaged"
        raise CheckpointError(f"{path}: {reason}") from error
    return Saved(path, int(name[1]), hashlib.sha256(manifest).hexdigest())


def folders(root: Path) -> list[Path]:
    """All step-* folders under root/ckpt, highest step first, intact or not."""
    found = [
        (int(match[1]), path)
        for path in (root / "ckpt").glob("step-*")
        if (match := NAME.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found, reverse=True)]


def newest_intact(root: Path) -> tuple[Saved | None, list[str]]:
    """The newest intact checkpoint, and what is wrong with each newer one."""
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
    """(state, meta) from the bytes of a verified checkpoint, tensors on the CPU.

    Raises CheckpointError if `save` did not write them. Code in them is never run.
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
    """Remove what an interrupted save or removal left. Call it before the first save only."""
    for path in (root / "ckpt").glob(".*-step-*"):
        shutil.rmtree(path, ignore_errors=True)


def set_aside(path: Path, prefix: str) -> Path | None:
    """Rename a file or folder to `<prefix>-<name>`, numbered if that exists. None if absent."""
    if not path.exists():
        return None
    for number in range(1, 10_000):
        target = path.with_name(f"{prefix}-{path.name}" + (f"-{number}" if number > 1 else ""))
        if not target.exists():
            return path.rename(target)
    raise CheckpointError(f"{path}: too many earlier ones beside it: remove some")


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Replace a file atomically: readers see the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_synced(temporary, content)
    temporary.replace(path)
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
    """Rename first, so that a half-removed folder is not called step-*."""
    if path.exists():
        hidden = path.with_name(f".gone-{path.name.lstrip('.')}-{os.getpid()}")
        path.rename(hidden)
        shutil.rmtree(hidden)


def _entries(manifest: str) -> list[tuple[str, str]]:
    if not manifest.endswith("\n"):
        raise ValueError("truncated")
    entries = []
    for line in manifest[:-1].split("\n"):
        match = LINE.fullmatch(line)
        if not match:
            raise ValueError(line)
        entries.append((match[2], match[1]))
    return entries


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
