"""List what ddpctl has on a host under one account: entries of ~/.ddpctl and processes of runs.

`clean`, `push --prune`, `kill --strays` and every stop share this list. Hosts are not trusted:
malformed lines are skipped, and names are sent back only to the host that reported them.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import UnusableAnswer
from ..run_id import is_run_id
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.script_files import load_script

INVENTORY = load_script(__file__, "inventory.sh")
SIZES = load_script(__file__, "entry_sizes.sh")
TIMEOUT = 600.0  # seconds; listing or removing a large folder is slow
LINES = {  # the rest of a line, by its first word
    "host": re.compile(r"(\d{1,12}) (\S{1,255}) (/.*)"),
    "process": re.compile(r"([1-9]\d{0,8}) (\S+) (.*)"),
    "entry": re.compile(r"(\d{1,12}) (.+)"),
    "busy": re.compile(r"(.+)"),
    "open": re.compile(r"(\S+)((?: [0-9a-f]{64})*) (.*)"),
}
SIZE = re.compile(r"(\d{1,15})\t(.+)")


@dataclass(frozen=True)
class RunProcess:
    """A process with a run id in its environment."""

    pid: int
    run_id: str
    name: str


@dataclass(frozen=True)
class OpenAttempt:
    """An attempt that may be running, on any host that shares the folder."""

    run_id: str
    host: str  # the hostname of its node
    digests: frozenset[str]  # the digests of the data and code that it uses


@dataclass(frozen=True)
class Inventory:
    host: str  # its name in the hosts file
    hostname: str  # its own hostname
    folder: str  # ~/.ddpctl as an absolute path; "" if unknown
    processes: Sequence[RunProcess]
    ages: Mapping[str, int]  # seconds since the last change, by entry of ~/.ddpctl
    busy: Collection[str]  # drafts that a push is writing to
    open_attempts: Sequence[OpenAttempt]
    time: int = 0  # when this list was made: unix seconds on the host's clock


def take_inventory(connection: HostConnection, *, folder: bool, run_id: str = "") -> Inventory:
    """Return a host's inventory. folder: also list ~/.ddpctl. run_id: list only this run's processes.

    Raises CommandFailed or UnusableAnswer instead of returning a list that may be incomplete.
    """
    scope, timeout = ("all", TIMEOUT) if folder else ("", 30.0)
    done = connection.script(INVENTORY, scope, run_id, timeout=timeout, limit=LONG_OUTPUT)
    what = "cannot list what ddpctl has on that host"
    remedy = (
        "on that host, check the free memory, the process limit (`ulimit -u`), `grep` and `sed`"
    )
    text = done.expect(what, remedy, connection.name).stdout.decode(errors="replace")
    if not any(line.startswith("host ") for line in text.splitlines()):
        raise UnusableAnswer(f"{what}: the answer has no `host` line", remedy, host=connection.name)
    return parse_inventory(text, connection.name)


def parse_inventory(text: str, host: str) -> Inventory:
    """Parse the output of INVENTORY. Skips malformed lines. host: its name in the hosts file."""
    rows: dict[str, list[tuple[str, ...]]] = {kind: [] for kind in LINES}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in LINES and (match := LINES[kind].fullmatch(rest)):
            rows[kind].append(match.groups())
    now, hostname, folder = rows["host"][0] if rows["host"] else ("0", "", "")
    return Inventory(
        host,
        hostname,
        folder,
        [RunProcess(int(pid), run, name) for pid, run, name in rows["process"] if is_run_id(run)],
        {name: int(now) - int(changed) for changed, name in rows["entry"]},
        {name for (name,) in rows["busy"]},
        [OpenAttempt(run, at, frozenset(used.split())) for run, used, at in rows["open"]],
        int(now),
    )


def processes_on(connection: HostConnection, run_id: str) -> list[RunProcess]:
    """Return this user's processes on the host that have the run id in their environment."""
    inventory = take_inventory(connection, folder=False, run_id=run_id)
    return [process for process in inventory.processes if process.run_id == run_id]


def sizes_of(connection: HostConnection, entries: Iterable[str]) -> Mapping[str, int]:
    """Return the size in bytes of each entry of ~/.ddpctl. Omits those that cannot be measured."""
    names = "".join(f"{name}\0" for name in entries).encode()
    done = connection.script(SIZES, stdin=names, timeout=TIMEOUT)
    lines = done.stdout.decode(errors="replace").splitlines()
    return {row[2]: int(row[1]) * 1024 for line in lines if (row := SIZE.fullmatch(line))}
