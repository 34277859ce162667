"""All keys of the hosts file, from hosts.schema.json.

Editors use that file for validation and completion, docs/hosts-file.md shows it, and the loader
reads it. Keywords of our own: `x-allowed` and `x-default` describe the value and the default in
words; `x-reader` names a reader in values.py for what a schema cannot express.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ..text import nearest, quoted
from .mistakes import Mistake
from .values import Reader, Shape, reader

PathKind: TypeAlias = Literal["file", "requirements", "env file", "folder"]

FILE = Path(__file__).with_name("hosts.schema.json")
SCHEMA = json.loads(FILE.read_bytes())


@dataclass(frozen=True)
class SchemaKey:
    """A key. allowed, default: in words. path: what must exist there, if the value is a local path."""

    read: Reader
    meaning: str
    allowed: str
    default: str
    path: PathKind | None

    @classmethod
    def of(cls, shape: Shape) -> "SchemaKey":
        meaning, allowed, default = (shape[k] for k in ("description", "x-allowed", "x-default"))
        kind = shape.get("x-reader")
        path: PathKind | None = kind if kind in get_args(PathKind) else None
        return cls(reader(shape), meaning, allowed, default, path)


_SECTIONS = SCHEMA["properties"]
_HOST = SCHEMA["definitions"]["host"]["anyOf"][1]["properties"]
SECTIONS: Collection[str] = _SECTIONS.keys()
HOST = {name: SchemaKey.of(shape) for name, shape in _HOST.items()}
# Not host and internal_ip, which each machine has, nor nproc_per_node, whose default is in job.
DEFAULTS = {name: HOST[name] for name in _SECTIONS["defaults"]["properties"]}
JOB = {name: SchemaKey.of(shape) for name, shape in _SECTIONS["job"]["properties"].items()}

# Keys that users of other tools might try.
_SYNONYMS = {
    "hostname": "host", "address": "host", "name": "host", "node": "host",
    "username": "user", "ssh_user": "user", "ssh_port": "port", "key": "identity_file",
    "key_file": "identity_file", "ssh_key": "identity_file", "jump": "proxy_jump",
    "slots": "gpus", "num_gpus": "gpus", "gpu": "gpus", "gpu_ids": "gpus", "devices": "gpus",
    "iface": "interface", "nic": "interface", "private_ip": "internal_ip",
    "nproc": "nproc_per_node", "script": "command", "cmd": "command", "args": "command",
    "environment": "env", "envs": "env", "volumes": "mounts", "data": "dataset",
    "code": "workdir", "port": "master_port", "restarts": "max_restarts", "nodes": "hosts",
    "workers": "hosts"
}  # fmt: skip

_PACKAGES = (
    "`ddpctl image build` installs packages in an image; engine: process has job.requirements"
)
_REMEDIES = {
    "ip": "write host: for the address that ssh uses, internal_ip: for the one that other nodes use",
    **dict.fromkeys(("setup", "pip"), _PACKAGES),
    "password": "ddpctl logs in with keys: `ssh-copy-id HOST` installs yours",
    "nnodes": "remove it: every host is a node",
    "num_nodes": "remove it: every host is a node",
    "network": "remove it: the containers use the host's network",
    "memory": "remove it: the containers may use all memory; shm_size sets /dev/shm",
}


def unknown(name: str, line: int, known: Collection[str]) -> Mistake:
    """Return the mistake of an unknown key: where it belongs, a similar key, or all known keys."""
    what, written = "found an unknown key", quoted(name)
    homes = [f"{home}:" for home, keys in (("hosts", HOST), ("job", JOB)) if name in {*keys, home}]
    if homes:
        return Mistake(line, written, what, f"move it under {' or '.join(homes)}")
    if remedy := _REMEDIES.get(name.lower().replace("-", "_")):
        return Mistake(line, written, what, remedy)
    synonym = _SYNONYMS.get(name.lower().replace("-", "_"))
    if near := synonym if synonym in known else nearest(name, known):
        return Mistake(line, written, what, near=near)
    return Mistake(line, written, what, "correct or remove it", allowed=", ".join(sorted(known)))
