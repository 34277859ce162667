"""What a push needs to know of a host: one `sh` script, one round trip, one value.

The script needs a POSIX shell and coreutils. With python3 a host can relay, too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..engines.engine_info import ImageInfo
from ..ssh.node import Node
from .transfer.direct import failed

# $1 dataset digest or "", $2 workdir digest or ""
SCRIPT = r"""
cd "$HOME" || exit
printf 'home %s\n' "$HOME"
mkdir -p -m 700 .ddpctl && chmod 700 .ddpctl
have() { [ -n "$2" ] && [ -d "$3/$2" ] && touch "$3/$2" && echo "have $1"; }
have dataset "$1" .ddpctl/datasets
have workdir "$2" .ddpctl/workdirs
command -v python3 >/dev/null 2>&1 && echo 'have python3'
printf 'ssh %s\n' "$SSH_CONNECTION"
exit 0
"""


@dataclass(frozen=True)
class HostState:
    has: frozenset[str]  # of dataset, workdir, python3
    address: str | None  # where this machine, or the last jump host, reaches it


@dataclass(frozen=True)
class Inspected:
    """The job's image on this machine and on the nodes, as their engines have just reported it."""

    here: ImageInfo | None
    there: Mapping[Node, ImageInfo | None]


def inspect_host(node: Node, dataset: str, workdir: str) -> HostState:
    """dataset, workdir: digests, or ""."""
    done = node.script(SCRIPT, dataset, workdir, timeout=60.0)
    text = done.stdout.decode(errors="replace")
    if done.code != 0 or not text.startswith("home "):
        stderr = done.stderr.decode(errors="replace") or f"exit {done.code}"
        raise failed(node.name, "its shell did not run a plain script", stderr)
    connection = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
    return HostState(
        has=frozenset(re.findall(r"^have (\w+)$", text, re.MULTILINE)),
        address=_ip(connection[1]) if connection else None,
    )


def _ip(text: str) -> str | None:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
