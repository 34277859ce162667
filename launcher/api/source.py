"""The source of a function from a notebook or script, with what it uses from `__main__`."""

import ast
import builtins
import contextlib
import inspect
import linecache
import symtable
import sys
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..errors import UsageError

FUTURE = "from __future__ import annotations"


class Source:
    """The source of functions and classes and of all that they need.

    modules: the modules that they import. Raises UsageError if one of them uses something that cannot be
    sent.
    """

    def __init__(self, *values: type | FunctionType) -> None:
        self.modules: set[str] = set()
        self._lines: dict[str, str] = {}
        for value in values:
            self._user = value.__name__
            # a decorator may be of another module
            self._names = getattr(
                inspect.unwrap(value), "__globals__", vars(sys.modules["__main__"])
            )
            self._define(value.__name__, value)

    @property
    def text(self) -> str:
        return "\n".join([FUTURE, *self._lines.values(), ""])

    def _define(self, name: str, value: Any) -> None:
        if name in self._lines:
            return
        module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if isinstance(value, ModuleType):
            self.modules.add(value.__name__)
            self._lines[name] = f"import {value.__name__} as {name}"
        elif module == "__main__" and (isinstance(value, type) or is_function(value)):
            self._define_own(name, value)
        elif module and module != "__main__" and qualname.isidentifier():
            self.modules.add(module)
            self._lines[name] = f"from {module} import {qualname} as {name}"
        elif is_literal(value):
            self._lines[name] = f"{name} = {value!r}"
        else:
            raise self._refusal(f"the global {name}, a {type(value).__name__}")

    def _define_own(self, name: str, value: type | FunctionType) -> None:
        if isinstance(value, FunctionType):
            if free := inspect.unwrap(value).__code__.co_freevars:
                raise self._refusal(f"{', '.join(free)} of the enclosing function")
            if value.__name__ == "<lambda>":
                raise self._refusal(f"the global {name}, a lambda")
        text = source_text(value)
        if name != value.__name__:
            self._define(value.__name__, value)
            text = f"{name} = {value.__name__}"
        self._lines[name] = ""  # ends the recursion if two functions call each other
        for used in global_names(text):
            if used in self._names and not is_built_in(used, self._names[used]):
                self._define(used, self._names[used])
        self._lines[name] = self._lines.pop(name) or text  # moved behind its dependencies

    def _refusal(self, what: str) -> UsageError:
        remedy = "pass it as an argument, or create it inside the function"
        return UsageError(f"run(): {self._user} uses {what}, which cannot be sent", remedy)


def is_function(value: object) -> bool:
    """Return whether the value is a function. With `functools.wraps`, it may look like another object."""
    return isinstance(value, FunctionType) and isinstance(inspect.unwrap(value), FunctionType)


def source_text(value: type | FunctionType) -> str:
    """Return the source of a class or function. Raises UsageError if it cannot be found."""
    try:
        return textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        if isinstance(value, type) and (text := class_of_a_cell(value.__name__)):
            return text
    what = f"run(): the source of {value.__name__} cannot be found"
    raise UsageError(what, "define it in a file or a notebook cell")


def class_of_a_cell(name: str) -> str | None:
    """Return the source of a class's newest definition in a notebook; None if there is none.

    Before Python 3.13, inspect does not find it.
    """
    cells = [file for file in linecache.cache if not Path(file).exists()]
    for lines in map(linecache.getlines, reversed(cells)):
        with contextlib.suppress(SyntaxError):
            for node in reversed(ast.parse("".join(lines)).body):
                if isinstance(node, ast.ClassDef) and node.name == name:
                    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                    return "".join(lines[first - 1 : node.end_lineno])
    return None


def global_names(text: str) -> set[str]:
    tables = [symtable.symtable(f"{FUTURE}\n{text}", "<source>", "exec")]
    for table in tables:  # the list grows during the loop
        tables += table.get_children()
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    return {each.get_name() for each in symbols if each.is_referenced() and each.is_global()}


def is_built_in(name: str, value: object) -> bool:
    """Return whether the name means the same built-in on a rank.

    A built-in that IPython has replaced with its own version counts too.
    """
    by_ipython = str(getattr(value, "__module__", "")).startswith("IPython.")
    return hasattr(builtins, name) and (by_ipython or name.startswith("__"))


def is_literal(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, RecursionError):
        return False
