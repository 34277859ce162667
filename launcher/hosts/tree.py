"""YAML as a tree with line numbers: `Scalar`, `Items` and `Table`.

Scalars stay as written, and tags construct nothing. Documents designed to exhaust a reader (deep
nesting, aliases of aliases) are refused before they are walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

from .problems import Problem, Wrong, shown

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 20
MAX_ALIASES = 100

# PyYAML's optional C parser is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    f"{_TAG}str": "text",
    f"{_TAG}null": "nothing",
    f"{_TAG}int": "a number",
    f"{_TAG}float": "a number",
    f"{_TAG}bool": "a yes/no value",
    f"{_TAG}timestamp": "a date",
    f"{_TAG}value": "text",
    f"{_TAG}merge": "text",
}
_TAGS = {*_SCALARS, f"{_TAG}seq", f"{_TAG}map"}


@dataclass(frozen=True)
class Scalar:
    """A single value. text: as written. kind: the type that YAML assigns, in words."""

    line: int
    text: str
    kind: str = "text"

    @property
    def is_null(self) -> bool:
        return self.kind == "nothing"


@dataclass(frozen=True)
class Items:
    line: int
    items: tuple[Tree, ...]
    kind: str = "a list"


@dataclass(frozen=True)
class Table:
    """A mapping. lines: the line of each key."""

    line: int
    entries: Mapping[str, Tree]
    lines: Mapping[str, int] = field(default_factory=dict)
    kind: str = "a mapping"


Tree: TypeAlias = Scalar | Items | Table


def read_yaml(text: str, problems: list[Problem]) -> Tree:
    """Parse one document. Raises Wrong if it is not YAML; appends all other problems."""
    if len(text) > MAX_CHARACTERS:
        raise Wrong(Problem(0, "", "found more than 1 MB", "is this a hosts file?"))
    try:
        _refuse_bombs(text)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        raise Wrong(_syntax_error(text, error)) from None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        what = f"not YAML: {shown(' '.join(str(error).split()))}"
        raise Wrong(Problem(0, "", what, "save the file as UTF-8 text")) from None
    return Scalar(1, "", "nothing") if node is None else _Walk(problems).tree(node, "")


def _syntax_error(text: str, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else -1
    written = text.split("\n")[line] if 0 <= line <= text.count("\n") else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return Problem(line + 1, "", "found a tab", "indent with spaces")
    what = f"not YAML: {shown(error.problem or error.context or 'cannot be read')}"
    return Problem(line + 1, "", what, "fix the YAML at this line")


def _refuse_bombs(text: str) -> None:
    """Raise Wrong if walking the document would cost more than its size."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > MAX_DEPTH or aliases > MAX_ALIASES:
            deep = f"found nesting more than {MAX_DEPTH} deep"
            what = deep if depth > MAX_DEPTH else f"found more than {MAX_ALIASES} aliases"
            raise Wrong(
                Problem(getattr(event.start_mark, "line", -1) + 1, "", what, "write the values out")
            )


class _Walk:
    """Converts PyYAML's nodes to ours, each node once, however many aliases refer to it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.done: dict[int, Tree | None] = {}  # None: in progress

    def tree(self, node: yaml.Node, path: str) -> Tree:
        line = node.start_mark.line + 1
        if id(node) not in self.done:
            self.done[id(node)] = None
            self.done[id(node)] = self._made(node, line, path)
        made = self.done[id(node)]
        if made is None:
            self.problems.append(Problem(line, path, "an alias of itself", "write the value out"))
            return Scalar(line, "", "nothing")
        return made

    def _made(self, node: yaml.Node, line: int, path: str) -> Tree:
        if node.tag not in _TAGS:
            what = f"found the YAML tag {shown(node.tag)}"
            self.problems.append(Problem(line, path, what, "remove the tag", "plain values"))
        if isinstance(node, yaml.SequenceNode):
            parts = enumerate(node.value)
            return Items(line, tuple(self.tree(part, f"{path}[{i}]") for i, part in parts))
        if isinstance(node, yaml.MappingNode):
            return self._table(node, line, path)
        return Scalar(line, str(node.value), _SCALARS.get(node.tag, "text"))

    def _table(self, node: yaml.MappingNode, line: int, path: str) -> Table:
        entries: dict[str, Tree] = {}
        lines: dict[str, int] = {}
        merged: list[Tree] = []
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                what = "found a key that is not text"
                self.problems.append(Problem(at, path, what, "use a plain word"))
                continue
            key = str(key_node.value)
            inner = f"{path}.{shown(key)}" if path else shown(key)
            value = self.tree(value_node, inner)
            if key_node.tag == f"{_TAG}merge":
                merged += value.items if isinstance(value, Items) else [value]
            elif key in entries:
                what = f"written twice (first on line {lines[key]})"
                self.problems.append(Problem(at, inner, what, "keep one of them"))
            else:
                entries[key], lines[key] = value, at
        for other in merged:  # `<<`: own keys win, then earlier mappings
            if isinstance(other, Table):
                entries = {**other.entries, **entries}
                lines = {**other.lines, **lines}
            else:
                what = f"found `<<` of {other.kind}"
                self.problems.append(Problem(other.line, path, what, allowed="`<<` of a mapping"))
        return Table(line, entries, lines)
