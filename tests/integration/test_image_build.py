"""`ddpctl image build` with a real engine, from the base of the test images."""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
BASE = "ddpctl-test-pip-base"


def ddpctl(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "image", "build", *argv]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[str]:
    """An image with torch and pip."""
    [pip] = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    context = tmp_path / "base"
    context.mkdir()
    (context / pip.name).write_bytes(pip.read_bytes())
    install = f"RUN python3 /{pip.name}/pip install --no-index /{pip.name}"
    (context / "Dockerfile").write_text(f"FROM ddpctl-cpu-base\nCOPY {pip.name} /\n{install}\n")
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    argv = ["docker", "build", "-q", "-t", BASE, str(context)]
    subprocess.run(argv, check=True, capture_output=True, env=environment)
    yield BASE
    subprocess.run(["docker", "rmi", BASE], check=False, capture_output=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that needs one package, which is in a folder of wheels."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "tinypkg-1.0-py3-none-any.whl", "w") as wheel:
        info = "tinypkg-1.0.dist-info"
        wheel.writestr("tinypkg.py", "answer = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "requirements.txt").write_text("--no-index\n-f wheels\ntinypkg\ntorch\n")
    return tmp_path


def test_an_image_has_the_packages_and_the_torch_of_the_base_and_is_built_once(
    base: str, project: Path
) -> None:
    done = ddpctl(str(project), "--base", base)
    assert done.returncode == 0, done.stderr
    [name] = done.stdout.split()
    try:
        code = "import tinypkg, torch; print(tinypkg.answer)"
        argv = ["docker", "run", "--rm", name, "python3", "-c", code]
        assert subprocess.run(argv, capture_output=True, text=True).stdout == "42\n"
        again = ddpctl(str(project), "--base", base)
        assert again.stdout.split() == [name]
        assert "up to date" in again.stderr
        (project / "requirements.txt").write_text("--no-index\nno-such-package\n")
        broken = ddpctl(str(project), "--base", base)
        assert (broken.returncode, broken.stdout) == (1, "")
        assert "No matching distribution found for no-such-package" in broken.stderr
        assert broken.stderr.splitlines()[-1].endswith("see the build output above")
    finally:
        subprocess.run(["docker", "rmi", name], check=False, capture_output=True)


def test_any_user_can_run_the_trainer_of_a_private_checkout(tmp_path: Path) -> None:
    name = "ddpctl-test-private"
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    shutil.copytree(ROOT / "trainer", tmp_path / "trainer")
    subprocess.run(["chmod", "-R", "go-rwx", str(tmp_path)], check=True)  # as with umask 077
    build = ["docker", "build", "-q", "-t", name, "--build-arg", "BASE_IMAGE=ddpctl-cpu-base"]
    environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run([*build, str(tmp_path)], check=True, capture_output=True, env=environment)
    try:
        argv = ["docker", "run", "--rm", "--network", "none", "--user", "1000:1000", name]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        subprocess.run(["docker", "rmi", name], check=False, capture_output=True)


def failed_containers() -> set[str]:
    argv = ["docker", "ps", "-aq", "--filter", "ancestor=ddpctl-cpu-base", "--filter", "exited=1"]
    return {*subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()}


def test_a_base_without_pip_is_named_as_the_cause_and_no_container_is_left(project: Path) -> None:
    before = failed_containers()
    done = ddpctl(str(project), "--base", "ddpctl-cpu-base")
    assert failed_containers() <= before
    assert done.returncode == 1
    *_, cause, error = done.stderr.splitlines()
    assert cause.endswith("the base image has no pip: use --base to pass an image that has it")
    assert error.endswith(": a command returned a non-zero code: 1; see the build output above")


def test_a_base_that_is_nowhere_is_one_line(project: Path) -> None:
    done = ddpctl(str(project), "--base", "localhost:1/no-such-base:1")
    assert done.returncode == 2
    assert "pass another one with --base" in done.stderr.splitlines()[-1]
