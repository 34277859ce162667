"""What `pip install` gives: built from this tree, installed where there is no torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from launcher import __version__

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
ABSENT = ("torch", "nvidia", "numpy", "triton", "ddpctl", "_editable_impl", "__editable__")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist. The wheel is made from the sdist, as pip makes it."""
    out = tmp_path_factory.mktemp("dist")
    _build(ROOT, "sdist", out)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(out / "source", filter="data")
    (source,) = (out / "source").iterdir()
    _build(source, "wheel", out)
    return out


def _build(source: Path, target: str, out: Path) -> None:
    argv = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


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
    assert ours | {f"ddpctl/{name}" for name in tracked("trainer")} == names
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
    """A fresh environment with the wheel. Its dependencies are lent by ours, as links, less torch."""
    folder = tmp_path_factory.mktemp("installed")
    venv, lent = folder / "venv", folder / "lent"
    lent.mkdir()
    sites = [Path(folder) for folder in sys.path if folder.endswith("-packages")]
    for path in [path for site in sites for path in site.iterdir()]:  # the first found counts
        absent = path.name.startswith(ABSENT) or path.suffix == ".pth"
        if not absent and not (lent / path.name).exists():
            (lent / path.name).symlink_to(path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    argv = [*pip, "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(argv, check=True, timeout=300)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return venv / "bin", {**env, "PYTHONPATH": str(lent)}


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
        "import io, zipfile; from ddpctl.start.node_folders import supervisor_file as made;"
        "print(*zipfile.ZipFile(io.BytesIO(made())).namelist())"
    )
    done = subprocess.run(
        [str(scripts / "python"), "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    ours = {f"supervisor/{path.name}" for path in (ROOT / "launcher/supervisor").glob("*.py")}
    assert set(done.stdout.split()) == {"__main__.py", *ours}, done.stderr


def test_the_trainer_runs_from_the_wheel(
    installed: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """As after `pip install 'ddpctl[trainer]'`; torch is this environment's."""
    scripts, env = installed
    [site] = (scripts.parent / "lib").glob("python*/site-packages")
    data = ["--data", "synthetic", "--synthetic-train", "64", "--synthetic-test", "32"]
    argv = [sys.executable, "-m", "ddpctl.trainer", *data, "--model", "resnet8", "--epochs", "1"]
    env = {**env, "PYTHONPATH": str(site)}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    where = [sys.executable, "-c", "import ddpctl.trainer; print(ddpctl.trainer.__file__)"]
    done = subprocess.run(where, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith(str(site))


def test_ci_tests_the_oldest_torch_that_pyproject_names() -> None:
    bounds = re.findall(r'"(torch|torchvision)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert len(bounds) == 2
    for name, oldest in bounds:
        assert f" {name}=={oldest}.0 " in (ROOT / ".github/workflows/ci.yml").read_text()
