"""Files that are made once, and what a process leaves that was killed while it made one."""

from __future__ import annotations

from pathlib import Path

from launcher.push.make_once import make_once


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    draft = tmp_path / "images" / ".abcdefgh" / "image.tar"
    draft.parent.mkdir(parents=True)
    draft.write_text("20 GB of an image")
    make_once(tmp_path / "images" / "a.sif", lambda path: path.touch())
    assert {path.name for path in draft.parents[1].iterdir()} == {".lock", "a.sif"}
