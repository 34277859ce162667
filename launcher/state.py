"""Where this machine keeps ddpctl's own files, and how one is replaced whole."""

from __future__ import annotations

import os
from pathlib import Path


def state_home() -> Path:
    """$XDG_STATE_HOME/ddpctl, by default ~/.local/state/ddpctl."""
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    return home / "ddpctl"


def cache_home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "ddpctl"


def write_atomically(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
