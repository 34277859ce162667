"""Convert the values written in a hosts file to the values that ddpctl works with.

`read` follows a part of hosts.schema.json; READERS handle what a schema cannot express. Both raise
Wrong with all mistakes in the value. Mistakes without a remedy get "write ..." from `x-allowed`.
"""

import ipaddress
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeAlias, TypeVar

from ..text import bytes_in, duration_remedy, nearest, quoted, seconds_in
from .addresses import is_address, split_login
from .mistakes import Mistake, Wrong
from .yaml_tree import LIST, MAPPING, NOTHING, TEXT, RawValue

LONGEST_DURATION = 365 * 86400  # seconds
SMALLEST_SIZE, LARGEST_SIZE = 2**20, 2**50  # bytes
PATHS = ("file", "requirements", "env file", "folder", "dataset")  # `x-reader` of local paths
SET_BY_DDPCTL = frozenset(
    "DDPCTL_RUN_ID DDPCTL_ATTEMPT DDPCTL_NODE_RANK DDPCTL_NNODES DDPCTL_CHECKPOINT_DIR "
    "DDPCTL_OUTPUT_DIR DDPCTL_RESUME RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE "
    "LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
)
_TORCHRUN_FLAGS = {  # the flags that ddpctl sets itself, and what to do instead
    "--nnodes": "list the nodes under `hosts:`",
    "--nproc-per-node": "set job.nproc_per_node",
    "--max-restarts": "set job.max_restarts",
    "--master-port": "set job.master_port",
    "--master-addr": "set internal_ip of the first host",
    "--node-rank --standalone --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf": (
        "remove it: ddpctl tells the nodes where to meet"
    ),
    "--redirects -r --tee -t --log-dir --logs-specs": (
        "remove it: `ddpctl logs` shows the output of every rank"
    ),
    "--module -m --no-python --run-path --": "put it into job.command",
}
_NUMBER = re.compile("0|-?[1-9][0-9]{0,29}")  # YAML would read a leading 0 as octal
_STARTER = re.compile(r"python[0-9.]*|torchrun|accelerate|deepspeed|mpirun|srun|horovodrun")
_SHELL = re.compile("(ba|z|da|k|fi)?sh")
_MODULES = ("torch.distributed.run", "torch.distributed.launch")  # the modules of torchrun
_NOT_IN_ARGUMENTS = re.compile("[\0\ud800-\udfff]")
# Characters that ssh itself rejects in names, or that have a special meaning in patterns and lists.
_NOT_IN_HOST = set("'`\"$\\;&<>|(){}[],*?!#/@=~^")
_NOT_IN_USER = set("'`\";&<>|(){}:,/")

P = TypeVar("P")
T = TypeVar("T")
Shape: TypeAlias = Mapping[str, Any]  # a part of hosts.schema.json


def wrong(value: RawValue, remedy: str = "", found: str = "") -> Wrong:
    """Return the error for a value. found: what was found, in words (default: the value itself)."""
    return Wrong(Mistake(value.line, "", f"found {found or value.shown}", remedy))


def read(shape: Shape, value: RawValue) -> Any:
    """Return the value, converted as this part of the schema prescribes. Raises Wrong."""
    try:
        if name := shape.get("x-reader"):
            return READERS[name](value)
        options = shape.get("anyOf", [shape])
        by_type = {str(option.get("type")): option for option in options}
        if value.kind == LIST and "array" in by_type:
            return _list(by_type["array"], value)
        if value.kind == MAPPING and "object" in by_type:
            return _mapping(by_type["object"], value)
        return _one_value(shape, value)
    except Wrong as error:
        remedy = f"write {shape['x-allowed']}" if "x-allowed" in shape else ""
        raise error.within("", remedy) from None


def _one_value(shape: Shape, value: RawValue) -> object:
    """Read an allowed word, a whole number in a range, or text that matches a pattern."""
    written, options = as_written(value), shape.get("anyOf", [shape])
    words = [word for o in options for word in o.get("enum", [o["const"]] if "const" in o else [])]
    if written in words:
        return written
    for option in options:
        if "minimum" in option and _NUMBER.fullmatch(written):
            if option["minimum"] <= (number := int(written)) <= option["maximum"]:
                return number
        elif "pattern" in option and re.fullmatch(option["pattern"], written, re.DOTALL):
            return text(value) if option.get("type") == "string" else written
    near = nearest(written, words)
    raise wrong(value, f"write {shape['x-allowed']}; did you mean '{near}'?" if near else "")


def _list(shape: Shape, value: RawValue) -> tuple[Any, ...]:
    items = _items(value, lambda item: read(shape["items"], item))
    if len(items) < shape.get("minItems", 0):
        raise wrong(value, found="an empty list")
    for item, count in Counter(items).items() if shape.get("uniqueItems") else ():
        if count > 1:
            raise wrong(value, "name each once", f"{item} twice")
    return items


