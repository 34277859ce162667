"""ddpctl's own folders on this machine, and atomic writes to them."""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import time
import traceback
from pathlib import Path
from typing import IO, Any

from .errors import DdpctlError, StateError, UsageError
from .text import quoted

PROBE_SIZE = 1 << 20  # bytes
LONGEST_RECORD = 32 << 20  # bytes
LOOK_AGAIN = 0.05  # seconds between looks at a lock that another process holds


def home_folder() -> Path:
    home = os.environ.get("HOME", "/")
    if not home.startswith("/"):
        what = f"HOME is {quoted(home)}, which is not an absolute path"
        raise UsageError(what, "set HOME to your home folder")
    try:
        return Path.home()
    except RuntimeError:  # HOME is not set, and this uid has no entry in the user database
        raise UsageError("your home folder is unknown", "set HOME") from None


def expanded(path: str) -> Path:
    """Expand `~` or `~NAME` in a path. Return the path unchanged if that home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise UsageError("the current folder no longer exists", "cd to another folder") from None


def state_home() -> Path:
    """Return $XDG_STATE_HOME/ddpctl, by default ~/.local/state/ddpctl."""
    return _own_folder("XDG_STATE_HOME", ".local/state")


def cache_home() -> Path:
    """Return $XDG_CACHE_HOME/ddpctl, by default ~/.cache/ddpctl."""
    return _own_folder("XDG_CACHE_HOME", ".cache")


def _own_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable, "")  # the XDG specification says to ignore relative paths
    return (Path(base) if base.startswith("/") else home_folder() / default) / "ddpctl"


def make_folder(path: Path) -> Path:
    """Create a folder and return it. Only this user gets access to the state and cache folders.

    If one of these two is a link, the mode of its target does not change, because others may use
    the target. Raises StateError if the folder cannot be created.
    """
    try:
        for home in (state_home(), cache_home()):
            if path.is_relative_to(home):
                home.mkdir(parents=True, exist_ok=True)
                if not home.is_symlink():
                    home.chmod(0o700)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise state_error(error, "created", path) from None
    return path


def read_record(path: Path) -> str:
    """Return the text of a regular file. Raises OSError, or ValueError if it is not UTF-8."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > LONGEST_RECORD:
            raise OSError(errno.EFBIG, f"larger than {LONGEST_RECORD >> 20} MiB", str(path))
        return file.read(LONGEST_RECORD).decode()


def require_writable(folder: Path) -> None:
    """Raise StateError unless PROBE_SIZE bytes can be written to a file in `folder`."""
    make_folder(folder)
    probe = folder / f".probe-{os.getpid()}"
    write_atomically(probe, "x" * PROBE_SIZE)
    probe.unlink()


def write_atomically(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    """Replace the file at `path`. Readers see all of the old or all of the new text."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(6)}")  # cannot be guessed
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise state_error(error, "written", path) from None


def locked(path: Path) -> IO[str]:
    """Wait for the lock on the file at `path`, and hold it until the file is closed.

    Raises the same errors as `try_lock`.
    """
    while not (lock := try_lock(path)):
        time.sleep(LOOK_AGAIN)
    return lock


def try_lock(path: Path) -> IO[str] | None:
    """Lock the file at `path` until it is closed. Return None if another process holds the lock.

    A process that inherits the file also holds the lock. On NFS, the file must be open for writing.
    Raises StateError if the file cannot be opened or if its file system has no locks.
    """
    while True:
        with contextlib.ExitStack() as opened:
            try:
                file = opened.enter_context(path.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if is_locked(path):
                    return None
                time.sleep(LOOK_AGAIN)  # another process has only asked whether it is locked
                continue
            except OSError as error:
                raise state_error(error, "locked", path) from None
            opened.pop_all()
            return file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock at `path`; False on a file system without locks.

    Briefly takes a shared lock. `is_locked` and `try_lock` in other processes allow for that.
    """
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def keep_traceback(error: BaseException) -> str:
    """Write the traceback of `error` to a file. Return `details in PATH`, or the error if that fails."""
    details = "".join(traceback.format_exception(error)).encode(errors="backslashreplace")
    name = f"internal-error-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.txt"
    try:
        path = make_folder(state_home()) / name
        write_atomically(path, details, mode=0o600)
    except DdpctlError:
        return f"{type(error).__name__}: {error}"
    return f"details in {path}"


def write_cache(path: Path, text: str | bytes, *, keep: int | None = None) -> None:
    """Replace a cache file. Ignores failures: they only make the next command slower.

    keep: how many of the newest files in the folder to keep; None for all.
    """
    with contextlib.suppress(StateError, OSError):
        write_atomically(make_folder(path.parent) / path.name, text)
        if keep:
            for old in sorted(path.parent.glob("[!.]*"), key=os.path.getmtime)[:-keep]:
                old.unlink()


def read_cache(path: Path) -> dict[str, Any]:
    """Return the JSON object in a cache file; {} if the file is missing or damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def state_error(error: OSError, action: str, path: Path) -> StateError:
    """Return a one-line error for a file of ddpctl's own. action: what failed, as a participle."""
    what = f"{path}: cannot be {action}: {(error.strerror or str(error)).lower()}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StateError(what, "free up space on that disk")
    remedy = "fix its permissions, or choose another folder"
    remedy += " (XDG_STATE_HOME and XDG_CACHE_HOME move ddpctl's own)"
    return StateError(what, remedy)
