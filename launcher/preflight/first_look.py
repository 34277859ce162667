"""Facts for `init`, before a hosts file exists: the SSH login, and each host's GPUs and disks."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import CommandFailed, HostUnreachable, UnknownHostKey, lines
from ..facts.facts import Facts
from ..facts.gather import gather_one
from ..hosts import Host
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import try_each
from ..ssh.route import route_to
from ..terminal.console import Console
from ..text import counted


class FirstLook(NamedTuple):
    """What `init` learns about a host. gpus: how many it has; None if unknown. note: for the user."""

    host: str
    gpus: int | None
    note: str
    new_key: bool = False  # known_hosts has no key for the host


def ssh_login(host: Host) -> tuple[str, str]:
    """Return the user and the first existing key file that `ssh` uses, each "" if unknown."""
    try:
        route = route_to(host)
    except HostUnreachable:
        return "", ""
    return route.user, next((key for key in route.identity_files if Path(key).is_file()), "")


def look(hosts: Sequence[Host], console: Console) -> list[FirstLook]:
    """Look at all hosts concurrently. Print a line about each host whose GPUs remain unknown."""

    def ask(connection: HostConnection) -> FirstLook:
        facts = gather_one(connection, check=["", ""])
        if facts.gpu_error:
            what = f"nvidia-smi fails: {facts.gpu_error}"
            raise CommandFailed(what, "fix the NVIDIA driver on that host", host=connection.name)
        return described(connection.name, facts)

    asked = counted(len(hosts), "host")
    with connected(hosts) as connections, console.step(f"asking {asked} about their GPUs"):
        looks, failures = try_each(connections, ask)
    for line in lines(failures.values()):
        console.say(line)
    for connection, error in failures.items():
        note, new_key = "GPUs unknown; `ddpctl check` shows why", isinstance(error, UnknownHostKey)
        looks[connection] = FirstLook(connection.name, None, note, new_key)
    return [looks[connection] for connection in connections]


def described(host: str, facts: Facts) -> FirstLook:
    models, count = {gpu.name for gpu in facts.gpus}, len(facts.gpus)
    what = f"{count} GPUs" if count else "no GPU"
    if len(models) == 1:
        what = f"{count} x {models.pop()}"
    disk = facts.details.disk(facts.home)
    free = f", {disk.kib_free / 2**20:.0f} GiB free in {facts.home}" if disk else ""
    return FirstLook(host, count, what + free)
