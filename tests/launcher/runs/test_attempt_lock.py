"""The lock of an attempt, on a state folder that other machines share over NFS."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import StateError
from launcher.runs.attempt_lock import is_cancelled, locks_released_at_end, take_care
from launcher.runs.run_folder import RunFolder, run_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    """A run whose next attempt this process is preparing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = run_folder("20261127-101500-ab12")
    with locks_released_at_end(folder):
        take_care(folder, 2)
        assert not is_cancelled(folder, 2)
        yield folder


@pytest.mark.parametrize("kill", ["removes the lock", "leaves a mark"])
def test_a_kill_on_another_machine_is_seen_once_the_folder_has_been_listed(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, kill: str
) -> None:
    def iterdir(path: Path) -> Iterator[Path]:
        """Show this machine what another one has done, as an NFS client does."""
        if kill == "removes the lock":
            folder.attempt_lock(2).unlink()
        else:
            folder.kill_mark(2).touch()
        return path.glob("*")

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert is_cancelled(folder, 2)


def test_a_lock_whose_file_another_machine_has_removed_is_lost(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "fstat", stale)
    assert is_cancelled(folder, 2)
    assert not is_cancelled(folder, 3)  # an attempt that this process has not locked


def test_a_folder_that_cannot_be_read_is_one_line(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fstat", fails)
    with pytest.raises(StateError, match="cannot be read: input/output error"):
        is_cancelled(folder, 2)
