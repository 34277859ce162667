"""The lock of an attempt, which the process that takes care of the attempt on this machine holds.

It waits in line for the attempt, starts it, records it and, if the job allows that, restarts the run. At
first, it is the command that starts the attempt. If that command leaves the run, it hands the lock over
to a recorder (follow/detach.py). Each attempt has a lock of its own, because the recorder of an earlier
one may never end if its hosts are gone.

A launch or resume takes the lock before its checks. Until it has reserved the attempt on the hosts, only
the lock shows `kill` that it is there. To cancel the attempt, `kill` removes the lock's file. For the
newest recorded attempt, `kill` leaves a mark, which also cancels its restart. The mark is a file of its
own, because the process that restarts the run keeps saving run.json, and could overwrite a note there.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ..errors import UsageError
from ..own_folders import is_locked, make_folder, state_error, try_lock
from .run_folder import RunFolder, UnreadableRecord, all_folders

_held: dict[Path, IO[str]] = {}  # the locks that this process holds, by path


def take_care(folder: RunFolder, attempt: int) -> None:
    """Lock the attempt unless this process holds the lock.

    Raises UsageError if another process holds it, and StateError if the file system has no locks.
    """
    path = folder.attempt_lock(attempt)
    if path not in _held:
        make_folder(folder.path)
        if not (lock := try_lock(path)):
            run_id = folder.run_id
            what = f"another command on this machine is starting attempt {attempt} of {run_id}"
            remedy = f"once it has started, follow it with `ddpctl attach {run_id}`, or cancel it "
            raise UsageError(what, f"{remedy}with `ddpctl kill {run_id}`")
        _held[path] = lock


def is_cancelled(folder: RunFolder, attempt: int) -> bool:
    """Return whether `kill` has marked the attempt or removed this process's lock of it.

    Listing the folder makes an NFS client see a kill on another machine. Raises StateError if the
    folder cannot be read.
    """
    path = folder.attempt_lock(attempt)
    lock = _held.get(path)
    try:
        if folder.kill_mark(attempt) in folder.path.iterdir():
            return True
        return bool(lock and not os.path.samestat(os.fstat(lock.fileno()), path.stat()))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return lock is not None
        raise state_error(error, "read", path) from None


@contextlib.contextmanager
def locks_released_at_end(folder: RunFolder) -> Iterator[None]:
    """Context manager: at the end, release the locks that `take_care` took in the block.

    If the block has not recorded the run, remove its folder.
    """
    try:
        yield
    finally:
        for path in [path for path in _held if path.parent == folder.path]:
            with contextlib.suppress(OSError):
                if not folder.is_recorded:
                    path.unlink()
                    folder.path.rmdir()
            _held.pop(path).close()


def is_taken_care_of(folder: RunFolder) -> bool:
    """Return whether a process on this machine is taking care of the run's newest attempt."""
    with contextlib.suppress(UnreadableRecord):
        return is_locked(folder.attempt_lock(folder.load().attempt.number))
    return False


@contextlib.contextmanager
def lock_to_hand_over(folder: RunFolder) -> Iterator[IO[str] | None]:
    """Yield the lock of the newest attempt; None if another process holds it.

    If this process did not hold it before, releases it at the end.
    """
    path = folder.attempt_lock(folder.load().attempt.number)
    if path in _held:
        yield _held[path]
    else:
        with try_lock(path) or contextlib.nullcontext() as lock:
            yield lock


def runs_being_prepared() -> list[str]:
    """Return the ids of the runs that a launch or resume on this machine is still checking or pushing."""
    return [folder.run_id for folder in all_folders() if unrecorded_locks(folder)]


def cancel_start(folder: RunFolder) -> bool:
    """Cancel the attempt that a command on this machine is preparing. Return whether there is one.

    Also cancel the newest recorded attempt, if it has not started yet, and its restart.
    """
    with contextlib.suppress(UnreadableRecord, OSError):  # a full disk must not keep the run alive
        if folder.is_recorded:
            folder.kill_mark(folder.load().attempt.number).touch()
    locks = unrecorded_locks(folder)
    for path in locks:
        path.unlink(missing_ok=True)
    return bool(locks)


def unrecorded_locks(folder: RunFolder) -> set[Path]:
    """Return the locks that are held for attempts that are not recorded yet.

    Returns none if the record is unreadable.
    """
    held = {path for path in folder.path.glob(".attempt-*.lock") if is_locked(path)}
    with contextlib.suppress(UnreadableRecord):
        attempts = folder.load().attempts if held and folder.is_recorded else []
        return held - {folder.attempt_lock(each.number) for each in attempts}
    return set()
