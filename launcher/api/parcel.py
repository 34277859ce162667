"""The folder that `run` sends: the function, its dependencies, its arguments and the caller script."""

import base64
import io
import json
import operator
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from ..errors import UsageError
from ..hosts import Cluster
from ..push.files.scan import scan_workdir
from .source import Source

CALLER = Path(__file__).with_name("on_rank.py")
SENT = (CALLER.name, "ddpctl_source.py", "ddpctl_call.json")
MAX_RESULTS = 64 << 20  # bytes; all results of a node together


class ArgumentPickler(pickle.Pickler):
    """Pickles into `data`. Collects what unpickling needs: objects of `__main__`, and modules."""

    def __init__(self) -> None:
        self.data = io.BytesIO()
        self.own: list[Any] = []
        self.modules: set[str] = set()
        super().__init__(self.data, protocol=4)  # a rank may have Python 3.8

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            top = value.__qualname__.partition(".")[0]
            self.own.append(getattr(sys.modules["__main__"], top, value))
        elif isinstance(value, type | FunctionType):
            self.modules.add(value.__module__)
        return NotImplemented  # the usual way


def pack(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    to: Path,
    *,
    cluster: Cluster,
    trust: bool,
) -> None:
    """Fill the folder `to`. Include the job's workdir if the job has one.

    Raises UsageError if the function or an argument cannot be sent, and PushFailed if the workdir
    cannot be sent.
    """
    if cluster.job.workdir:
        _copy_workdir(cluster, cluster.job.workdir, to)
    name = getattr(function, "__qualname__", "")
    is_lambda = name.endswith("<lambda>")
    if function.__module__ == "__main__" and isinstance(function, FunctionType) and not is_lambda:
        name, own, modules = function.__name__, [function], set()
    else:
        _require_importable(function, name)
        own, modules = [], {function.__module__}
    call = {"module": function.__module__, "function": name, "trust": trust, "limit": MAX_RESULTS}
    if trust:
        pickler = ArgumentPickler()
        pickler.dump((args, kwargs))
        call["pickle"] = base64.b64encode(pickler.data.getvalue()).decode()
        own, modules = own + pickler.own, modules | pickler.modules
    else:
        call |= {"args": args, "kwargs": kwargs}
    if own:
        source = Source(*own)
        (to / "ddpctl_source.py").write_text(source.text, encoding="utf-8")
        modules |= source.modules
    for module in modules:
        _copy_module(module, to)
    try:
        text = json.dumps(call)
    except (TypeError, ValueError) as error:
        what = f"run(): an argument cannot be sent as JSON ({error})"
        remedy = "pass numbers, strings, lists and dicts, or call run(..., trust=True)"
        raise UsageError(what, remedy) from None
    (to / "ddpctl_call.json").write_text(text)
    shutil.copy(CALLER, to)
    if cluster.job.workdir:
        tops = {module.partition(".")[0] for module in modules}
        _keep(to, [*SENT, *(f"{top}{suffix}" for top in sorted(tops) for suffix in ("", ".py"))])


def _require_importable(function: Callable[..., object], name: str) -> None:
    try:
        importable = operator.attrgetter(name)(sys.modules.get(function.__module__))
    except AttributeError:
        importable = None
    if importable is not function:
        what = f"run(): {name or function!r} cannot be imported by its name"
        raise UsageError(what, "define it with def at the top level of its module")
    if function.__module__ == "__main__":  # on a rank, this is another module
        what = f"run(): {name} is in __main__, but is not a plain function"
        raise UsageError(what, "call it in a function that is defined with def")


def _copy_module(name: str, to: Path) -> None:
    """Copy the top-level package or file that contains the module, unless it is installed."""
    top = sys.modules.get(name.partition(".")[0])
    folders = list(getattr(top, "__path__", ()))
    file = folders[0] if folders else getattr(top, "__file__", None)
    if top is None or file is None or top.__name__ in sys.stdlib_module_names:
        return
    if {"site-packages", "dist-packages"} & {*Path(file).parts}:
        return
    if folders:
        shutil.copytree(
            file,
            to / top.__name__,
            ignore=shutil.ignore_patterns("__pycache__"),
            ignore_dangling_symlinks=True,  # Emacs marks an open file with one
            dirs_exist_ok=True,
        )
    else:
        shutil.copy(file, to)


def _copy_workdir(cluster: Cluster, workdir: str, to: Path) -> None:
    """Copy the files of the workdir that a push would send."""
    tree = scan_workdir(cluster, workdir)
    for entry in tree.manifest.entries:
        path = to / os.fsdecode(entry.path)
        if entry.kind == "d":
            path.mkdir(exist_ok=True)
        elif entry.kind == "l":
            path.symlink_to(os.fsdecode(entry.content))
        else:
            shutil.copy(os.fsdecode(tree.path(entry)), path)


def _keep(folder: Path, names: Iterable[str]) -> None:
    """Make the push send `names`, even if the workdir's .gitignore or .ddpctlignore excludes them."""
    rules = folder / ".ddpctlignore"
    before = rules.read_bytes() if rules.exists() else b""
    rules.unlink(missing_ok=True)  # it may be read-only
    rules.write_bytes(before + "".join(f"\n!/{name}" for name in names).encode() + b"\n")
