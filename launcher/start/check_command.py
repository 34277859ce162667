"""Check the job's command on this machine, before any host is contacted."""

import os
import sys
import warnings
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from ..hosts import Job
from ..text import nearest


def check_command(job: Job) -> str | None:
    """Check that the script in `job.command` is in `job.workdir` and compiles.

    Return a hint if the script is on this machine but is not sent, else None. Skips absolute paths
    and modules (`-m`), because they may come with the image. Raises UsageError if the script is
    missing or has a syntax error.
    """
    script = PurePosixPath(job.command[0])
    if script.is_absolute() or job.command[0].startswith("-"):
        return None
    if job.workdir is None:
        hint = f"job.workdir is not set, so the local {script} is not sent; set `workdir: .` to send it"
        return hint if os.path.isfile(script) else None  # noqa: PTH113
    workdir = Path(job.workdir)
    path = workdir / script
    if not os.path.isfile(path):  # noqa: PTH113 # False for a name that is too long
        scripts = [*workdir.glob("*.py"), *workdir.glob("*/*.py")]
        names = sorted(str(path.relative_to(workdir)) for path in scripts)
        near = nearest(str(script), names)
        remedy = f"did you mean {near}?" if near else "fix job.command or job.workdir"
        raise UsageError(f"job.command names {script}, which is not in {workdir}", remedy)
    try:
        with warnings.catch_warnings(action="ignore"):
            if script.suffix == ".py":
                compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        python = "{}.{}".format(*sys.version_info)
        remedy = f"correct it; if it needs a Python newer than {python}, launch with --no-check"
        raise UsageError(f"{path}:{error.lineno or 1}: {error.msg}{text}", remedy) from None
    except (OSError, ValueError, RecursionError, MemoryError):
        pass  # torchrun reports unreadable files
    return None
