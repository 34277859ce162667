"""YAML as a tree that remembers its lines: `Text`, `Sequence` and `Table`.

Nothing is constructed from a tag, scalars stay as they were written, and documents that are made
to exhaust a reader (deep nesting, aliases of aliases) are refused before they are walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

from .problems import Problems, shown

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 20
MAX_ALIASES = 100

# libyaml when PyYAML was built with it: ten times as fast on a hostile file of 1 MB.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STR, _NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"
_PLAIN_TAGS = {
    _STR: "text",
    _NULL: "nothing",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:bool": "a yes/no value",
    "tag:yaml.org,2002:timestamp": "a date",
    "tag:yaml.org,2002:value": "text",
    "tag:yaml.org,2002:merge": "text",
}
_TREE_TAGS = {"tag:yaml.org,2002:seq", "tag:yaml.org,2002:map"}


@dataclass(frozen=True)
class Text:
    """A scalar. text: as written. kind: what YAML takes it for, in words."""

    line: int
    text: str
    kind: str = "text"

    @property
    def is_null(self) -> bool:
        return self.kind == "nothing"


@dataclass(frozen=True)
class Sequence:
    line: int
    items: tuple[Tree, ...]
    kind: str = "a list"


@dataclass(frozen=True)
class Table:
    """A mapping. lines: where each key stands."""

    line: int
    entries: Mapping[str, Tree]
    lines: Mapping[str, int] = field(default_factory=dict)
    kind: str = "a mapping"


Tree: TypeAlias = Text | Sequence | Table


def read_yaml(text: str, problems: Problems) -> Tree | None:
    """The document in `text`, or None after a problem that leaves nothing to look at."""
    if len(text) > MAX_CHARACTERS:
        problems.add(
            0, "", "more than 1 MB", allowed="a hosts file of up to 1 MB", remedy="is it this file?"
        )
        return None
    try:
        if not _is_modest(text, problems):
            return None
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = shown(error.problem or error.context or "cannot be read")
        remedy = "indent with spaces" if "\\t" in what else "mend the YAML at this line"
        problems.add(mark.line + 1 if mark else 0, "", f"not YAML: {what}", remedy=remedy)
        return None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        what = shown(" ".join(str(error).split()))
        problems.add(0, "", f"not YAML: {what}", remedy="give a text file in UTF-8")
        return None
    if node is None:
        return Text(1, "", "nothing")
    return _Walk(problems).tree(node, "")


def _is_modest(text: str, problems: Problems) -> bool:
    """True when walking the document costs no more than its size."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH or aliases > MAX_ALIASES:
            found = (
                f"nested more than {MAX_DEPTH} deep"
                if depth > MAX_DEPTH
                else f"more than {MAX_ALIASES} aliases"
            )
            line = event.start_mark.line + 1 if event.start_mark else 0
            problems.add(line, "", found, remedy="write the values out; no hosts file needs this")
            return False
    return True


class _Walk:
    """Turns PyYAML's nodes into ours, each node once however many aliases point at it."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.done: dict[int, Tree] = {}
        self.open: set[int] = set()

    def tree(self, node: yaml.Node, path: str) -> Tree:
        known = self.done.get(id(node))
        if known is not None:
            return known
        line = node.start_mark.line + 1
        if id(node) in self.open:
            self.problems.add(line, path, "an alias of itself", remedy="write the value out")
            return Text(line, "", "nothing")
        self.open.add(id(node))
        made = self._made(node, line, path)
        self.open.discard(id(node))
        self.done[id(node)] = made
        return made

    def _made(self, node: yaml.Node, line: int, path: str) -> Tree:
        if node.tag not in _PLAIN_TAGS and node.tag not in _TREE_TAGS:
            found = f"the YAML tag {shown(node.tag)}"
            self.problems.add(line, path, found, allowed="plain values", remedy="remove the tag")
        if isinstance(node, yaml.SequenceNode):
            return Sequence(
                line, tuple(self.tree(n, f"{path}[{i}]") for i, n in enumerate(node.value))
            )
        if isinstance(node, yaml.MappingNode):
            return self._table(node, line, path)
        return Text(line, str(node.value), _PLAIN_TAGS.get(node.tag, "text"))

    def _table(self, node: yaml.MappingNode, line: int, path: str) -> Table:
        own: dict[str, Tree] = {}
        lines: dict[str, int] = {}
        merged: list[Tree] = []
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.add(at, path, "a key that is not text", remedy="use a plain word")
                continue
            key = str(key_node.value)
            inner = f"{path}.{shown(key)}" if path else shown(key)
            value = self.tree(value_node, inner)
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged.append(value)
            elif key in own:
                found = f"written twice (first on line {lines[key]})"
                self.problems.add(at, inner, found, remedy="keep one of them")
            else:
                own[key], lines[key] = value, at
        return self._with_merged(Table(line, own, lines), merged, path)

    def _with_merged(self, table: Table, merged: list[Tree], path: str) -> Table:
        """`<<: *anchor`: what is written here wins over what is merged, the first over the next."""
        entries, lines = dict(table.entries), dict(table.lines)
        for tree in merged:
            for other in tree.items if isinstance(tree, Sequence) else (tree,):
                if not isinstance(other, Table):
                    self.problems.add(
                        other.line, path, f"`<<` of {other.kind}", allowed="`<<` of a mapping"
                    )
                    continue
                for key, value in other.entries.items():
                    entries.setdefault(key, value)
                    lines.setdefault(key, other.lines[key])
        return Table(table.line, entries, lines)
