"""Files that are made once, and what a process leaves that was killed while it made one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.push.make_once import make_once


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    draft = tmp_path / "images" / ".abcdefgh" / "image.tar"
    draft.parent.mkdir(parents=True)
    draft.write_text("20 GB of an image")
    make_once(tmp_path / "images" / "a.sif", lambda path: path.touch())
    assert {path.name for path in draft.parents[1].iterdir()} == {".lock", "a.sif"}


def test_what_a_killed_process_left_and_cannot_be_removed_does_not_stop_a_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a folder of mode 555 in an unpacked image."""
    (tmp_path / "images" / ".abcdefgh" / "rootfs").mkdir(parents=True)

    rmdir = os.rmdir

    def refuse(path: str, **options: int) -> None:
        if path == "rootfs":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        rmdir(path, **options)

    monkeypatch.setattr(os, "rmdir", refuse)
    make_once(tmp_path / "images" / "a.sif", lambda path: path.touch())
    assert (tmp_path / "images" / "a.sif").exists()
