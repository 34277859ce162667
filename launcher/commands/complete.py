"""Tab completion of run ids, hosts files and host names, from this machine's own files only."""

import contextlib
import json
from pathlib import Path

import typer

from ..errors import DdpctlError, UsageError
from ..own_folders import expanded, read_record

HOSTS_FILES = (".yaml", ".yml")


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Return the recorded run ids that start with `incomplete`, newest first, each with its state."""
    from ..runs.record import run_folders

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


def hosts_files(incomplete: str) -> list[str]:
    """Return the paths that complete `incomplete`: hosts files, and folders that may contain one."""
    folder, _, name = incomplete.rpartition("/")
    shown = f"{folder}/" if "/" in incomplete else ""
    root = expanded(shown)
    try:
        entries = sorted(root.iterdir())
    except OSError:
        return []
    hidden = name.startswith(".")
    return [
        f"{shown}{entry.name}" + ("/" if entry.is_dir() else "")
        for entry in entries
        if entry.name.startswith(name)
        and (hidden or not entry.name.startswith("."))
        and (entry.is_dir() or entry.suffix in HOSTS_FILES or "hostfile" in entry.name)
    ]


def runs_or_hosts_files(incomplete: str) -> list[tuple[str, str]]:
    return [*runs(incomplete), *((name, "") for name in hosts_files(incomplete))]


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
