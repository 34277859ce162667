"""The effects of reading a hosts file: its bytes, and whether the files it names are there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .job_values import env_name
from .problems import Problems, shown
from .values import At, Place, Reading

MAX_BYTES = 1_000_000
LONGEST_PATH = 4096


def text_of(path: Path) -> str:
    problems = Problems(str(path))
    remedy = "give a hosts file (hosts.example.yaml shows one)"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            problems.add(0, "", "found more than 1 MB", allowed="up to 1 MB", remedy=remedy)
        elif b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
            problems.add(0, "", "found a binary file", allowed="text in UTF-8", remedy=remedy)
        else:
            return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"found byte 0x{data[error.start]:02x}, which is not UTF-8"
        problems.add(line, "", found, allowed="text in UTF-8", remedy="save the file as UTF-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        problems.add(0, "", f"cannot be read: {why.lower()}", remedy=remedy)
    problems.raise_any()
    raise AssertionError("a text or a problem")


def look(reading: Reading, unused: Collection[str] = ()) -> None:
    """Adds a problem for each named file or folder that is not there or cannot be used.

    unused: keys whose files do not matter this time.
    """
    for place in reading.places:
        if place.key in unused:
            continue
        why = _absence(place)
        if why:
            reading.problems.add(
                place.line,
                place.key,
                f"found {shown(place.path, LONGEST_PATH)}, which {why}",
                allowed=f"{'a folder' if place.kind == 'folder' else 'a file'} on this machine",
                remedy="correct the path or create it",
            )
        elif place.kind == "env file":
            _look_into_env_file(place, reading)


def _absence(place: Place) -> str:
    path = Path(place.path)
    try:
        if not path.exists():
            return "does not exist"
        if place.kind == "folder":
            return "" if path.is_dir() else "is no folder"
        if not path.is_file():
            return "is no file"
        with path.open("rb"):
            return ""
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return f"cannot be read ({(reason or str(error)).lower()})"


def _look_into_env_file(place: Place, reading: Reading) -> None:
    """Says which lines are wrong, and of a line only its name: the values are secrets."""
    path = Path(place.path)
    if path.stat().st_size > MAX_BYTES:
        found = f"found {shown(place.path, LONGEST_PATH)}, which is larger than 1 MB"
        reading.problems.add(place.line, place.key, found, remedy="is it this file?")
        return
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        line = raw.decode("utf-8", "replace").strip()
        name, equals, _ = line.partition("=")
        if not line or line.startswith("#"):
            continue
        at = At(
            reading, f"{place.key}: {shown(place.path, LONGEST_PATH)} line {number}", "NAME=value"
        )
        if not equals or "\ufffd" in line or "\0" in line:
            at.wrong(place.line, "a line that is not NAME=value in UTF-8", "mend or remove it")
        else:
            env_name(name.strip(), place.line, at)
