"""What the shell offers when Tab is pressed: run ids, hosts files, names of hosts.

From this machine's own files and nothing else: no host is asked, nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer

HOSTS_FILES = (".yaml", ".yml")
LARGEST = 1_000_000  # bytes; no hosts file is larger


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Run ids that this machine remembers, the newest first, each with its state."""
    import json

    from launcher.errors import UsageError
    from launcher.state import state_home

    found = []
    try:
        root = state_home() / "runs"
    except UsageError:
        return []
    for path in root.glob(f"{_literal(incomplete)}*/run.json"):
        try:
            state = str(json.loads(path.read_text()).get("state", ""))
            age = (path.parent / "hosts.yaml").stat().st_mtime
        except (OSError, ValueError, AttributeError):
            continue  # half written, or going
        found.append((age, path.parent.name, state))
    return [(name, state) for _, name, state in sorted(found, reverse=True)]


def hosts_files(incomplete: str) -> list[str]:
    """Hosts files, and folders on the way to one."""
    folder, _, name = incomplete.rpartition("/")
    shown = f"{folder}/" if "/" in incomplete else ""
    root = Path(shown).expanduser() if shown else Path()
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
    """The hosts of the hosts file that stands on the command line, else those that ssh knows."""
    from launcher.hosts.starter import ssh_aliases

    # while the last option lacks its value, an argument before it may not have been taken as one
    named = [Path(word) for word in (ctx.params.get("hosts"), *ctx.args) if word]
    files = [path for path in named if path.is_file()]
    if files:
        names = list(dict.fromkeys(_hosts_of(files[0])))
    else:
        names = [*ssh_aliases(Path("~/.ssh/config").expanduser()), "local"]
    return [name for name in names if name.startswith(incomplete)]


def _hosts_of(path: Path) -> Iterator[str]:
    from launcher.errors import DdpctlError
    from launcher.hosts import load

    try:
        for host in load(path, job_files=False).hosts:
            yield host.host
    except DdpctlError:
        return  # `check` says what is wrong with it


def _literal(text: str) -> str:
    import glob

    return glob.escape(text.replace("/", ""))
