"""The recipe for an image: a base, and the packages that a project lists.

This module only reads files.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from ...errors import UsageError
from ...text import quoted
from ..files.tar import archive, small_file

BASE = "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"
CONDA_BASE = "condaforge/miniforge3:latest"
SOURCES = ("requirements.txt", "pyproject.toml", "environment.yml", "environment.yaml")
TRAINER = "ddpctl-trainer:latest"
DEEPEST = 20  # levels of requirements files that include each other

_FILE_FLAG = re.compile(r"(?:-r|-c|-f|--requirement|--constraint|--find-links)[ =]*(\S+)")
_CONDA_ITEM = re.compile(r"""\s*- +(["']?)(-.*?)\1(\s+#.*)?""")
_LOCAL = re.compile(r"(?:-e\b|--editable\b|\.{0,2}/|\.$|file:|.*@ *file:)")
# Lines for which `pip --only-binary` needs only wheels: no other archives, URLs or options.
_OF_WHEELS = re.compile(
    r"(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)[ =]+\S+"
    r"|(-r|-c|--requirement|--constraint)[ =]+(?!\S*://)\S+"
    r"|--(no-index|pre|prefer-binary|require-hashes)"
    r"|(?!\S+\.(zip|tar|t[a-z]{2}|gz|bz2|xz|lz|lzma)\b)[A-Za-z0-9]((?! -)[^@/:\\$])*"
    r"(@ *https?://[^\s$?#]+\.whl( *[#;]((?! -)[^$])*)?)?( +--hash=\S+)*"
)


@dataclass(frozen=True)
class Recipe:
    """How to build an image. name: with or without a tag. files: (path, contents) to build from."""

    name: str
    base: str
    dockerfile: str
    files: tuple[tuple[str, bytes], ...]

    @property
    def has_tag(self) -> bool:
        return ":" in self.name.rpartition("/")[2]  # not the port of a registry

    def tag(self, base_id: str) -> str:
        """Return the name with its tag, or with a computed tag if the name has none."""
        if self.has_tag:
            return self.name
        digest = hashlib.sha256(base_id.encode() + self.context()).hexdigest()
        return f"{self.name}:{digest[:12]}"

    def context(self) -> bytes:
        """Return the build context as a tar archive."""
        files = (*self.files, ("Dockerfile", self.dockerfile.encode()))
        return b"".join(archive(starmap(small_file, files)))


def find_source(path: Path) -> Path:
    """Return the file that lists the packages: `path`, or the first of SOURCES in the folder `path`."""
    for each in (path, *(path / name for name in SOURCES)):
        if each.is_file():
            return each
    what = (
        f"contains no {', '.join(SOURCES[:2])} or {SOURCES[2]}"
        if path.is_dir()
        else "is not a file"
    )
    raise UsageError(f"{path} {what}", "write one, or pass its path")


def recipe_of(source: Path, base: str | None, name: str | None) -> Recipe:
    """Return the recipe for an image with the packages that `source` lists.

    Raises UsageError if `source` or a file that it includes cannot be used.
    """
    folder = re.sub("[^a-z0-9._-]+", "-", source.resolve().parent.name.lower()).strip("-._")
    name = name or f"ddpctl-{folder or 'image'}"
    is_conda = source.suffix in (".yml", ".yaml")
    base = base or (CONDA_BASE if is_conda else BASE)
    try:
        text = read_utf8(source) if is_conda else requirements_of(source)
        named = with_named(source, pip_files_of(text) if is_conda else text)
        files = {local: path.read_bytes() for local, path in named}
        files["environment.yml" if is_conda else "requirements.txt"] = text.encode()
    except OSError as error:
        raise unreadable(source, error) from None
    path = Path(__file__).with_name("conda.dockerfile" if is_conda else "pip.dockerfile")
    return Recipe(name, base, _dockerfile(path, base), tuple(sorted(files.items())))


def trainer_recipe(base: str | None) -> Recipe:
    """Return the recipe for ddpctl's own trainer, from a checkout or an installed ddpctl."""
    package = Path(__file__).parents[2]
    trainer = package / "trainer" if (package / "trainer").is_dir() else package.parent / "trainer"
    here = (trainer / "Dockerfile", package.parent / "Dockerfile")
    dockerfile = _dockerfile(next(path for path in here if path.is_file()), base or BASE)
    files = {
        f"trainer/{path.relative_to(trainer)}": path.read_bytes()
        for path in trainer.rglob("*")
        if path.suffix in (".py", ".json") and path.is_file()
    }
    return Recipe(TRAINER, base or BASE, dockerfile, tuple(sorted(files.items())))


def _dockerfile(path: Path, base: str) -> str:
    return re.sub("(?m)^ARG BASE_IMAGE.*", lambda _: f"ARG BASE_IMAGE={base}", path.read_text())


def requirements_of(source: Path) -> str:
    """Return a requirements file's text, or a pyproject.toml's dependencies in the same format."""
    text = read_utf8(source)
    if source.suffix != ".toml":
        return text
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {error}", "correct it") from None
    listed = project.get("dependencies") if isinstance(project, dict) else None
    if not isinstance(listed, list):
        remedy = "add it, or list the packages in requirements.txt (`pip freeze`, `poetry export`)"
        raise UsageError(f"{source} has no project.dependencies", remedy)
    return "".join(f"{each}\n" for each in listed)


def pip_files_of(text: str) -> str:
    """Return a conda environment's text with only the lines by which pip reads other files.

    Lines with absolute paths are dropped too, because those files may be in the base image.
    """
    items = map(_CONDA_ITEM.fullmatch, text.splitlines())
    flags = [(_FILE_FLAG.match(item[2]) if item else None) for item in items]
    return "\n".join(flag.string if flag and flag[1][0] != "/" else "" for flag in flags)


def read_utf8(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> UsageError:
    return UsageError(f"{path}: cannot be read: {error}", "make it a readable UTF-8 text file")


def with_named(
    source: Path, text: str, *, wheels: bool = False, depth: int = 0
) -> Iterator[tuple[str, Path]]:
    """Yield the local files that a requirements file includes, and those that they include in turn.

    text: the requirements. Each file comes with its path relative to the folder of `source`. A path
    that leads out of that folder is refused, because the project may come from a stranger, and the image
    leaves this machine. wheels: also refuse lines that would make pip run a package's code on this
    machine.
    """
    if depth > DEEPEST:
        what = f"{source}: requirements files include each other"
        raise UsageError(what, "remove one of the lines that include another file")
    folder = source.parent.resolve()
    for number, line in enumerate(text.replace("\\\n", "").splitlines(), 1):
        line = re.sub(r"(^|\s+)#.*", "", line).strip()
        if wheels and line and not _OF_WHEELS.fullmatch(line):
            raise UsageError(
                f"{source}:{number}: {quoted(line)} could run the package's code on this machine",
                "name a package that has wheels, or write `NAME @ URL` with the URL of a wheel",
            )
        if _LOCAL.match(line):
            raise UsageError(
                f"{source}:{number}: {quoted(line)} is not a package but code on this machine",
                "remove it: code belongs in job.workdir, the working directory of every rank",
            )
        flag = _FILE_FLAG.match(line)
        if flag is None or "://" in flag[1]:
            continue
        named, path = Path(flag[1]), source.parent / flag[1]
        is_here = path.exists() and not named.is_absolute() and ".." not in named.parts
        files = sorted(path.rglob("*")) if is_here and path.is_dir() else []
        if not is_here or not all(f.resolve().is_relative_to(folder) for f in (path, *files)):
            raise UsageError(
                f"{source}:{number}: {quoted(flag[1])} is not in the folder of {source.name}",
                "move it into that folder",
            )
        for file in files or [path]:
            if file.is_file():
                yield str(file.relative_to(source.parent)), file
        if path.is_file() and not line.startswith(("-f", "--find")):
            nested = with_named(path, read_utf8(path), wheels=wheels, depth=depth + 1)
            yield from ((str(named.parent / name), file) for name, file in nested)
