"""Tab completion of run ids and host names, from this machine's own files only.

Where this module offers nothing, the shell completes file names, for example of hosts files.
"""

import contextlib
import json
from pathlib import Path

import typer

from ..errors import DdpctlError, UsageError
from ..own_folders import expanded, read_record


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Return the recorded run ids that start with `incomplete`, newest first, each with its state."""
    from ..runs.run_folder import run_folders

    try:
        folders = [each for each in run_folders() if each.run_id.startswith(incomplete)]
    except UsageError:  # this account has no home folder
        return []
    offered = []
    for folder in folders:  # some may be damaged, or just being removed
        with contextlib.suppress(OSError, ValueError, AttributeError):
            record = json.loads(read_record(folder.record_file))
            offered.append((folder.run_id, str(record.get("state", ""))))
    return offered


def host_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the hosts of the hosts file on the command line, or those of ~/.ssh/config and `local`."""
    from ..hosts import load
    from ..hosts.init import ssh_aliases

    # while an option still lacks its value, the arguments before it may be unparsed
    named = [Path(word) for word in (ctx.params.get("hosts"), *ctx.args) if word]
    files = [path for path in named if path.is_file()]
    if not files:
        names = [*ssh_aliases(expanded("~/.ssh/config")), "local"]
    else:
        try:
            names = list(dict.fromkeys(host.host for host in load(files[0], job_files=False).hosts))
        except DdpctlError:
            names = []  # `check` reports the problem
    return [name for name in names if name.startswith(incomplete)]
