"""Functions of a notebook: their source runs by itself elsewhere, or a message says what cannot be sent."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

from launcher.api.source import Source
from launcher.errors import UsageError

Cell = Callable[[str], dict[str, Any]]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Runs a cell as IPython does: in `__main__`, with its text in linecache."""
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(text: str) -> dict[str, Any]:
        file = f"<cell {len(linecache.cache)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), names)
        return names

    return run


def result_elsewhere(function: FunctionType, *args: object) -> tuple[object, set[str]]:
    """What the function returns in a new namespace, and the modules that it imports."""
    source = Source(function)
    names: dict[str, Any] = {}
    exec(compile(source.text, "<elsewhere>", "exec"), names)
    return names[function.__name__](*args), source.modules


def test_a_function_is_sent_with_everything_it_refers_to(cell: Cell) -> None:
    cell(
        "import json as j\nfrom textwrap import indent\nSCALE = {'a': [1, 2.5]}\nlater = object()\n"
    )
    cell(
        "def marked(kind):\n    return kind\n@marked\nclass Base:\n    factor = SCALE['a'][1]\n"
        "class Net(Base):\n"
        "    def size(self) -> 'later':\n        return helper(self.factor)\n"
    )
    names = cell(
        "def helper(x, later=1):\n    return train if x is None else x * later\n"
        "again = helper\n"
        "def train(x: int = len(SCALE)):\n"
        "    SCALED = [SCALE['a'][0] * each for each in range(x)]\n"
        "    return indent(j.dumps([SCALED, Net().size(), again(3)]), '> ')\n"
    )
    result, modules = result_elsewhere(names["train"], 3)
    assert result == "> [[0, 1, 2], 2.5, 3]"
    assert modules == {"json", "textwrap"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = object()\ndef f():\n    return model", "f uses the global model, a object"),
        ("x = 1 < 2\nf = (lambda g: lambda: g)(open('/dev/null'))", "g of the enclosing function"),
        ("half = lambda x: x / 2\ndef f():\n    return half(1)", "the global half, a lambda"),
        (
            "def adding(n):\n    def add(x):\n        return x + n\n    return add\n"
            "three = adding(3)\ndef f():\n    return three(1)",
            "n of the enclosing function",
        ),
        (
            "import functools\nclass Net: pass\n@functools.wraps(Net, ['__module__'])\n"
            "def f(): pass",
            "f uses the global f, a function",
        ),
        (
            "import functools\n@functools.cache\ndef g(): pass\ndef f():\n    return g()",
            "the global g, a _lru_cache_wrapper",
        ),
        ("exec('def f(): pass')", "source of f cannot be found; define it in a file or a notebook"),
    ],
)
def test_values_that_cannot_be_sent_are_named(cell: Cell, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Source(cell(text)["f"])


def test_a_name_that_only_an_inner_scope_binds_is_not_sent(cell: Cell) -> None:
    names = cell(
        "rows = open('/dev/null')\n"
        "def f(n):\n"
        "    rows = [str(i) for i in range(n)]\n"
        "    return (lambda: rows)()\n"
    )
    assert result_elsewhere(names["f"], 2) == (["0", "1"], set())
    assert "rows =" not in Source(names["f"]).text.replace("    rows =", "")


def test_names_that_hide_built_in_ones_are_sent(cell: Cell) -> None:
    names = cell(
        "from math import pow\niter = 3\ndef f():\n    return pow(2, iter), __name__, open"
    )
    names["open"] = type("Ours", (), {"__module__": "IPython.core.interactiveshell"})()
    result, modules = result_elsewhere(names["f"])
    assert result == (8.0, "builtins", open) and isinstance(result[0], float)
    assert modules == {"math"}


def test_a_decorated_function_is_sent_with_its_decorator(cell: Cell) -> None:
    names = cell(
        "from contextlib import contextmanager\nONE = 1\nlog = []\n"
        "@contextmanager\ndef logged():\n    yield log.append(ONE)\n"
        "@logged()\ndef f(x):\n    return x + len(log)\n"
    )
    assert result_elsewhere(names["f"], 1) == (2, {"contextlib"})


def test_modules_of_this_process_are_not_needed(cell: Cell) -> None:
    names = cell("import collections.abc as c\ndef f():\n    return c.Sized.__name__")
    assert result_elsewhere(names["f"]) == ("Sized", {"collections.abc"})
    assert "collections.abc" in sys.modules
