"""Ansible inventories, dstack fleets and SkyPilot node pools as trees of a hosts file."""

import re
import shlex
from collections.abc import Iterator, Mapping

from ..text import quoted
from .mistakes import Mistake, Wrong
from .yaml_tree import LIST, MAPPING, TEXT, RawValue, raw

ANSIBLE, DSTACK, SKYPILOT = "an Ansible inventory", "a dstack fleet", "SkyPilot node pools"

_OUR_KEYS = {  # by theirs
    "ansible_host": "host",
    "ansible_ssh_host": "host",
    "hostname": "host",
    "ip": "host",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "user": "user",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "port": "port",
    "ansible_ssh_private_key_file": "identity_file",
    "ansible_private_key_file": "identity_file",
    "identity_file": "identity_file",
    "internal_ip": "internal_ip",
}
_INI_SECTION = re.compile(r"\[([^\[\]:]+)(?::(vars|children))?\]")


def is_ini(text: str) -> bool:
    """Return whether the first significant line is a section of an Ansible inventory."""
    first = next((line for line in map(_significant, text.splitlines()) if line), "")
    return bool(_INI_SECTION.fullmatch(first))


def kind_of(tree: RawValue) -> str | None:
    """Return which tool's file this is, or None."""
    keys = tree.entries
    if "ssh_config" in keys or ("type" in keys and keys["type"].text == "fleet"):
        return DSTACK
    groups = [value for value in keys.values() if value.entries.keys() & {"hosts", "children"}]
    if not groups or len(groups) < len(keys) or keys.keys() & {"job", "hosts"}:
        return None
    has_list = any("hosts" in g.entries and g.entries["hosts"].kind == LIST for g in groups)
    return SKYPILOT if has_list else ANSIBLE


def as_hosts_file(tree: RawValue) -> RawValue:
    """Return the hosts of another tool's file as the tree of a hosts file."""
    hosts: dict[str, RawValue] = {}
    if kind_of(tree) == DSTACK:
        entries = _of_list(tree.entries.get("ssh_config", RawValue(tree.line, MAPPING)))
    elif kind_of(tree) == SKYPILOT:
        entries = (entry for pool in tree.entries.values() for entry in _of_list(pool))
    else:
        entries = (entry for group in tree.entries.values() for entry in _of_group(group, {}))
    for host in entries:  # a host of several groups is one host
        merged = {**hosts.get(host["host"].text, raw({})).entries, **host}
        hosts[host["host"].text] = RawValue(host["host"].line, MAPPING, entries=merged)
    return raw({"hosts": list(hosts.values())})


def read_ini(text: str) -> RawValue:
    """Parse an Ansible inventory in INI form into the tree of one in YAML."""
    groups: dict[str, dict[str, dict[str, object]]] = {}
    name, kind = "ungrouped", "hosts"
    for line, written in enumerate(map(_significant, text.splitlines()), 1):
        if section := _INI_SECTION.fullmatch(written):
            name, kind = section[1], section[2] or "hosts"
        elif written:
            try:
                word, *options = shlex.split(written) if kind == "hosts" else [written]
            except ValueError:  # a quote without its pair
                raise Wrong(
                    Mistake(line, "", f"found {quoted(written)}", "close the quotes")
                ) from None
            group = groups.setdefault(name, {})
            if kind == "vars":
                key, _, value = word.partition("=")
                group.setdefault(kind, {})[key.strip()] = RawValue(line, TEXT, value.strip())
            elif kind == "hosts":
                values = (option.partition("=") for option in options)
                keys = {key: RawValue(line, TEXT, value) for key, _, value in values}
                group.setdefault(kind, {})[word] = RawValue(line, MAPPING, entries=keys)
            else:
                group.setdefault(kind, {})[word] = raw({}, line)
    for group in groups.values():  # variables of a group count for the groups inside it
        for child in group.get("children", {}):
            inner = groups.setdefault(child, {})
            inner["vars"] = {**group.get("vars", {}), **inner.get("vars", {})}
    return raw(
        {name: {k: v for k, v in g.items() if k != "children"} for name, g in groups.items()}
    )


def _significant(line: str) -> str:
    return re.sub(r"(^|\s)[#;].*", "", line).strip()


def _of_group(group: RawValue, outer: Mapping[str, RawValue]) -> Iterator[dict[str, RawValue]]:
    """Yield the hosts of an Ansible group and of the groups inside it."""
    variables = {**outer, **_entries(group, "vars")}
    for name, own in _entries(group, "hosts").items():
        ranged = re.sub(r"\[(\w+):(\w+)\]", r"[\1-\2]", name)
        yield {"host": RawValue(own.line, TEXT, ranged), **_ours({**variables, **own.entries})}
    for child in _entries(group, "children").values():
        yield from _of_group(child, variables)


def _of_list(pool: RawValue) -> Iterator[dict[str, RawValue]]:
    """Yield the hosts of a list, whose other keys are defaults."""
    defaults = _ours(pool.entries)
    for item in pool.entries.get("hosts", RawValue(pool.line, LIST)).items:
        own = {"host": item} if item.kind == TEXT else _ours(item.entries)
        if "host" in own:
            yield {**defaults, **own}


def _entries(group: RawValue, key: str) -> Mapping[str, RawValue]:
    return group.entries[key].entries if key in group.entries else {}


def _ours(theirs: Mapping[str, RawValue]) -> dict[str, RawValue]:
    return {_OUR_KEYS[key]: value for key, value in theirs.items() if key in _OUR_KEYS}
