"""YAML as a tree with line numbers. Scalars stay as written, and tags create no objects.

Documents designed to exhaust the parser (deep nesting, aliases of aliases) are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from ..text import quoted
from .problems import Problem, Wrong

MAX_ALIASES = 100
LIST, MAPPING, NOTHING, TEXT, MERGE = "a list", "a mapping", "nothing", "text", "a merge key"

# PyYAML's optional C parser is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()
_TAG = "tag:yaml.org,2002:"
_KINDS = {
    f"{_TAG}str": TEXT,
    f"{_TAG}null": NOTHING,
    f"{_TAG}int": "a number",
    f"{_TAG}float": "a number",
    f"{_TAG}bool": "a yes/no value",
    f"{_TAG}timestamp": "a date",
    f"{_TAG}value": TEXT,
    f"{_TAG}merge": MERGE,
    f"{_TAG}seq": LIST,
    f"{_TAG}map": MAPPING,
}


@dataclass(frozen=True)
class Tree:
    """A value. line: where it starts, or where its key does. kind: its YAML type, in words."""

    line: int
    kind: str = TEXT
    text: str = ""  # of a scalar, as written
    items: tuple[Tree, ...] = ()  # of a list
    entries: Mapping[str, Tree] = field(default_factory=dict)  # of a mapping

    @property
    def shown(self) -> str:
        if self.kind in (LIST, MAPPING, NOTHING):
            return self.kind
        return quoted(self.text) if self.text.strip() else "empty text"


def tree_of(value: object, line: int = 0) -> Tree:
    """Return the tree of a value that was not written in YAML."""
    if isinstance(value, Mapping):
        entries = {str(name): tree_of(each, line) for name, each in value.items()}
        return Tree(line, MAPPING, entries=entries)
    if isinstance(value, (list, tuple)):
        return Tree(line, LIST, items=tuple(tree_of(each, line) for each in value))
    return value if isinstance(value, Tree) else Tree(line, text=str(value))


def read_yaml(text: str, problems: list[Problem]) -> Tree:
    """Parse one document. Raises Wrong if it is not YAML; appends all other problems."""
    try:
        return _Composer(text, problems).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else -1
        written = "".join(text.split("\n")[line : line + 1])
        what, remedy = f"not YAML: {quoted(error.problem or '?')}", "fix the YAML at this line"
        if "\t" in written[: len(written) - len(written.lstrip())]:
            what, remedy = "found a tab", "indent with spaces"
        raise Wrong(Problem(line + 1, "", what, remedy)) from None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        what = f"not YAML: {quoted(' '.join(str(error).split()))}"
        raise Wrong(Problem(0, "", what, "save the file as UTF-8 text")) from None
    except RecursionError:
        raise Wrong(Problem(0, "", "found too many nested lists", "nest fewer")) from None


class _Composer:
    """Builds the tree from PyYAML's events. Like PyYAML's own composer, but with limits."""

    def __init__(self, text: str, problems: list[Problem]) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.problems = problems
        self.anchors: dict[str, Tree] = {}
        self.aliases = 0

    def document(self) -> Tree:
        next(self.events)  # the start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return Tree(1, NOTHING)
        tree = self._tree(next(self.events), "")
        next(self.events)  # the end of the document
        if not isinstance(event := next(self.events), yaml.StreamEndEvent):
            raise _not_yaml("found a second document", event)
        return tree

    def _tree(self, event: Any, path: str) -> Tree:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            if event.anchor not in self.anchors or self.aliases > MAX_ALIASES:
                many = f"found more than {MAX_ALIASES} aliases"
                undefined = f"found the alias *{event.anchor} without &{event.anchor} above it"
                raise _not_yaml(many if self.aliases > MAX_ALIASES else undefined, event)
            return self.anchors[event.anchor]
        tag = None if event.tag == "!" else event.tag
        if tag and tag not in _KINDS:
            what = f"found the YAML tag {quoted(tag)}"
            self.problems.append(Problem(line, path, what, "remove the tag", "plain values"))
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Tree] = []
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                items.append(self._tree(inner, f"{path}[{len(items)}]"))
            tree = Tree(line, LIST, items=tuple(items))
        elif isinstance(event, yaml.MappingStartEvent):
            tree = Tree(line, MAPPING, entries=self._entries(path))
        else:
            tag = tag or _RESOLVER.resolve(yaml.ScalarNode, event.value, event.implicit)
            tree = Tree(line, _KINDS.get(tag, TEXT), event.value)
        if event.anchor:
            self.anchors[event.anchor] = tree
        return tree

    def _entries(self, path: str) -> dict[str, Tree]:
        entries: dict[str, Tree] = {}
        merged: list[Tree] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._tree(event, path)
            inner = f"{path}.{quoted(key.text)}".removeprefix(".")
            value = replace(self._tree(next(self.events), inner), line=key.line)
            if key.kind in (LIST, MAPPING):
                what = "found a key that is not text"
                self.problems.append(Problem(key.line, path, what, "use a plain word"))
            elif key.kind == MERGE:
                merged += value.items or [value]
            elif key.text in entries:
                what = f"written twice (first on line {entries[key.text].line})"
                self.problems.append(Problem(key.line, inner, what, "keep one of them"))
            else:
                entries[key.text] = value
        for other in merged:  # `<<`: own keys win, then earlier mappings
            entries = {**other.entries, **entries}
            if other.kind != MAPPING:
                what = f"found `<<` of {other.kind}"
                self.problems.append(Problem(other.line, path, what, allowed="`<<` of a mapping"))
        return entries


def _not_yaml(what: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=event.start_mark)
