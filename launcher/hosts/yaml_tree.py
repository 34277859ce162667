"""YAML as a tree with line numbers. Values stay as they are written, and tags create no objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from ..text import quoted
from .mistakes import Mistake, Wrong

TOO_DEEP = "found too many nested lists", "reduce the nesting"
LIST, MAPPING, NOTHING, TEXT, MERGE = "a list", "a mapping", "nothing", "text", "a merge key"

# PyYAML's optional C parser is ten times as fast.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
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
class RawValue:
    """A value as written. line: where it starts, or where its key does. kind: its type, in words."""

    line: int
    kind: str = TEXT
    text: str = ""  # the text of a single value
    items: tuple[RawValue, ...] = ()  # the items of a list
    entries: Mapping[str, RawValue] = field(default_factory=dict)  # the entries of a mapping

    @property
    def shown(self) -> str:
        if self.kind in (LIST, MAPPING, NOTHING):
            return self.kind
        return quoted(self.text) if self.text.strip() else "empty text"


def raw(value: object, line: int = 0) -> RawValue:
    """Return the raw form of a value that was not written in YAML."""
    if isinstance(value, Mapping):
        entries = {str(name): raw(each, line) for name, each in value.items()}
        return RawValue(line, MAPPING, entries=entries)
    if isinstance(value, (list, tuple)):
        return RawValue(line, LIST, items=tuple(raw(each, line) for each in value))
    return value if isinstance(value, RawValue) else RawValue(line, text=str(value))


def read_yaml(text: str, mistakes: list[Mistake]) -> RawValue:
    """Parse one document. Raises Wrong if it is not YAML; appends other mistakes to `mistakes`."""
    try:
        document = yaml.compose(text, Loader=_LOADER)
        return _Conversion(mistakes).value(document, "") if document else RawValue(1, NOTHING)
    except RecursionError:
        raise Wrong(Mistake(0, "", *TOO_DEEP)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark else -1
        written = "".join(text.split("\n")[line : line + 1])
        context, problem = error.context or "", error.problem or "?"
        why = context if context.startswith("found") else problem.removeprefix("but ")
        what, remedy = f"not YAML: {quoted(why)}", "fix the YAML at this line"
        if "nesting depth" in problem:  # libyaml has a limit of its own
            what, remedy = TOO_DEEP
        elif "\t" in written[: len(written) - len(written.lstrip())]:
            what, remedy = "found a tab", "indent with spaces"
        elif re.search(r"\w\[\d", written):
            remedy = "put the range on its own line, as in `- gpu[1-8].lab`, or in quotes"
        raise Wrong(Mistake(line + 1, "", what, remedy)) from None
    except yaml.reader.ReaderError as error:
        line = text.encode(errors="replace").count(b"\n", 0, error.position) + 1
        what = f"found the control character #x{error.character:02x}"
        raise Wrong(Mistake(line, "", what, "remove it")) from None
    except (yaml.YAMLError, UnicodeError, ValueError) as error:
        what = f"not YAML: {quoted(' '.join(str(error).split()))}"
        raise Wrong(Mistake(0, "", what, "save the file as UTF-8 text")) from None


class _Conversion:
    """Converts PyYAML's nodes, each only once even if it has aliases. Collects mistakes."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        self.values: dict[int, RawValue | None] = {}  # by id of the node; None: in progress

    def value(self, node: Any, path: str) -> RawValue:
        line = node.start_mark.line + 1
        if id(node) not in self.values:
            self.values[id(node)] = None
            self.values[id(node)] = self._convert(node, path, line)
        if (value := self.values[id(node)]) is None:
            what = "found an alias inside the value that it stands for"
            raise Wrong(Mistake(line, path, what, "remove the alias"))
        return value

    def _convert(self, node: Any, path: str, line: int) -> RawValue:
        if node.tag not in _KINDS:
            what, remedy = f"found the YAML tag {quoted(node.tag)}", "remove the tag"
            self.mistakes.append(Mistake(line, path, what, remedy))
        if isinstance(node, yaml.SequenceNode):
            items = (self.value(item, f"{path}[{i}]") for i, item in enumerate(node.value))
            return RawValue(line, LIST, items=tuple(items))
        if isinstance(node, yaml.MappingNode):
            return RawValue(line, MAPPING, entries=self._entries(node, path))
        return RawValue(line, _KINDS.get(node.tag, TEXT), node.value)

    def _entries(self, mapping: yaml.MappingNode, path: str) -> dict[str, RawValue]:
        entries: dict[str, RawValue] = {}
        merged: list[RawValue] = []
        for key_node, value_node in mapping.value:
            key = self.value(key_node, path)
            inner = f"{path}.{quoted(key.text)}".removeprefix(".")
            value = replace(self.value(value_node, inner), line=key.line)
            if key.kind in (LIST, MAPPING):
                what = "found a key that is not text"
                self.mistakes.append(Mistake(key.line, path, what, "use a plain word"))
            elif key.kind == MERGE:
                merged += value.items or [value]
            elif key.text in entries:
                what = f"appears twice (first on line {entries[key.text].line})"
                self.mistakes.append(Mistake(key.line, inner, what, "keep one of them"))
            else:
                entries[key.text] = value
        for other in merged:  # `<<`: own keys win, then earlier mappings
            entries = {**other.entries, **entries}
            if other.kind != MAPPING:
                what, remedy = f"found `<<` with {other.kind}", "use `<<` with a mapping"
                self.mistakes.append(Mistake(other.line, path, what, remedy))
        return entries
