"""Parse journal events. No other code reads the event documents that hosts send. Pure.

The supervisor defines the events. An event becomes Unreadable if its kind is unknown or if it does
not match its definition. Unknown fields are ignored.
"""

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ..budget import parse_json
from ..supervisor.events import Event
from ..text import printable

LARGEST = 1e11  # seconds, the limit of times and durations; prevents calendar overflows
LONGEST_TEXT = 1 << 16
LARGEST_EVENT, MOST_ITEMS = 4 << 20, 100_000  # the limits of one event: bytes and values
KINDS = {kind.kind: kind for kind in Event.__subclasses__()}  # the supervisor's events by kind


@dataclass(frozen=True)
class Unreadable(Event):
    """Replaces an event that is malformed or of an unknown kind, such as one of a newer ddpctl."""

    kind = "unreadable"


def parsed_event(text: bytes) -> Event:
    try:
        document = parse_json(text[: LARGEST_EVENT + 1], MOST_ITEMS)
        return parsed(KINDS[document["kind"]], document)
    except (ValueError, TypeError, KeyError):
        return Unreadable()


T = typing.TypeVar("T")
hints_of: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def parsed(kind: type[T], document: Any) -> T:
    """Return a `kind` made from its JSON object. Raises ValueError if a field is missing or wrong."""
    if not isinstance(document, dict):
        raise ValueError(f"not an object: {document!r:.100}")
    fields = {
        name: _value(hint, document[name])
        for name, hint in hints_of(kind).items()
        if name in document and typing.get_origin(hint) is not ClassVar
    }
    try:
        return kind(**fields)
    except TypeError:
        raise ValueError("a field is missing") from None


def _value(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # X | None
        return None if value is None else _value(args[0], value)
    if origin in (tuple, list) and isinstance(value, list):
        return origin(_value(args[0], each) for each in value)
    if origin is dict and isinstance(value, dict):
        return {_text(key): _value(args[1], each) for key, each in value.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)  # raises ValueError
    if dataclasses.is_dataclass(hint):
        return parsed(typing.cast(type, hint), value)
    if hint is str and isinstance(value, str):
        return _text(value)
    if hint is float and type(value) in (int, float) and abs(value) < LARGEST:
        return float(value)
    if type(value) is hint and (hint is bool or (hint is int and abs(value) < 1 << 63)):
        return value
    raise ValueError(f"a value has the wrong type: {value!r:.100}")


def _text(value: str) -> str:
    return printable(value[:LONGEST_TEXT])
