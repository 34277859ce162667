"""A hosts file's document, read into entries and a job; every problem is noted on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import values
from .problems import shown
from .rules import Entry, check_job, check_rules
from .schema import DEFAULTS, HOST, JOB, SECTIONS, Key, read_keys, unknown
from .values import At, Reading, Value
from .yaml import Sequence, Table, Text, Tree, read_yaml

_AMBIGUOUS_PORT = 22  # below it, gpu1:8 may as well mean eight GPUs
_NOTHING = Text(0, "", "nothing")


@dataclass(frozen=True)
class Document:
    """What could be read. Complete only when the reading has no problems."""

    hosts: tuple[Entry, ...] = ()
    spares: tuple[Entry, ...] = ()
    job: Mapping[str, Value] | None = None


def read_document(text: str, reading: Reading) -> Document:
    tree = read_yaml(text, reading.problems)
    if tree is None:
        return Document()
    if not isinstance(tree, Table):
        found = "an empty file" if isinstance(tree, Text) and tree.is_null else tree.kind
        reading.problems.add(
            tree.line,
            "",
            f"found {found}",
            allowed="a mapping with hosts:",
            remedy="write hosts: and one `- NAME` a line",
        )
        return Document()
    for name in tree.entries:
        if name not in SECTIONS:
            unknown(name, tree.lines[name], "", tuple(SECTIONS), reading)
    defaults = _section(tree, "defaults", DEFAULTS, reading)
    job = _section(tree, "job", JOB, reading)
    hosts = _hosts(tree, "hosts", defaults, reading)
    spares = _hosts(tree, "spares", defaults, reading)
    check_rules([*hosts, *spares], job, reading.problems)
    job_tree = tree.entries.get("job")
    lines = job_tree.lines if isinstance(job_tree, Table) else {}
    check_job(job, lines, reading.problems)
    return Document(tuple(hosts), tuple(spares), job)


def _section(tree: Table, name: str, keys: tuple[Key, ...], reading: Reading) -> dict[str, Value]:
    section = tree.entries.get(name, _NOTHING)
    if isinstance(section, Table):
        return read_keys(section, keys, name, reading)
    # A section whose every line is commented out is empty, not wrong.
    if not (isinstance(section, Text) and section.is_null):
        reading.problems.add(
            section.line,
            name,
            f"found {section.kind}",
            allowed="a mapping",
            remedy=f"write the keys of {name}: indented below it",
        )
    return {}


def _hosts(tree: Table, name: str, defaults: Mapping[str, Value], reading: Reading) -> list[Entry]:
    section = tree.entries.get(name, _NOTHING)
    if isinstance(section, Sequence) and (section.items or name == "spares"):
        entries = [
            _entry(item, f"{name}[{i}]", defaults, reading) for i, item in enumerate(section.items)
        ]
        return [entry for entry in entries if entry is not None]
    missing = isinstance(section, Sequence) or (isinstance(section, Text) and section.is_null)
    if name == "hosts" or not missing:
        reading.problems.add(
            section.line or tree.line,
            name,
            "found no hosts" if missing else f"found {section.kind}",
            allowed="a list with at least one host" if name == "hosts" else "a list of hosts",
            remedy="write one `- NAME` or `- host: NAME` a line",
        )
    return []


def _entry(item: Tree, key: str, defaults: Mapping[str, Value], reading: Reading) -> Entry | None:
    own: dict[str, Value] | None
    if isinstance(item, Table):
        own = read_keys(item, HOST, key, reading)
        if "host" not in item.entries:
            reading.problems.add(
                item.line,
                f"{key}.host",
                "found no host",
                allowed=HOST[0].allowed,
                remedy="write host: NAME",
            )
    elif isinstance(item, Text):
        own = read_bare(item, At(reading, key, HOST[0].allowed))
    else:
        own = None
        reading.problems.add(
            item.line,
            key,
            f"found {item.kind}",
            allowed="a name or a mapping with host:",
            remedy="write one host an entry",
        )
    if own is None:
        return None
    # This machine is not reached by SSH, so only what is not about SSH holds for it.
    is_local = own.get("host") == "local"
    meant = {k: v for k, v in defaults.items() if not is_local or k in ("gpus", "interface")}
    return Entry(key, item.line, own, {**meant, **own})


def read_bare(item: Text, at: At) -> dict[str, Value] | None:
    """`[user@]host[:port]` as keys of a host."""
    word = values.text(item, at)
    if word is None:
        return None
    user, mark, rest = word.rpartition("@")
    name, port = values.split_port(rest)
    parts: tuple[tuple[str, str | None, values.Reader], ...] = (
        ("user", user if mark else None, values.user),
        ("host", name, values.host),
        ("port", port, values.whole(1, 65535)),
    )
    own: dict[str, Value] = {}
    for key, written, read in parts:
        if written is not None:
            value = read(Text(item.line, written), at)
            if value is None:
                return None
            own[key] = value
    number = own.get("port")
    if isinstance(number, int) and number < _AMBIGUOUS_PORT:
        remedy = f"write {{host: {name}, port: {number}}} or {{host: {name}, gpus: {number}}}"
        at.wrong(item.line, f"{shown(word)}, a port or a number of GPUs", remedy)
        return None
    return own
