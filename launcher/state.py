"""The folders of this machine that ddpctl keeps its own files in, and how it replaces a file."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.errors import UsageError


def home_folder() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # no HOME, and this uid has no entry in the user database
        raise UsageError("your home folder is unknown: set HOME") from None


def current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the current folder no longer exists: cd to another one") from None


def state_home() -> Path:
    """$XDG_STATE_HOME/ddpctl, by default ~/.local/state/ddpctl."""
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if base.startswith("/") else home_folder() / ".local" / "state"
    return home / "ddpctl"


def cache_home() -> Path:
    """$XDG_CACHE_HOME/ddpctl, by default ~/.cache/ddpctl."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home_folder() / ".cache") / "ddpctl"


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
