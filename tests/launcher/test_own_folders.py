"""The folders of this machine that ddpctl writes: who may read them, and what happens if it cannot."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

import pytest

from launcher.errors import StateError, UsageError
from launcher.own_folders import (
    cache_home,
    is_locked,
    locked,
    make_folder,
    state_home,
    try_lock,
    write_atomically,
    write_cache,
)
from launcher.supervisor.journal import publish

ROOT = Path(__file__).parents[2]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "ddpctl"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_this_user_enters_the_state_folder(state: Path) -> None:
    assert make_folder(state / "runs" / "x" / "logs").is_dir()
    assert mode(state) == 0o700
    state.chmod(0o755)  # as older versions left it
    make_folder(state / "runs" / "y")
    assert mode(state) == 0o700


def test_what_a_link_in_place_of_the_state_folder_leads_to_keeps_its_mode(
    state: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    state.parent.mkdir()
    state.symlink_to(shared)
    make_folder(state / "runs")
    assert mode(shared) == 0o775 and (shared / "runs").is_dir()


def test_other_folders_keep_their_mode(state: Path, tmp_path: Path) -> None:
    make_folder(tmp_path / "out" / "sub")
    assert not state.exists()


def test_a_state_folder_that_cannot_be_made_is_one_line(state: Path) -> None:
    state.parent.write_text("a file")
    with pytest.raises(StateError, match=r"cannot be created: .*; .*XDG_STATE_HOME") as caught:
        make_folder(state / "runs")
    assert "\n" not in str(caught.value)


def test_a_full_disk_is_one_line_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(StateError, match="no space left on device; free up space on that disk"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_locks_work_on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS turns flock() into fcntl() locks: an exclusive one needs write access."""
    flock = fcntl.flock

    def on_nfs(file: TextIO, how: int) -> None:
        access = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if access == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", on_nfs)
    lock = tmp_path / "lock"
    assert not is_locked(lock)
    with locked(lock):
        assert is_locked(lock)
    assert not is_locked(lock)


def test_those_who_ask_whether_a_lock_is_held_do_not_see_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, lock = fcntl.flock, tmp_path / "lock"
    answers = []

    def asked_by_two(file: TextIO, how: int) -> None:
        flock(file, how)
        monkeypatch.setattr(fcntl, "flock", flock)
        answers.append(is_locked(lock))

    lock.touch()
    monkeypatch.setattr(fcntl, "flock", asked_by_two)
    answers.append(is_locked(lock))
    assert answers == [False, False]


def test_who_asks_whether_a_lock_is_held_does_not_keep_it_from_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, lock = fcntl.flock, tmp_path / "lock"

    def while_another_asks(file: TextIO, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        with lock.open() as other:
            flock(other, fcntl.LOCK_SH)
            flock(file, how)

    monkeypatch.setattr(fcntl, "flock", while_another_asks)
    taken = try_lock(lock)
    assert taken, "it gave up"
    with taken:
        assert try_lock(lock) is None


def test_a_lock_about_which_one_cannot_ask_is_tried_again_only_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, flock = [], fcntl.flock

    def held_without_answer(file: TextIO, how: int) -> None:
        tries.append(how)
        assert len(tries) < 9, "no pause"
        error = errno.ENOLCK if how & fcntl.LOCK_SH else errno.EWOULDBLOCK
        raise OSError(error, os.strerror(error))

    def pause(_: float) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)

    monkeypatch.setattr(fcntl, "flock", held_without_answer)
    monkeypatch.setattr(time, "sleep", pause)
    with try_lock(tmp_path / "lock") or pytest.fail("it gave up"):
        assert len(tries) == 2


def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lustre is unless it is mounted with -o flock."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    lock = tmp_path / "lock"
    what = r"lock: cannot be locked: function not implemented; .*XDG_STATE_HOME"
    with pytest.raises(StateError, match=what), locked(lock):
        pass
    assert not is_locked(lock)


def test_an_unknown_home_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with pytest.raises(UsageError, match="set HOME"):
        state_home()


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_folder_that_is_no_absolute_path_is_one_line(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(UsageError, match=r"HOME is .*, which is not an absolute path; set HOME"):
        state_home()


@pytest.mark.parametrize("argv", [["launch", "-H", "local", "--dry-run", "--workdir", "."], ["ps"]])
def test_a_current_folder_that_was_removed(tmp_path: Path, argv: list[str]) -> None:
    line = [sys.executable, "-m", "launcher", *argv]
    done = subprocess.run(
        ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")},
    )
    assert "Traceback" not in done.stderr
    if "launch" in argv:
        assert done.returncode == 2
        assert "the current folder no longer exists; cd to another folder" in done.stderr


def test_only_this_user_may_read_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has names and digests of all files of workdirs, even of a .env."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write_cache(cache_home() / "trees" / "x.json", "{}")
    assert cache_home().stat().st_mode & 0o777 == 0o700


def test_a_link_of_another_user_is_not_written_through(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("mine")
    for name in (f".page.html.{os.getpid()}", ".x.prom.new"):
        (tmp_path / name).symlink_to(own)
    write_atomically(tmp_path / "page.html", "text")
    publish(str(tmp_path / "x.prom"), "text")
    assert own.read_text() == "mine"
    assert (tmp_path / "x.prom").stat().st_mode & 0o777 == 0o644


def test_a_cache_keeps_the_files_that_were_written_last(tmp_path: Path) -> None:
    for number in range(5):
        write_cache(tmp_path / f"{number}.json", "{}", keep=3)
        os.utime(tmp_path / f"{number}.json", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json", "3.json", "4.json"]
