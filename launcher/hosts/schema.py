"""All keys of the hosts file: their meaning and their readers.

hosts.schema.json is the table of keys. Editors use it for validation and completion, and
docs/hosts-file.md shows it. The loader takes names, ranges, choices and the `allowed: ...` of
messages from it. The readers also check what a schema cannot express.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..text import quoted
from . import values
from .problems import Problem, nearest
from .values import Reader

PathKind: TypeAlias = Literal["file", "env file", "folder"]

FILE = Path(__file__).with_name("hosts.schema.json")
SCHEMA = json.loads(FILE.read_bytes())

# The readers of all values but numbers in a range, choices of words, and local paths.
_HOST_READERS: Mapping[str, Reader] = {
    "host": values.host,
    "user": values.user,
    "proxy_jump": values.proxy_jump,
    "gpus": values.gpus,
    "internal_ip": values.internal_ip,
    "interface": values.interface,
}
_JOB_READERS: Mapping[str, Reader] = {
    "image": values.image,
    "command": values.command,
    "resume_args": values.arguments,
    "env": values.env,
    "mounts": values.mounts,
    "tmpfs": values.tmpfs,
    "shm_size": values.size,
    "devices": values.devices,
    "cap_add": values.cap_add,
    "ulimits": values.ulimits,
    "user": values.container_user,
    "time_limit": values.duration,
    "metrics_dir": values.folder_on_hosts,
}
# What must exist at the path in each of these keys.
_PATHS: Mapping[str, PathKind] = {
    "identity_file": "file", "workdir": "folder", "dataset": "folder", "env_file": "env file"
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """A key. allowed, default: in words. path: what must exist there, if the value is a local path."""

    read: Reader
    meaning: str
    allowed: str
    default: str
    path: PathKind | None = None


def _keys(mapping: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Key]:
    keys = {}
    for name, shape in mapping["properties"].items():
        meaning, allowed, default = re.split(r" Value: |\. Default: ", shape["description"])
        number, *word = shape.get("anyOf", [shape])
        if name in readers:
            read = readers[name]
        elif "enum" in shape:
            read = values.choice(*shape["enum"])
        elif number["type"] == "integer":
            words = [each["const"] for each in word]
            read = values.whole(number["minimum"], number["maximum"], *words)
        else:
            read = values.path
        keys[name] = Key(read, meaning, allowed, default.removesuffix("."), _PATHS.get(name))
    return keys


_SECTIONS = SCHEMA["properties"]
SECTIONS: Collection[str] = _SECTIONS.keys()
HOST = _keys(SCHEMA["definitions"]["host"]["anyOf"][1], _HOST_READERS)
# Not host and internal_ip, which each machine has, nor nproc_per_node, whose default is in job.
DEFAULTS = {name: HOST[name] for name in _SECTIONS["defaults"]["properties"]}
JOB = _keys(_SECTIONS["job"], _JOB_READERS)

# Keys that users of other tools might try.
_SYNONYMS = {
    "hostname": "host", "address": "host", "ip": "host", "name": "host", "node": "host",
    "username": "user", "ssh_user": "user", "ssh_port": "port", "key": "identity_file",
    "key_file": "identity_file", "ssh_key": "identity_file", "jump": "proxy_jump",
    "slots": "gpus", "num_gpus": "gpus", "gpu": "gpus", "gpu_ids": "gpus", "devices": "gpus",
    "iface": "interface", "nic": "interface", "private_ip": "internal_ip",
    "nproc": "nproc_per_node", "script": "command", "cmd": "command", "args": "command",
    "environment": "env", "envs": "env", "volumes": "mounts", "data": "dataset",
    "code": "workdir", "port": "master_port", "restarts": "max_restarts", "nodes": "hosts",
    "workers": "hosts"
}  # fmt: skip


def unknown(name: str, line: int, known: Collection[str]) -> Problem:
    """Return the problem of an unknown key. It names the section that has the key, or a similar key."""
    allowed = ", ".join(sorted(known))
    homes = [f"{home}:" for home, keys in (("hosts", HOST), ("job", JOB)) if name in {*keys, home}]
    if homes:
        remedy, near = f"move it under {' or '.join(homes)}", None
    else:
        synonym = _SYNONYMS.get(name.lower().replace("-", "_"))
        near = synonym if synonym in known else nearest(name, known)
        remedy = "correct or remove it"
    return Problem(line, quoted(name), "found an unknown key", remedy, allowed, near)
