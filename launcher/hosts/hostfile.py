"""Parse DeepSpeed and MPI hostfiles (`gpu1 slots=8`) and host lists (`gpu1:8,gpu2:8`).

Both are parsed into the tree of a hosts file. Each slot is a GPU: `slots=8` means `gpus: 8`.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import UsageError
from ..text import nearest, quoted
from .addresses import split_login
from .mistakes import Mistake
from .yaml_tree import RawValue, raw

# Open MPI's max_slots is ignored, because ddpctl never starts more processes than slots.
SCHEDULERS = {"slurm": "SLURM_JOB_NODELIST", "pbs": "PBS_NODEFILE"}
LONGEST_LINE = 1000  # characters; a text with a longer line is not a hostfile
_KNOWN = ("slots", "max_slots", "max-slots")
_HOST = r"[^\s:,#=\[\]{}()'\"-][^\s:,#=()'\"]*(\[[\d,-]+\][^\s:,#=]*)?"
_NAME_LINE = re.compile(rf"{_HOST}(\s+[\w-]+\s*=\s*\S*)*")
_FIRST_LINE = re.compile(rf"{_HOST}((:\d+)?(\s+[\w-]+\s*=\s*\S*)+|:\d+)")


def is_hostfile(text: str) -> bool:
    """Return whether the first line gives slots, or there are several lines and all look like hosts."""
    lines = [line for line in map(_significant, text.splitlines()) if line]
    if max(map(len, lines), default=0) > LONGEST_LINE:
        return False  # matching the patterns would take too long
    names_only = len(lines) > 1 and all(_NAME_LINE.fullmatch(line) for line in lines)
    return names_only or bool(lines and _FIRST_LINE.fullmatch(lines[0]))


def is_host_list(hosts: str) -> bool:
    """Return whether `hosts` is a list such as `gpu1:8,gpu2:8` or `gpu1,`, or a scheduler's name.

    The name of an existing file is neither.
    """
    looks_like_one = re.fullmatch(r"[^\s,/]+:\d+|[^/\n]*,[^/\n]*", hosts)
    return bool(looks_like_one or hosts in SCHEDULERS) and not os.path.exists(hosts)  # noqa: PTH110


def allocated_hosts(scheduler: str) -> list[str]:
    """Return the hosts of the current Slurm or PBS allocation. Raises UsageError outside of one."""
    value = os.environ.get(SCHEDULERS[scheduler], "")
    if scheduler == "pbs" and value:
        try:
            value = ",".join(dict.fromkeys(Path(value).read_text(errors="replace").split()))
        except OSError as error:
            raise UsageError(
                f"cannot read {value}: {error.strerror}", "check $PBS_NODEFILE"
            ) from None
    if not value:
        what = f"{SCHEDULERS[scheduler]} is not set, so this is not inside a {scheduler} allocation"
        raise UsageError(f"-H {scheduler}: {what}", "run this inside `salloc`, `sbatch` or `qsub`")
    return [value]


def read_hostfile(text: str, mistakes: list[Mistake]) -> RawValue:
    lines = enumerate(map(_significant, text.split("\n")), 1)
    return _hosts([(number, line) for number, line in lines if line], mistakes)


def read_host_list(value: str, mistakes: list[Mistake]) -> RawValue:
    """Parse `gpu1:8,gpu2:8`. A host without a number uses all its GPUs."""
    return _hosts([(0, word) for word in re.split(r",(?![^\[]*\])", value)], mistakes)


def _significant(line: str) -> str:
    return line.partition("#")[0].strip()


def _hosts(lines: Iterable[tuple[int, str]], mistakes: list[Mistake]) -> RawValue:
    """Parse `[user@]name[:gpus] [slots=N]`, one per line, into the tree of a hosts file."""
    hosts: list[RawValue] = []
    for line, written in lines:
        word, *options = re.sub(r"\s*=\s*", "=", written).split() or [""]
        host = split_login(word)
        if "port" in host:
            options.append(f"slots={host.pop('port')}")
        given = {name: value for name, _, value in (option.partition("=") for option in options)}
        unknown = [name for name in given if name not in _KNOWN]
        if unknown or len(given) < len(options) or not all(map(str.isdecimal, given.values())):
            remedy = "write HOST slots=N" if line else "write a list such as gpu1:8,gpu2:8"
            if unknown and (near := nearest(unknown[0], _KNOWN)):
                remedy = f"did you mean '{near}'?"
            what = f"found {quoted(written)}"
            mistakes.append(Mistake(line, f"hosts[{len(hosts)}]", what, remedy))
            given = {"slots": "0"}  # so that the line's GPUs cause no second mistake
        if "slots" in given:
            host["gpus"] = given["slots"]
        hosts.append(raw(host, line))
    return raw({"hosts": hosts})
