"""All keys of the hosts file, from hosts.schema.json.

Editors use that file for validation and completion, docs/hosts-file.md shows it, and the loader
reads it. ddpctl's own keywords: `x-allowed` and `x-default` describe the value and the default in
words; `x-reader` names a reader in values.py for what a schema cannot express; `x-synonyms` are
keys that users of other tools might write; `x-engines` are the engines that have the key (default:
all).
"""

import json
from collections.abc import Mapping
from pathlib import Path

from ..text import nearest, quoted
from .mistakes import Mistake
from .values import Shape

FILE = Path(__file__).with_name("hosts.schema.json")
SCHEMA = json.loads(FILE.read_bytes())
SECTIONS: Mapping[str, Shape] = SCHEMA["properties"]
HOST: Mapping[str, Shape] = SCHEMA["definitions"]["host"]["anyOf"][1]["properties"]
# Excludes host and internal_ip, which differ for each machine, and nproc_per_node, which `job:` has.
DEFAULTS = {name: HOST[name] for name in SECTIONS["defaults"]["properties"]}
JOB: Mapping[str, Shape] = SECTIONS["job"]["properties"]

PACKAGES_REMEDY = "install packages in an image with `ddpctl image build`"
_PACKAGES = f"{PACKAGES_REMEDY}; with engine: process, set job.requirements"
_REMEDIES = {
    "ip": (
        "write `host:` for the address that ssh uses, and `internal_ip:` for the one that other "
        "nodes use"
    ),
    **dict.fromkeys(("setup", "pip"), _PACKAGES),
    "password": "remove it and install your key with `ssh-copy-id HOST`: ddpctl uses no passwords",
    **dict.fromkeys(("nnodes", "num_nodes"), "remove it: every host is a node"),
    "network": "remove it: the containers use the host's network",
    "memory": "remove it: the containers may use all memory; shm_size sets /dev/shm",
}


def unknown(name: str, line: int, known: Mapping[str, Shape]) -> Mistake:
    """Return the mistake for an unknown key. Its remedy may name a section or a similar key."""
    written, what = quoted(name), "found an unknown key"
    word = name.lower().replace("-", "_")
    synonyms = {word: key for key, shape in known.items() for word in shape.get("x-synonyms", ())}
    homes = [
        f"`{home}:`" for home, keys in (("hosts", HOST), ("job", JOB)) if name in {*keys, home}
    ]
    if homes and f"{name}s" not in known:  # `host:` where `hosts:` belongs is a typo
        return Mistake(line, written, what, f"move it under {' or '.join(homes)}")
    if remedy := _REMEDIES.get(word):
        return Mistake(line, written, what, remedy)
    if near := synonyms.get(word) or nearest(name, known):
        return Mistake(line, written, what, f"did you mean '{near}'?")
    return Mistake(line, written, what, "correct or remove it", ", ".join(sorted(known)))
