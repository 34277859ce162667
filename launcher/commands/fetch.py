from pathlib import Path

from . import options
from .options import option


def fetch(
    run: str | None = options.RUN,
    to: Path | None = option("--to", "DIR", "Destination folder (default: ./RUN)."),
    hosts: str | None = options.LOOK_ON,
    as_json: bool = options.JSON,
    quiet: bool = options.QUIET,
    verbose: bool = options.VERBOSE,
) -> int:
    """Copy a run's checkpoints, output and logs to this machine.

    Each file is checked against its sha256 on the host. Files that this machine already has are
    skipped, and an interrupted transfer continues where it stopped. Files whose names begin with a dot
    are left out, because they may be unfinished. A symbolic link to another of these files or folders
    is copied as a link; other links are left out, with a line per reason. If nodes have different files
    with the same path, the file of the lowest-numbered node keeps that path, and the others go to
    nodes/K. Hosts that only earlier attempts used are not asked; one line names them.

    \b
    ddpctl fetch
    ddpctl fetch 20261121 --to results/
    """
    from ..look import fetch as fetching
    from ..outcomes import Exit
    from ..runs.find import find
    from ..terminal.host_errors import report_errors

    console = options.console(quiet, verbose)
    folder = find(run, hosts, console)
    done = fetching.fetch(folder, to or Path(folder.run_id), console)
    report_errors({**done.errors, **done.failures}, console)
    if as_json:
        console.json(done.document(folder.run_id))
    else:
        console.say(done.summary())
        if not (done.files or done.skipped or done.failures or done.errors):
            places = "$DDPCTL_CHECKPOINT_DIR or $DDPCTL_OUTPUT_DIR"
            what = f"the hosts have no files of run {folder.run_id}"
            console.say(
                f"{what}: its script must save to {places}; `ddpctl clean` removes what it saved"
            )
        console.print(str(done.to))
    return Exit.UNREACHABLE if done.failures else Exit.FAILED if done.errors else Exit.DONE
