"""Check the script of `job.command` before contacting a host: does it exist and compile?"""

from __future__ import annotations

import difflib
import warnings
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from ..hosts import Job


def check_command(job: Job) -> str | None:
    """Raise UsageError if the script is not in `workdir` or is not Python; return a hint or None.

    Checks only relative paths: absolute ones and modules (`-m`) may come with the image.
    """
    script = PurePosixPath(job.command[0])
    if script.is_absolute() or job.command[0].startswith("-"):
        return None
    if job.workdir is None:
        hint = f"job.workdir is not set, so {script} here is not sent; set `workdir: .` to send it"
        return hint if Path(script).is_file() else None
    workdir = Path(job.workdir)
    path = workdir / script
    if not path.is_file():
        known = [
            str(found.relative_to(workdir))
            for pattern in ("*.py", "*/*.py")
            for found in workdir.glob(pattern)
        ]
        near = difflib.get_close_matches(str(script), sorted(known), 1)
        remedy = f"did you mean {near[0]}?" if near else "correct job.command or job.workdir"
        raise UsageError(f"{script}, from job.command, is not in workdir {workdir}; {remedy}")
    if script.suffix == ".py":
        _compile(path)
    return None


def _compile(path: Path) -> None:
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{path}:{error.lineno or 1}: {error.msg}{text}; correct it") from None
    except (OSError, ValueError, RecursionError, MemoryError):
        return  # torchrun reports unreadable files
