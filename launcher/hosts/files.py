"""Read and check local files: the hosts file, and the files and folders that it names."""

import os
import stat
from pathlib import Path

from ..text import LONGEST_PATH, quoted
from .job import Job
from .mistakes import Mistake, Wrong, hosts_file_error
from .values import wrong_env_name

MAX_BYTES = 1_000_000


def text_of(path: Path) -> str:
    """Return the text of a hosts file. Raises Wrong if it is unreadable, too large or not UTF-8."""
    line, remedy = 0, "pass a hosts file (`ddpctl init` writes one)"
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            os.set_blocking(file.fileno(), True)  # so that a pipe without a writer reads as empty
            data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            return data.decode("utf-8-sig")
        what = "found more than 1 MB"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        what = f"found byte 0x{error.object[error.start]:02x}, which is not UTF-8"
    except (OSError, ValueError) as error:
        what = f"cannot be read: {_reason(error)}"
    raise Wrong(Mistake(line, "", what, remedy))


def check_path(path: str, kind: str, line: int = 0) -> None:
    """Raise Wrong if the file or folder is unusable, or if an env_file has wrong lines.

    kind: one of PATHS in values.py.
    """
    if why := _why_unusable(Path(path), kind):
        # a "file" may be a private key, which the user should not create here
        remedy = "correct the path" + (" or create it" if kind != "file" else "")
        if kind == "dataset":
            remedy = (
                "correct the path; if the hosts have this folder, remove `dataset:` and write "
                f'mounts: ["{path}:/data:ro"]'
            )
        raise Wrong(Mistake(line, "", f"found {quoted(path, LONGEST_PATH)}, which {why}", remedy))
    if kind == "env file":
        _variables(path, line)


def _why_unusable(path: Path, kind: str) -> str:
    try:
        mode = path.stat().st_mode
        if kind in ("folder", "dataset"):
            return "" if stat.S_ISDIR(mode) else "is not a folder on this machine"
        if not stat.S_ISREG(mode):
            return "is not a file on this machine"
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1 if kind == "env file" else 1)
        return "is larger than 1 MB" if len(data) > MAX_BYTES else ""
    except FileNotFoundError:
        return "does not exist on this machine"
    except (OSError, ValueError) as error:
        return f"cannot be read ({_reason(error)})"


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


def user_env(job: Job) -> dict[str, str]:
    """Return the variables of env_file and env. As in `docker run`, env overrides env_file.

    Values may be secret. They go only to the engines; plans and records contain only the names.
    Raises HostsFileError if env_file is wrong; the error never contains a value.
    """
    if not job.env_file:
        return dict(job.env)
    try:
        check_path(job.env_file, "env file")
        return {**_variables(job.env_file, 0), **job.env}
    except Wrong as error:
        raise hosts_file_error("job.env_file", error.mistakes) from None


def _variables(path: str, line: int) -> dict[str, str]:
    """Return the variables in an env_file. Raises Wrong with line numbers and names, never a value."""
    values: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for number, raw in enumerate(Path(path).read_bytes().split(b"\n"), 1):
        text = raw.removesuffix(b"\r").decode("utf-8", "replace")
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not text.strip() or name.startswith("#"):
            continue
        found, remedy = f"the name {quoted(name)}", wrong_env_name(name)
        if not equals or "\ufffd" in text or "\0" in text:
            found, remedy = "a line that is not NAME=value in UTF-8", "correct or remove it"
        if remedy:
            what = f"{quoted(path, LONGEST_PATH)} line {number}: found {found}"
            mistakes.append(Mistake(line, "", what, remedy))
        values[name] = value
    if mistakes:
        raise Wrong(*mistakes)
    return values
