from pathlib import Path

from ..errors import UsageError
from . import complete, options
from .options import argument, option


def report(
    runs: list[str] | None = argument(
        "[RUN [RUN]]",
        "A run id or a unique prefix of one (default: the newest run), or two to compare.",
        complete.runs,
    ),
    out: Path | None = option("--out", "FILE", "Write the page to FILE (default: RUN.html).", "-o"),
    hosts: str | None = options.LOOK_ON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Write an HTML page about one run, or one that compares two.

    The page shows the first failure, curves, attempts, the ranks' stacks after a hang, what changed
    between attempts, the nodes, the plan and commands to repeat the run. Point at a curve to see its
    values; click its name in the legend to hide it.

    The page runs no script, loads nothing from the network and shows no values of environment
    variables. Loss, accuracy and throughput come from metrics.jsonl in the run's output folder, which
    the trainer's rank 0 writes; CPU and GPU usage comes from the supervisors.

    \b
    ddpctl report
    ddpctl report 20261121 -o overnight.html
    ddpctl report monday tuesday -o compared.html
    """
    from ..report.report import make
    from ..runs.find import find

    console = options.console(quiet, verbose)
    if runs and len(runs) > 2:
        raise UsageError(
            f"{len(runs)} runs: a report covers one run or compares two", "name one or two"
        )
    folders = [find(run, hosts, console) for run in runs or (None,)]
    name = "-and-".join(folder.run_id for folder in folders)
    return make(folders, out or Path(f"{name}.html"), console)
