"""Check the job's command on this machine, before any host is contacted."""

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from ..hosts import Job
from ..push.files.left_out import LeftOut
from ..text import nearest


def check_command(job: Job) -> str | None:
    """Check that the script in `job.command` is in `job.workdir` and compiles.

    Return a hint if a node would not find the script, or data that an argument names, at the same
    path; else None. Does not look for absolute paths and modules (`-m`), because they may come with
    the image. Raises UsageError if the script is missing or has a syntax error.
    """
    script = PurePosixPath(job.command[0])
    if script.is_absolute():
        return _path_of_this_machine(script, job)
    if job.command[0].startswith("-"):
        return None
    if job.workdir is None:
        what = f"job.workdir is not set, so the local {script} is not sent"
        hint = f"{what}; set `workdir: .` to send it, or launch with `--workdir .`"
        return hint if os.path.isfile(script) else None  # noqa: PTH113
    workdir = Path(job.workdir)
    path = workdir / script
    is_outside = os.path.normpath(script).startswith("../")
    if is_outside or not os.path.isfile(path):  # noqa: PTH113 # False for a name that is too long
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
    return _data_of_this_machine(job, job.workdir)


def require_script(job: Job, left_out: Iterable[LeftOut]) -> None:
    """Raise UsageError if the script is among the paths that a push leaves out of the workdir."""
    script = os.path.normpath(job.command[0])
    for path in (each.path for each in left_out):
        if script == path or script.startswith(f"{path}/"):
            what = f"job.command names {script}, but {path} is left out of the workdir"
            raise UsageError(
                what, f"write `!{path}` at the end of .ddpctlignore, or move the script"
            )


def _path_of_this_machine(script: PurePosixPath, job: Job) -> str | None:
    """Return a hint if the script has another path in the container than on this machine."""
    same = ["/workspace", *(mount.split(":")[1] for mount in job.mounts)]
    if job.engine == "process" or any(script.is_relative_to(folder) for folder in same):
        return None
    if job.workdir is None or not script.is_relative_to(job.workdir):
        return None
    if not os.path.isfile(script):  # noqa: PTH113 # False for a name that is too long
        return None
    own = script.relative_to(job.workdir)
    return (
        f"{script} is a path on this machine; in the container, it is /workspace/{own}: write {own}"
    )


def _data_of_this_machine(job: Job, workdir: str) -> str | None:
    """Return a hint if an argument is a file in the dataset, which has another path on the nodes."""
    if job.dataset is None or Path(workdir).is_relative_to(job.dataset):
        return None
    for word in job.command[1:]:
        given = word.rpartition("=")[2]
        path = Path(os.path.normpath(os.path.join(workdir, given)))  # noqa: PTH118 # relative or not
        if not path.is_relative_to(job.dataset) or not os.path.exists(path):  # noqa: PTH110
            continue
        there = str(PurePosixPath("/data", path.relative_to(job.dataset)))
        if job.engine == "process":
            return f"{given} is a path on this machine; on nodes, it is in os.environ['DDPCTL_DATA_DIR']"
        if given != there:
            return (
                f"{given} is a path on this machine; in the container, it is {there}: write {there}"
            )
    return None
