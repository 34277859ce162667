"""JSON as a dataclass: fields of other types are refused, unknown ones are left out."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read(kind: type[T], value: object, where: str = "it") -> T:
    """`value` as a `kind`, a dataclass of plain values, lists and further dataclasses.

    Raises ValueError, which names the field that is missing or has another type.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not an object")
    hints = get_type_hints(kind)
    known = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in value:
            known[field.name] = _typed(hints[field.name], value[field.name], field.name)
        elif (field.default, field.default_factory) == (dataclasses.MISSING, dataclasses.MISSING):
            raise ValueError(f"{field.name} is missing")
    return kind(**known)


def _typed(hint: Any, value: object, where: str) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return _one_of(get_args(hint), value, where)
    if get_origin(hint) is list and isinstance(value, list):
        return [_typed(get_args(hint)[0], item, where) for item in value]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read(hint, value, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint:  # exactly: True is no number
        return value
    raise ValueError(f"{where} has the wrong type")


def _one_of(hints: tuple[Any, ...], value: object, where: str) -> Any:
    for hint in hints:
        try:
            return _typed(hint, value, where)
        except ValueError:
            continue
    raise ValueError(f"{where} has the wrong type")
