"""Read and check local files: the hosts file, and the files and folders that it names."""

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import HostsFileError
from ..text import LONGEST_PATH, quoted
from .mistakes import Mistake, raise_any
from .model import Job
from .schema import PathKind
from .values import wrong_env_name

MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class LocalPath:
    """A local path in the hosts file."""

    line: int
    key: str
    path: str
    kind: PathKind


def text_of(path: Path) -> str:
    """Read a hosts file. Raises HostsFileError."""
    line, remedy = 0, "give a hosts file (`ddpctl init` writes one)"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            return data.decode("utf-8-sig")
        what = "found more than 1 MB"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        what = f"found byte 0x{error.object[error.start]:02x}, which is not UTF-8"
    except (OSError, ValueError) as error:
        what = f"cannot be read: {_reason(error)}"
    raise HostsFileError([Mistake(line, "", what, remedy).error(str(path))])


def missing(paths: Iterable[LocalPath]) -> Iterator[Mistake]:
    """Yield a mistake for each unusable file or folder, and for each wrong line of an env_file."""
    for local in paths:
        if why := _why_unusable(local):
            what = f"found {quoted(local.path, LONGEST_PATH)}, which {why}"
            # a "file" is a private key, which the user should not create here
            remedy = "correct the path" + (" or create it" if local.kind != "file" else "")
            if local.key.endswith("dataset"):
                remedy = (
                    "correct the path; if the hosts have this folder, remove dataset and write "
                    f'mounts: ["{local.path}:/data:ro"]'
                )
            yield Mistake(local.line, local.key, what, remedy)
        elif local.kind == "env file":
            yield from _env_lines(local)[1]


def _why_unusable(local: LocalPath) -> str:
    path = Path(local.path)
    try:
        mode = path.stat().st_mode
        if local.kind == "folder":
            return "" if stat.S_ISDIR(mode) else "is not a folder on this machine"
        if not stat.S_ISREG(mode):
            return "is not a file on this machine"
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1 if local.kind == "env file" else 1)
        return "is larger than 1 MB" if len(data) > MAX_BYTES else ""
    except FileNotFoundError:
        return "does not exist on this machine"
    except (OSError, ValueError) as error:
        return f"cannot be read ({_reason(error)})"


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


def user_environment(job: Job) -> dict[str, str]:
    """Return the variables of env_file and env. As in `docker run`, env overrides env_file.

    Values may be secret. They go only to the engines; plans and records contain only the names.
    """
    return {**(read_env_file(job.env_file) if job.env_file else {}), **job.env}


def read_env_file(path: str) -> dict[str, str]:
    """Parse the NAME=value lines of a file. Raises HostsFileError, which never contains a value."""
    local = LocalPath(0, "", path, "env file")
    raise_any("job.env_file", list(missing([local])))
    return _env_lines(local)[0]


def _env_lines(local: LocalPath) -> tuple[dict[str, str], list[Mistake]]:
    """Parse the file. Mistakes name line numbers and variables, but no values, which are secret."""
    values: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for number, raw in enumerate(Path(local.path).read_bytes().split(b"\n"), 1):
        line = raw.removesuffix(b"\r").decode("utf-8", "replace")
        name, equals, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not line.strip() or name.startswith("#"):
            continue
        found, remedy = f"the name {quoted(name)}", wrong_env_name(name)
        if not equals or "\ufffd" in line or "\0" in line:
            found, remedy = "a line that is not NAME=value in UTF-8", "correct or remove it"
        if remedy:
            key = f"{local.key}: {quoted(local.path, LONGEST_PATH)} line {number}"
            mistakes.append(Mistake(local.line, key.removeprefix(": "), f"found {found}", remedy))
        values[name] = value
    return values, mistakes