def _items(value: RawValue, read_item: Callable[[RawValue], T]) -> tuple[T, ...]:
    if value.kind != LIST:
        raise wrong(value)
    return tuple(_each(((f"[{i}]", item) for i, item in enumerate(value.items)), read_item))


def _mapping(shape: Shape, value: RawValue) -> dict[str, Any]:
    def read_entry(name: str) -> tuple[str, Any]:
        entry = value.entries[name]
        read(shape["propertyNames"], RawValue(entry.line, TEXT, name))
        return name, read(shape["additionalProperties"], entry)

    return dict(_each(((f".{quoted(name)}", name) for name in value.entries), read_entry))


def _each(parts: Iterable[tuple[str, P]], read_part: Callable[[P], T]) -> list[T]:
    """Read all parts. Raises Wrong with the mistakes of all of them, each under its part's key."""
    values, mistakes = list[T](), list[Mistake]()
    for key, part in parts:
        try:
            values.append(read_part(part))
        except Wrong as error:
            mistakes += error.within(key).mistakes
    if mistakes:
        raise Wrong(*mistakes)
    return values


def as_written(value: RawValue) -> str:
    """Read any single value, including numbers and `yes`, as written in the file."""
    if value.kind in (LIST, MAPPING, NOTHING):
        raise wrong(value)
    if _NOT_IN_ARGUMENTS.search(value.text):
        raise wrong(value, "remove the character that cannot be passed to a program")
    return value.text


def text(value: RawValue) -> str:
    """Read a single value that is not empty and that YAML treats as text."""
    written = as_written(value)
    if value.kind != TEXT:
        remedy = f'quote it if you mean the text: "{quoted(written)}"'
        raise wrong(value, remedy, f"{quoted(written)} ({value.kind})")
    if not written.strip():
        raise wrong(value)
    return written


def path(value: RawValue) -> str:
    """Read a path as written; the loader makes it absolute."""
    # YAML reads `~` as null, but the user means the home folder.
    written = "~" if value.kind == NOTHING and value.text == "~" else text(value)
    if "://" in written:
        remedy = "use a path on this machine; ddpctl does not read URLs, but your script can"
        raise wrong(value, remedy)
    return written


# A host


def host(value: RawValue) -> str:
    word = text(value)
    if is_address(word):  # IPv6 has colons, and may have a zone after `%`
        return _one_word(value, _NOT_IN_HOST)
    parts = split_login(word)
    is_login = len(parts) > 1 and all(parts.values()) and parts.get("port", "0").isdecimal()
    if is_login and not word.startswith("-"):
        written = " and ".join(f"{key}: {quoted(part)}" for key, part in parts.items())
        raise wrong(value, f"write {written}")
    return _one_word(value, _NOT_IN_HOST | {":", "%"})


def login(value: RawValue) -> str:
    return _one_word(value, _NOT_IN_USER)


def _one_word(value: RawValue, forbidden: set[str]) -> str:
    """Read a name that is safe as an argument: no spaces, control characters or leading dash."""
    word = text(value)
    bad = sorted({c for c in word if c in forbidden or c.isspace() or not c.isprintable()})
    if word.startswith("-"):
        raise wrong(value, "remove the leading `-`: ssh would read the name as an option")
    if "[" in bad or "{" in bad:
        ranged = re.sub(r"[\[{](\d+)(?::|\.\.|-)(\d+)[\]}]", r"[\1-\2]", word)
        raise wrong(value, f"write {ranged if ranged != word else 'a range such as gpu[1-8].lab'}")
    if bad:
        raise wrong(value, f"remove {quoted(' '.join(bad))}")
    if len(word) > 253:
        raise wrong(value, "use at most 253 characters")
    return word


def proxy_jump(value: RawValue) -> str:
    """Read what `ssh -J` takes: one or more [user@]host[:port], separated by commas, or `none`."""
    word = _one_word(value, _NOT_IN_HOST - set("@,[]/"))
    for hop in word.split(","):
        parts = split_login(hop.removeprefix("ssh://"))
        port = re.fullmatch("[1-9][0-9]{0,4}", parts.get("port", "22"))
        if not (re.fullmatch("[^-/][^/]*", parts["host"]) and port and int(port[0]) < 65536):
            raise wrong(value)
    return word


def address(value: RawValue) -> str:
    word = text(value)
    parsed = ipaddress.ip_address(word) if is_address(word) else None
    if parsed is None or parsed.is_unspecified or parsed.is_multicast:
        raise wrong(value)
    return word


# The job


