from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engines.engine_info import ImageInfo
from launcher.errors import UsageError
from launcher.hosts import Job
from launcher.push.image.build_image import build_image
from launcher.push.image.recipe import (
    BASE,
    CONDA_BASE,
    find_source,
    recipe_of,
    trainer_recipe,
    with_named,
)
from launcher.push.packages.wheels import collected
from launcher.terminal.console import Console


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def names(context: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(context)) as tar:
        return set(tar.getnames())


def test_the_packages_of_a_project_are_found_in_the_usual_order(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"contains no requirements\.txt, pyproject\.toml or"):
        find_source(tmp_path)
    with pytest.raises(UsageError, match=r"packages\.txt is not a file"):
        find_source(tmp_path / "packages.txt")
    for name in ("environment.yml", "pyproject.toml", "requirements.txt"):
        (tmp_path / name).touch()
        assert find_source(tmp_path) == tmp_path / name
    assert find_source(tmp_path / "environment.yml").name == "environment.yml"


def test_the_tag_depends_on_the_packages_and_on_the_base_and_on_nothing_else(
    tmp_path: Path,
) -> None:
    source = tmp_path / "requirements.txt"
    source.write_text("timm==1.0\n")
    first = recipe_of(source, "base:1", None).tag("sha256:1")
    assert first.partition(":")[0] == f"ddpctl-{tmp_path.name.lower()}"
    assert recipe_of(source, "base:1", None).tag("sha256:1") == first
    assert recipe_of(source, "base:1", None).tag("sha256:2") != first
    source.write_text("timm==1.1\n")
    assert recipe_of(source, "base:1", None).tag("sha256:1") != first
    assert recipe_of(source, None, "mine:3").tag("sha256:1") == "mine:3"
    assert recipe_of(source, "base:1", "lab:5000/mine").tag("sha256:2").startswith("lab:5000/mine:")


@pytest.mark.parametrize(("name", "built"), [("mine:1", 2), ("lab:5000/mine", 1), (None, 1)])
def test_an_image_that_exists_is_built_again_if_its_tag_does_not_show_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, built: int
) -> None:
    class Store:
        def __init__(self) -> None:
            self.names = ["base:1"]

        def inspect(self, name: str) -> ImageInfo | None:
            return ImageInfo("sha256:1", ()) if name in self.names else None

        def build(self, context: bytes, name: str) -> Iterator[str]:
            self.names.append(name)
            yield f"built {name}"

    store = Store()
    monkeypatch.setattr("launcher.push.image.build_image.images_of", lambda connection: store)
    (tmp_path / "requirements.txt").write_text("timm==1.0\n")
    recipe = recipe_of(tmp_path / "requirements.txt", "base:1", name)
    assert build_image(recipe, Console()) == build_image(recipe, Console()) == store.names[-1]
    assert len(store.names) == 1 + built


def test_files_that_the_requirements_name_are_part_of_the_build(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "a.whl").touch()
    write(tmp_path, common__txt="-c pins.txt\nnumpy\n", pins__txt="numpy<3\n", other__txt="")
    source = tmp_path / "requirements.txt"
    source.write_text("-r common.txt  # ours\n--find-links=wheels\n-f https://x.org/w\n")
    recipe = recipe_of(source, None, None)
    assert names(recipe.context()) == {
        *("requirements.txt", "common.txt", "pins.txt", "wheels/a.whl", "Dockerfile")
    }
    assert recipe.base == BASE


@pytest.mark.parametrize("line", ["-e .", ".", "./lib", "x @ file:///home/x", "../lib"])
def test_code_is_no_package(tmp_path: Path, line: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"torch\n{line}\n")
    with pytest.raises(UsageError, match=r"requirements.txt:2: .* code belongs in job.workdir"):
        recipe_of(tmp_path / "requirements.txt", None, None)


@pytest.mark.parametrize("named", ["../pins.txt", "/etc/pins.txt", "missing.txt"])
def test_a_file_outside_the_project_is_named(tmp_path: Path, named: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"-c {named}\n")
    with pytest.raises(UsageError, match="is not in the folder of"):
        recipe_of(tmp_path / "requirements.txt", None, None)


def test_a_strangers_project_puts_no_file_of_yours_into_the_image(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    project = tmp_path / "project"
    (project / "wheels").mkdir(parents=True)
    (project / "pins.txt").symlink_to("../key")
    (project / "wheels" / "a.whl").symlink_to("../../key")
    (project / "up").symlink_to("..")
    source = project / "requirements.txt"
    for line in ("-r pins.txt", "-f wheels", "-c up/key", "-f up"):
        source.write_text(line)
        with pytest.raises(UsageError, match=r"requirements\.txt:1: .* is not in the folder of"):
            recipe_of(source, None, None)


def test_requirements_that_name_each_other_are_one_line(tmp_path: Path) -> None:
    write(tmp_path, a__txt="-r b.txt", b__txt="-r a.txt")
    with pytest.raises(UsageError, match="requirements files include each other"):
        recipe_of(tmp_path / "a.txt", None, None)


@pytest.mark.parametrize("name", ["requirements.txt", "more.txt"])
def test_a_requirements_file_that_is_not_utf_8_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path, requirements__txt="-r more.txt", more__txt="timm")
    (tmp_path / name).write_bytes(b"\xff")
    source = tmp_path / "requirements.txt"
    with pytest.raises(UsageError, match=rf"/{name}: cannot be read: .*0xff"):
        recipe_of(source, None, None)
    with pytest.raises(UsageError, match=rf"/{name}: cannot be read: .*0xff"):
        collected(Job(requirements=str(source)))


