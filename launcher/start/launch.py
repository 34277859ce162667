"""The `launch` command."""

import dataclasses
import difflib
import os
import warnings
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from ..follow.hooks import ExitHook
from ..follow.session import report_next
from ..hosts import Cluster, Job
from ..outcomes import Outcome
from ..plan.plan import LaunchOptions, Plan
from ..run_id import NAME, new_run_id
from ..terminal.console import Console
from ..text import counted, quoted
from .request import Request
from .restart import restart_until_done
from .run_attempt import run_attempt


def new_run(cluster: Cluster, options: LaunchOptions) -> Request:
    """Return the request for a new run. Raises UsageError for a bad name or too many nodes."""
    if options.nodes and options.nodes > cluster.nnodes:
        raise UsageError(
            f"--nodes {options.nodes}: {cluster.source} has {counted(cluster.nnodes, 'host')}",
            "ask for fewer",
        )
    if options.name and not NAME.fullmatch(options.name):
        raise UsageError(
            f"--name {quoted(options.name)}: not a name",
            "use a-z, 0-9, `_`, `.` and `-`, at most 41 characters, a letter or digit first",
        )
    return Request(cluster, options, new_run_id(options.name))


def launch(request: Request, console: Console) -> Outcome:
    """Launch a new run."""
    hint_at_command(request, console)
    return run_to_the_end(request, console)


def dry_run(request: Request, console: Console) -> Plan:
    """Return as much of the plan as needs no host; with --nodes N, for the first N hosts."""
    hint_at_command(request, console)
    hosts = request.cluster.hosts[: request.options.nodes]
    cluster = dataclasses.replace(request.cluster, hosts=hosts)
    return dataclasses.replace(request, cluster=cluster).plan()


def run_to_the_end(request: Request, console: Console) -> Outcome:
    """Run an attempt and the restarts that the job allows. Then run --on-exit."""
    with ExitHook(request.folder, console) as hook:
        outcome = run_attempt(request, console)
        outcome = restart_until_done(request.folder, request.options, outcome, console)
        hook.exit = outcome.exit
        if outcome.state.is_final and (record := request.folder.load_if_readable(console)):
            report_next(record, console)
    return outcome


def hint_at_command(request: Request, console: Console) -> None:
    if request.options.check and (hint := check_command(request.cluster.job)):
        console.say(hint)


def check_command(job: Job) -> str | None:
    """Check that the script of `job.command` is in `workdir` and compiles; return a hint or None.

    Checks only relative paths: absolute ones and modules (`-m`) may come with the image. Raises
    UsageError.
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
        near = difflib.get_close_matches(str(script), names, 1)
        remedy = f"did you mean {near[0]}?" if near else "correct job.command or job.workdir"
        raise UsageError(f"{script}, from job.command, is not in workdir {workdir}", remedy)
    try:
        with warnings.catch_warnings(action="ignore"):
            if script.suffix == ".py":
                compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{path}:{error.lineno or 1}: {error.msg}{text}", "correct it") from None
    except (OSError, ValueError, RecursionError, MemoryError):
        pass  # torchrun reports unreadable files
    return None
