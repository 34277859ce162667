"""What `pip install` gives: built from this tree, installed where there is no torch."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from clean_install import TORCH, build, install

from launcher import __version__

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist. The wheel is made from the sdist, as pip makes it."""
    out = tmp_path_factory.mktemp("dist")
    sdist = build("sdist", out)
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "source", filter="data")
    (source,) = (out / "source").iterdir()
    build("wheel", out, source)
    return out


def tracked(folder: str) -> set[str]:
    done = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:  # an unpacked sdist is no checkout
        files = [path for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".sh")]
        return {str(path.relative_to(ROOT)) for path in files}
    return {name for name in done.stdout.splitlines() if (ROOT / name).exists()}


def test_the_wheel_holds_every_file_of_launcher_and_trainer_under_the_one_name_ddpctl(
    built: Path,
) -> None:
    (wheel,) = built.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    ours = {name.replace("launcher/", "ddpctl/", 1) for name in tracked("launcher")}
    others = {"trainer.py", "ddpctl/trainer/Dockerfile"}
    assert ours | {f"ddpctl/{name}" for name in tracked("trainer")} | others == names
    assert not [name for name in names if "__pycache__" in name]
    assert "ddpctl/py.typed" in names and "ddpctl/supervisor/peers.py" in names


def test_the_version_stands_in_one_place(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    assert wheel.name.startswith(f"ddpctl-{__version__}-")
    assert sdist.name == f"ddpctl-{__version__}.tar.gz"
    pattern = re.compile(rf"""version\w*\s*[:=]\s*["']{re.escape(__version__)}["']""")
    files = [ROOT / "pyproject.toml", *(ROOT / "launcher").rglob("*.py")]
    assert [f.name for f in files if pattern.search(f.read_text())] == ["__init__.py"]


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A fresh environment with the wheel and its dependencies, but without torch."""
    (wheel,) = built.glob("*.whl")
    programs = install(wheel, tmp_path_factory.mktemp("installed"), without=TORCH)
    return programs, {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def test_the_installed_command_works_without_torch(
    installed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    scripts, env = installed

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    assert run(str(scripts / "python"), "-c", "import torch").returncode == 1
    where = run(str(scripts / "python"), "-c", "import ddpctl; print(ddpctl.__file__)")
    assert str(scripts.parent) in where.stdout  # the wheel's, not this tree's
    ddpctl = str(scripts / "ddpctl")
    assert run(ddpctl, "--version").stdout == f"ddpctl {__version__}\n"
    plan = run(ddpctl, "launch", "-H", "gpu1:2,gpu2:2", "--dry-run", "--", "train.py")
    assert plan.returncode == 0, plan.stderr
    assert "ranks 4" in plan.stdout and "torchrun" in plan.stdout


def test_the_supervisor_is_packed_from_the_installed_files(
    installed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    scripts, env = installed
    code = (
        "import io, zipfile; from ddpctl.start.fill_node_folders import supervisor_file as made;"
        "print(*zipfile.ZipFile(io.BytesIO(made())).namelist())"
    )
    done = subprocess.run(
        [str(scripts / "python"), "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    ours = {f"supervisor/{path.name}" for path in (ROOT / "launcher/supervisor").glob("*.*")}
    assert set(done.stdout.split()) == {"__main__.py", *ours}, done.stderr


def test_the_trainer_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    """As after `pip install 'ddpctl[trainer]'`, under both of its names."""
    (wheel,) = built.glob("*.whl")
    python = str(install(wheel, tmp_path / "installed") / "python")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    data = ["--data", "synthetic", "--synthetic-train", "64", "--synthetic-test", "32"]
    flags = [*data, "--model", "resnet8", "--epochs", "1"]
    for name in ("trainer", "ddpctl.trainer"):
        code = f"import runpy, {name}.model as model; print(model.__name__, model.__file__)\n"
        code += f"runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"  # as python -m
        done = subprocess.run(
            [python, "-c", code, *flags], env=env, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{name}.model {tmp_path}"), done.stdout


def test_a_trainer_of_ones_own_comes_before_ddpctls(
    installed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    scripts, env = installed
    (tmp_path / "trainer.py").write_text("print('mine')")
    argv = [str(scripts / "python"), "-m", "trainer"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "mine\n", done.stderr


def test_ci_tests_the_oldest_torch_that_pyproject_names() -> None:
    bounds = re.findall(r'"(torch|torchvision)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert len(bounds) == 2
    for name, oldest in bounds:
        assert f" {name}=={oldest}.0 " in (ROOT / ".github/workflows/ci.yml").read_text()