def command(value: RawValue) -> tuple[str, ...]:
    words = _words(value) if value.kind == TEXT else _items(value, as_written)
    if not words or not words[0]:
        raise wrong(value, found="nothing to run")
    start = _start_of_script(words)
    why = "ddpctl runs the script with torchrun"
    if any(word.startswith("--nproc") for word in words[:start]):
        why += "; set job.nproc_per_node instead"
    if value.kind == TEXT:
        no_python = ["--no-python"] if start is None else []
        written = _as_list([*no_python, *words[start:]])
        raise wrong(value, f"write {written}" + (f": {why}" if start else ""))
    if start is None:
        remedy = "write --no-python before it; otherwise, torchrun runs only Python"
        raise wrong(value, remedy, quoted(words[0]))
    if start:
        raise wrong(value, f"remove {quoted(' '.join(words[:start]))}: {why}", quoted(words[0]))
    return words


def _start_of_script(words: Sequence[str]) -> int | None:
    """Return the index of the script or `-m`, skipping `python` or torchrun and its flags.

    Return None if torchrun can run the command only with --no-python.
    """
    first = PurePosixPath(words[0]).name
    if not _STARTER.fullmatch(first):
        return None if _SHELL.fullmatch(first) else 0
    for i, word in enumerate(words):
        module = words[i + 1] if word in ("-m", "--module") and i + 1 < len(words) else ""
        if word.endswith(".py") or (module and module not in _MODULES):
            return i
    return 1 if len(words) == 1 or first.startswith("torchrun") else None


def _words(value: RawValue) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(value.text))
    except ValueError:  # an unclosed quote
        return tuple(value.text.split())


def _as_list(words: Iterable[str]) -> str:
    """Format words as a YAML list."""
    plain = re.compile(r"[\w./=+-][\w./=+:-]*")
    return f"[{', '.join(word if plain.fullmatch(word) else json.dumps(word) for word in words)}]"


def arguments(value: RawValue) -> tuple[str, ...]:
    """Read a list of arguments. Numbers and `yes` stay as written."""
    if value.kind == TEXT and value.text.split():
        raise wrong(value, f"write {_as_list(_words(value))}")
    return _items(value, as_written)


def torchrun_flags(value: RawValue) -> tuple[str, ...]:
    """Read flags for torchrun. Raises Wrong for those that ddpctl sets, even if abbreviated."""
    words, mistakes = arguments(value), list[Mistake]()
    for word in words:
        flag = word.partition("=")[0].replace("_", "-")
        if not flag.startswith("--"):
            flag = flag[:2]  # -r3
        for ours, remedy in _TORCHRUN_FLAGS.items():
            if any(flag == own or (own.startswith(flag) and len(flag) > 2) for own in ours.split()):
                found = f"{quoted(word)}, which ddpctl sets itself"
                mistakes += wrong(value, remedy, found).mistakes
                break
    if mistakes:
        raise Wrong(*mistakes)
    if words and not words[0].startswith("-"):
        raise wrong(value, "put the script into job.command", quoted(words[0]))
    return words


def wrong_env_name(name: str) -> str:
    """Return the remedy for a `name` that the job's environment must not set, else ""."""
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        return "use letters, digits and _"
    return "remove it: ddpctl or torchrun sets it on each node" if name in SET_BY_DDPCTL else ""


def variable(name: RawValue) -> str:
    if remedy := wrong_env_name(name.text):
        raise wrong(name, remedy, f"the name {quoted(name.text)}")
    return name.text


def capability(value: RawValue) -> str:
    name = text(value).upper().removeprefix("CAP_")
    if not re.fullmatch("[A-Z_]{2,40}", name):
        raise wrong(value)
    return name


def duration(value: RawValue) -> int:
    """Read a duration in seconds: `90s`, `2h30m`, `1d` or `24:00:00`."""
    written = as_written(value)
    seconds = seconds_in(written)
    if seconds is None:
        raise wrong(value, duration_remedy(written))
    if not 0 < seconds <= LONGEST_DURATION:
        raise wrong(value)
    return seconds


def size(value: RawValue) -> int:
    """Read a size in bytes: `16g`, `512m`, `16GiB` or a number."""
    number = bytes_in(as_written(value))
    if number is None or not SMALLEST_SIZE <= number <= LARGEST_SIZE:
        raise wrong(value, "write a size from 1m to 1024t")
    return number


READERS: Mapping[str, Callable[[RawValue], Any]] = {  # by `x-reader`
    "host": host,
    "login": login,
    "proxy_jump": proxy_jump,
    "address": address,
    "command": command,
    "arguments": arguments,
    "as written": as_written,  # values of env: {B: yes} gives "yes"
    "torchrun flags": torchrun_flags,
    "variable": variable,
    "capability": capability,
    "duration": duration,
    "size": size,
    **dict.fromkeys(PATHS, path),
}
