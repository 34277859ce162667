"""Convert Ansible inventories, dstack fleets and SkyPilot node pools to the tree of a hosts file."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from ..text import quoted
from .mistakes import Mistake, Wrong
from .yaml_tree import LIST, MAPPING, TEXT, RawValue, raw

Keys: TypeAlias = Mapping[str, RawValue]
ANSIBLE, DSTACK, SKYPILOT = "an Ansible inventory", "a dstack fleet", "SkyPilot node pools"

_OUR_KEYS = {  # our keys by those of the other tools
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
_INI_SECTION = re.compile(r"\[([^\[\]:,]+)(?::(vars|children))?\]")
_WITH_PORT = re.compile(r"([^:\[\]]+(?:\[[^\[\]]*\][^:\[\]]*)*):([0-9]+)")  # gpu[01:12].lab:2222
_JUMP = re.compile(r"""(?:(?<![\w-])-J\s*|\bProxyJump[=\s]\s*)["']?([^\s"']+)""")
_YAML_START = re.compile(r"[-{%]|.*:(\s|$)")


def is_ini(text: str) -> bool:
    """Return whether the text is an Ansible inventory: it has a section, and its start is not YAML."""
    lines = [line for line in map(_significant, text.splitlines()) if line]
    return any(map(_INI_SECTION.fullmatch, lines)) and not _YAML_START.match(lines[0])


def kind_of(tree: RawValue) -> str | None:
    """Return which tool's file this is, such as ANSIBLE, or None if it is not another tool's."""
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
    hosts: dict[str, tuple[Keys, Keys]] = {}
    for group in tree.entries.values():
        for name, shared, own in _hosts_of(group, {}):  # a host in several groups is one host
            before = hosts.get(name, ({}, {}))
            hosts[name] = {**before[0], **shared}, {**before[1], **own}
    merged = [{**shared, **own} for shared, own in hosts.values()]
    return raw({"hosts": [RawValue(keys["host"].line, MAPPING, entries=keys) for keys in merged]})


def _hosts_of(group: RawValue, outer: Keys) -> Iterator[tuple[str, Keys, Keys]]:
    """Yield (name, keys of its groups, own keys) for each host in a group and in the groups inside it."""
    hosts, variables, children = (
        group.entries.get(key, raw({})) for key in ("hosts", "vars", "children")
    )
    shared = {**outer, **_ours(group.entries), **_ours(variables.entries)}
    for item in hosts.items:  # dstack and SkyPilot
        own = {"host": item} if item.kind == TEXT else _ours(item.entries)
        if "host" in own:
            yield own["host"].text, shared, own
    for written, item in hosts.entries.items():  # Ansible
        name, port = written, {}
        if match := _WITH_PORT.fullmatch(written):
            name, port = match[1], {"port": RawValue(item.line, TEXT, match[2])}
        keys = {**shared, "host": RawValue(item.line, TEXT, name)}
        yield name, keys, {**port, **_ours(item.entries)}
    for child in children.entries.values():
        yield from _hosts_of(child, shared)


def _ours(theirs: Keys) -> Keys:
    ours = {_OUR_KEYS[key]: value for key, value in theirs.items() if key in _OUR_KEYS}
    for key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
        if key in theirs and (jump := _JUMP.search(theirs[key].text)):
            ours["proxy_jump"] = replace(theirs[key], text=jump[1])
    return ours


def read_ini(text: str) -> RawValue:
    """Parse an INI inventory of Ansible into the same tree as its YAML form."""
    groups: dict[str, dict[str, dict[str, RawValue]]] = defaultdict(lambda: defaultdict(dict))
    group, kind = groups["ungrouped"], "hosts"
    for line, written in enumerate(map(_significant, text.splitlines()), 1):
        if section := _INI_SECTION.fullmatch(written):
            group, kind = groups[section[1]], section[2] or "hosts"
        elif written and kind == "hosts":
            try:
                word, *options = shlex.split(written)
            except ValueError:  # an unclosed quote
                what = f"found {quoted(written)}"
                raise Wrong(Mistake(line, "", what, "close the quotes")) from None
            values = (option.partition("=") for option in options)
            keys = {key: RawValue(line, TEXT, value) for key, _, value in values}
            group["hosts"][word] = RawValue(line, MAPPING, entries=keys)
        elif written:  # a variable, or the name of a group inside this one
            key, _, value = written.partition("=")
            group[kind][key.strip()] = RawValue(line, TEXT, value.strip())
    inside = [(group, groups[name]) for group in [*groups.values()] for name in group["children"]]
    for _ in inside:  # variables of a group apply to the groups inside it, however deep
        for group, child in inside:
            child["vars"] = {**group["vars"], **child["vars"]}
    for group in [*groups.values()]:
        group["vars"] = {**groups["all"]["vars"], **group["vars"]}
    return raw({name: {"hosts": {}, **group} for name, group in groups.items()})


def _significant(line: str) -> str:
    return re.sub(r"(^|\s)[#;].*", "", line).strip()
