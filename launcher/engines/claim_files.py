"""Claims of processes on this machine, as files in a folder that all its users share.

A claim is valid while a process holds a lock on its file: first the launch that made it, then the
node's supervisor, which inherits the lock. So a claim ends when its process ends, for whatever
reason. No clock is needed.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import CommandFailed
from .status import ContainerState, NodeStatus, read_status

FOLDER = Path("/tmp/ddpctl-claims")
# A claim's file is named NAME.STATE.
STATES = (ContainerState.WAITING, ContainerState.CREATED, ContainerState.RUNNING)
LARGEST = 65536  # bytes of one file


held: dict[str, int] = {}  # file descriptors that keep this process's claims alive, by name


def publish(host: str, name: str, state: ContainerState, labels: Mapping[str, str]) -> None:
    """Create a claim and hold its lock until `started` or `remove` is called."""
    scratch = FOLDER / f".{name}.{os.getpid()}"
    try:
        if not FOLDER.exists():
            FOLDER.mkdir(exist_ok=True)
            FOLDER.chmod(0o1777)
        if FOLDER.is_symlink():
            raise NotADirectoryError(None, "is a link", str(FOLDER))
        scratch.unlink(missing_ok=True)
        file = os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, json.dumps(dict(labels)).encode())
        os.fchmod(file, 0o644)
        scratch.rename(FOLDER / f"{name}.{state}")
    except OSError as error:
        raise CommandFailed(
            f"{FOLDER}, where runs claim GPUs, cannot be used: {error.strerror}",
            "ask root to remove it",
            host=host,
        ) from None
    held[name] = file


def started(name: str) -> None:
    """Leave the claim to the supervisor, which has inherited its lock."""
    _, created, running = (FOLDER / f"{name}.{state}" for state in STATES)
    created.rename(running)
    os.close(held.pop(name))


def remove(name: str) -> None:
    for state in STATES:
        with contextlib.suppress(OSError):
            (FOLDER / f"{name}.{state}").unlink()
    if name in held:
        os.close(held.pop(name))


def claims(host: str) -> Iterator[NodeStatus]:
    """Yield the valid claims. Deletes this user's stale ones."""
    for path in sorted(FOLDER.glob("*.*")):
        state = path.suffix.removeprefix(".")
        with contextlib.suppress(OSError, ValueError):
            if state in STATES and (found := _read(path)):
                labels, created = found
                seen = NodeStatus(state=ContainerState(state), created=created, started=created)
                if status := read_status(host, path.stem, labels, seen):
                    yield status


def _read(path: Path) -> tuple[object, float] | None:
    """Return a claim's labels and its time in unix seconds.

    If no process holds its lock, delete the file and return None.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            return None
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink()
        return None
    except BlockingIOError:
        return json.loads(os.read(file, LARGEST)), about.st_mtime
    finally:
        os.close(file)