def test_the_dependencies_of_a_pyproject_are_installed(tmp_path: Path) -> None:
    source = tmp_path / "pyproject.toml"
    source.write_text('[project]\nname = "x"\ndependencies = ["timm>=1", "wandb"]\n')
    assert dict(recipe_of(source, None, None).files) == {"requirements.txt": b"timm>=1\nwandb\n"}
    source.write_text('[project]\nname = "x"\ndynamic = ["dependencies"]\n')
    with pytest.raises(UsageError, match=r"has no project\.dependencies"):
        recipe_of(source, None, None)
    source.write_text("[project\n")
    with pytest.raises(UsageError, match="is not TOML"):
        recipe_of(source, None, None)


def test_a_conda_environment_needs_a_base_with_conda(tmp_path: Path) -> None:
    source = tmp_path / "environment.yml"
    source.write_text("dependencies: [numpy]\n")
    recipe = recipe_of(source, None, None)
    assert recipe.base == CONDA_BASE and "env update --name base" in recipe.dockerfile


CONDA = """
channels: [file:///srv/channel]
dependencies:
- python=3.11
- pip:
  - -r requirements.txt  # as in the README
  - "--constraint=pins.txt"
  - timm
  - -e git+https://x.org/y
  - --find-links /opt/wheels
"""


def test_the_files_that_a_conda_environments_pip_section_names_are_part_of_the_image(
    tmp_path: Path,
) -> None:
    source = tmp_path / "environment.yml"
    write(tmp_path, environment__yml=CONDA, requirements__txt="-r b.txt", b__txt="x", pins__txt="")
    files = dict(recipe_of(source, None, None).files)
    assert files.keys() == {"environment.yml", "requirements.txt", "b.txt", "pins.txt"}
    assert files["environment.yml"] == CONDA.encode()
    source.write_text(f"{CONDA}  - -r ../b.txt\n")
    with pytest.raises(UsageError, match=r"environment\.yml:11: .* is not in the folder of"):
        recipe_of(source, None, None)


def test_the_trainers_image_is_made_of_the_installed_files() -> None:
    recipe = trainer_recipe("mine:1")
    assert "\nARG BASE_IMAGE=mine:1\n" in recipe.dockerfile
    assert {"trainer/train.py", "trainer/__main__.py", "Dockerfile"} <= names(recipe.context())
    assert recipe.tag("x") == "ddpctl-trainer:latest"


@pytest.mark.parametrize(
    "line",
    [
        "evil @ https://x.org/evil-1.0.tar.gz",
        "https://x.org/evil.zip",
        "evil @ https://x.org/evil.tar.gz?.whl",
        "evil @ https://x.org/evil.tar.gz#.whl",
        "git+https://x.org/evil",
        "evil-1.0.tar.gz",
        "evil.zip ; python_version > '3'",
        "wheels/evil.tar.gz",
        "--no-binary=:all:",
        "--no-bin :all:",
        "--only-binary=:none:",
        "-i https://x.org --no-binary=:all:",
        "timm --no-binary=:all:",
        "timm @ https://x.org/t.whl --no-binary=:all:",
        "--no-\\\nbinary=:all:",
        "${EVIL}",
        "-r https://x.org/requirements.txt",
    ],
)
def test_wheels_are_collected_without_running_a_packages_code(tmp_path: Path, line: str) -> None:
    source = tmp_path / "requirements.txt"
    with pytest.raises(UsageError, match=r"requirements\.txt:2: .* could run the package's code"):
        list(with_named(source, f"timm\n{line}\n", wheels=True))
    (tmp_path / "more.txt").write_text(f"timm\n{line}\n")
    with pytest.raises(UsageError, match=r"more\.txt:2: "):
        list(with_named(source, "-r more.txt", wheels=True))


def test_usual_requirements_are_collected(tmp_path: Path) -> None:
    (tmp_path / "pins.txt").touch()
    text = """
# comment
timm
timm==1.0.3  # with a comment
numpy >= 1.26, < 3 ; python_version < "3.13" and sys_platform == 'linux'
hydra-core[all,dev]~=1.3
x_y.z (>=1)
pkg==1.0 --hash=sha256:abc --hash=sha256:def
pkg==1.0 \\
    --hash=sha256:abc
torch @ https://download.pytorch.org/whl/torch-2.8.0%2Bcpu-cp311-linux_x86_64.whl#sha256=abc
-i https://pypi.org/simple
--extra-index-url=https://download.pytorch.org/whl/cpu
-c pins.txt
--pre
"""
    named = list(with_named(tmp_path / "requirements.txt", text, wheels=True))
    assert [name for name, _ in named] == ["pins.txt"]


def test_files_that_an_included_file_includes_keep_their_folder(tmp_path: Path) -> None:
    """pip looks for them in the folder of the file that includes them."""
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "sub" / "a.txt").write_text("-r deep/b.txt\n")
    (tmp_path / "sub" / "deep" / "b.txt").write_text("timm\n")
    named = list(with_named(tmp_path / "requirements.txt", "-r sub/a.txt\n"))
    assert [name for name, _ in named] == ["sub/a.txt", "sub/deep/b.txt"]
    assert [file for _, file in named] == [tmp_path / name for name, _ in named]
