"""The folder that `run` sends."""

from __future__ import annotations

import functools
import importlib
import json
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.api.parcel import pack
from launcher.errors import UsageError
from launcher.hosts import Cluster, Job
from launcher.push.files.scan import scan

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.real


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file and a package that can be imported, in a workdir with an ignored file."""
    folder = tmp_path / "project"
    (folder / "parcelled").mkdir(parents=True)
    (folder / "parcelled" / "__init__.py").touch()
    inner = folder / "parcelled" / "inner.py"
    inner.write_text("from . import __name__ as top\ndef f(x): return [top, x]\n")
    (folder / "parcelfile.py").write_text("import sibling\ndef f(x): return sibling.add(x)\n")
    (folder / "sibling.py").write_text("def add(x): return x + 1\n")
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "large.bin").touch()
    monkeypatch.syspath_prepend(folder)
    for name in ("parcelled", "parcelled.inner", "parcelfile", "sibling"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def called(function: Any, *args: object, to: Path, workdir: Path | None = None, **how: Any) -> Any:
    """Pack, then call as a rank does, in a process that has nothing but the folder."""
    to.mkdir()
    cluster = Cluster((), Job(workdir=str(workdir) if workdir else None))
    pack(function, args, {}, to, cluster=cluster, trust=False, **how)
    return result_of_rank(to)


def result_of_rank(to: Path) -> Any:
    env = {"PATH": os.environ["PATH"], "RANK": "0", "DDPCTL_ATTEMPT": "1"}
    env["DDPCTL_NODE_RANK"] = "3"
    env["DDPCTL_OUTPUT_DIR"] = str(to.parent)
    argv = [sys.executable, "on_rank.py"]
    done = subprocess.run(argv, cwd=to, env=env, capture_output=True, text=True)
    (to.parent / "printed").write_text(done.stdout)
    document = json.loads((to.parent / "results/attempt-1/node-3/rank-0").read_text())
    assert (done.returncode == 0) == ("error" not in document), done.stderr
    return document.get("result", document.get("error"))


def test_the_package_of_a_function_is_sent_without_the_rest(project: Path, tmp_path: Path) -> None:
    inner = importlib.import_module("parcelled.inner")
    assert called(inner.f, {"a": [1]}, to=tmp_path / "sent") == ["parcelled", {"a": [1]}]
    sent = {path.name for path in (tmp_path / "sent").iterdir()}
    assert sent == {"parcelled", "on_rank.py", "ddpctl_call.json"}


def test_a_function_of_a_script_is_sent_as_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    (tmp_path / "sent").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from launcher.api.parcel import pack\n"
        "from launcher.hosts import Cluster, Job\n"
        "def greet(): return 'grüße'\n"
        "pack(greet, (), {}, Path('sent'), cluster=Cluster((), Job()), trust=False)\n",
        encoding="utf-8",
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-X", "utf8=0", script], cwd=tmp_path, env=env, check=True)
    assert "grüße" in (tmp_path / "sent" / "ddpctl_source.py").read_text(encoding="utf-8")


def test_arguments_of_the_scripts_own_classes_travel_with_them(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "sent").mkdir()
    (tmp_path / "script.py").write_text(
        "import dataclasses, parcelled.inner, sibling\n"
        "from pathlib import Path\n"
        "from launcher.api.parcel import pack\n"
        "from launcher.hosts import Cluster, Job\n"
        "RATE = 0.5\n"
        "def rate(): return RATE\n"
        "@dataclasses.dataclass\n"
        "class Config:\n"
        "    class Inner:\n"
        "        def get(self): return sibling.add(2)\n"
        "    lr: float = 0.1\n"
        "args = [Config(), Config.Inner(), rate]\n"
        "pack(parcelled.inner.f, [args], {}, Path('sent'), cluster=Cluster((), Job()), trust=True)\n"
        "def train(config: Config, inner: Config.Inner, f, g):\n"
        "    assert [config.lr, inner.get(), f(), g(0)] == [0.1, 3, 0.5, ['parcelled', 0]]\n"
        "args += [parcelled.inner.f]\n"
        "Path('own').mkdir()\n"
        "pack(train, args, {}, Path('own'), cluster=Cluster((), Job()), trust=True)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{project}"}
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, env=env, check=True)
    assert result_of_rank(tmp_path / "sent") is None  # no error; the results are pickles
    assert result_of_rank(tmp_path / "own") is None


def test_exit_handlers_of_the_function_run_and_no_output_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late.py").write_text(
        "import atexit\ndef f(): atexit.register(print, 'printed at the end')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert called(importlib.import_module("late").f, to=tmp_path / "sent") is None
    assert (tmp_path / "printed").read_text() == "printed at the end\n"


def test_a_workdir_is_sent_too_but_not_what_it_ignores(project: Path, tmp_path: Path) -> None:
    file = importlib.import_module("parcelfile")
    assert called(file.f, 1, to=tmp_path / "sent", workdir=project) == 2
    assert (tmp_path / "sent" / "sibling.py").exists()
    assert not (tmp_path / "sent" / "large.bin").exists()


def test_what_the_call_needs_is_pushed_whatever_the_workdir_ignores(
    project: Path, tmp_path: Path
) -> None:
    (project / ".gitignore").write_text("*.json\n*.bin\nparcelfile.py\nparcelled/\n")
    rules = project / ".ddpctlignore"
    rules.write_text("on_rank.py")
    rules.chmod(0o400)
    both = {".gitignore", ".ddpctlignore", "sibling.py", "on_rank.py", "ddpctl_call.json"}
    package = {"parcelled", "parcelled/__init__.py", "parcelled/inner.py"}
    for name, own in {"parcelfile": {"parcelfile.py"}, "parcelled.inner": package}.items():
        to = tmp_path / name
        called(importlib.import_module(name).f, 1, to=to, workdir=project)
        pushed = scan(str(to), code_only=True).manifest.entries
        assert {entry.path.decode() for entry in pushed} == both | own


def test_a_link_of_an_editor_to_nowhere_is_left_out(project: Path, tmp_path: Path) -> None:
    (project / "parcelled" / ".#inner.py").symlink_to("me@laptop.1234:1763900000")
    inner = importlib.import_module("parcelled.inner")
    assert called(inner.f, 1, to=tmp_path / "sent") == ["parcelled", 1]


def test_an_exception_is_written_with_the_users_frames_only(project: Path, tmp_path: Path) -> None:
    file = importlib.import_module("parcelfile")
    error = called(file.f, "a", to=tmp_path / "sent", workdir=project)
    assert (error["type"], error["built_in"]) == ("TypeError", True)
    assert "in add" in error["traceback"] and "on_rank.py" not in error["traceback"]


def test_an_exception_of_the_users_own_is_not_taken_for_a_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "class TimeoutError(Exception): pass\ndef f(): raise TimeoutError('mine')\n"
    (tmp_path / "owntimeout.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    error = called(importlib.import_module("owntimeout").f, to=tmp_path / "sent")
    assert (error["type"], error["built_in"]) == ("TimeoutError", False)


def test_a_lambda_of_a_script_is_refused_and_not_the_line_that_it_is_on(tmp_path: Path) -> None:
    function = eval("lambda: 1", {"__name__": "__main__"})
    with pytest.raises(UsageError, match="define it with def"):
        pack(function, (), {}, tmp_path, cluster=Cluster((), Job()), trust=False)


def test_a_class_or_a_cached_function_of_a_script_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cached() -> int:
        return 1

    cached.__module__, cached.__qualname__ = "__main__", "cached"
    function = functools.cache(cached)
    monkeypatch.setattr("__main__.cached", function, raising=False)
    with pytest.raises(UsageError, match=r"cached is in __main__, .* call it in a function"):
        pack(function, (), {}, tmp_path, cluster=Cluster((), Job()), trust=False)


def test_a_result_that_is_no_json_is_an_error_of_the_rank(tmp_path: Path) -> None:
    error = called(operator.attrgetter, "x", to=tmp_path / "sent")
    assert error["type"] == "TypeError" and "trust=True" in error["message"]


def test_installed_modules_are_not_sent(tmp_path: Path) -> None:
    assert called(operator.add, 1, 2, to=tmp_path / "sent") == 3
    assert not (tmp_path / "sent" / "operator.py").exists()


def test_a_result_that_is_too_large_is_an_error_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.api.parcel.MAX_RESULTS", 100)
    error = called(operator.mul, "x", 101, to=tmp_path / "sent")
    assert error["type"] == "ValueError" and "DDPCTL_OUTPUT_DIR" in error["message"]


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda: 1, (), "cannot be imported by its name"),
        (operator.add, (1, object()), "an argument cannot be sent as JSON"),
    ],
)
def test_values_that_cannot_be_sent_are_refused_before_any_contact(
    function: Any, args: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        pack(function, args, {}, tmp_path, cluster=Cluster(()), trust=False)
