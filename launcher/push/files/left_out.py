"""Decide which paths a push leaves out of a workdir.

It leaves out paths that the hosts file names as private or as data, paths that .gitignore and
.ddpctlignore exclude, secrets, version control, environments, caches, checkpoints, and ddpctl's own
files (hosts files, reports and fetched runs). To keep a file, add a line such as `!server.pem` to
.ddpctlignore.

As in git, patterns apply to the ignore file's folder and to everything below it. Deeper ignore files
override higher ones, and nothing below an excluded folder can be kept. .ddpctlignore overrides
.gitignore.
"""

# Paths are bytes here, because names need not be UTF-8. pathlib does not support bytes.
# ruff: noqa: PTH112, PTH116, PTH118
import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate

from pathspec import GitIgnoreSpec
from rich.filesize import decimal

from ...hosts import Cluster
from ...hosts.files import MAX_BYTES
from ...own_folders import cache_home, home_folder, state_home
from ...text import LONGEST_PATH, quoted
from .open_file import open_file
from .quick_pattern import QuickPattern

NAMES = (  # patterns for the names of files and folders
    *(".git", ".hg", ".svn", ".env*", ".netrc", ".pgpass", ".git-credentials"),
    *(".ssh", ".gnupg", ".aws", ".kube", ".venv", ".conda", ".pixi", ".tox", ".nox", ".eggs"),
    *(".cache", ".*_cache", "__pycache__", "*.pyc", ".ipynb_checkpoints", "node_modules"),
)
FILES = (  # secrets, checkpoints, Apptainer images and TensorBoard logs
    *("*.env", "id_*", "*.pem", "*.key", "*.ppk", "*.p12", "*.pfx"),
    *("*.pt", "*.pth", "*.ckpt", "*.safetensors", "*.distcp", "*.sif", "events.out.tfevents.*"),
)
NO_KEYS = ("id_*.py", "id_*.json", "id_*.yaml", "id_*.yml", "id_*.csv", "id_*.txt", "id_*.sh")
# Folders with these names are left out unless they are Python packages.
OUTPUT = ("venv", "checkpoints", "checkpoint-*", "lightning_logs", "wandb", "mlruns")
# A folder that contains all names of one of these sets is an environment, a cache or a fetched run.
MARKS = ({"pyvenv.cfg"}, {"conda-meta"}, {"CACHEDIR.TAG"}, {"run.json", "hosts.yaml", "logs"})

REPORT = '<meta name="generator" content="ddpctl">'
_HEAD = 4096  # bytes to read from an HTML file to tell whether it is a report
_SHOWN = 8  # names in a message
_MOST_COUNTED = 50_000  # files whose sizes are added up; there may be millions


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))


LARGEST = 1 << 20  # maximum bytes to read from an ignore file
MOST_PATTERNS = 5000  # maximum patterns that apply to one file; matching this many takes 20 ms
PRIVATE_KEY = re.compile(  # the third alternative is the start of a Google Cloud key, in JSON
    rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----|PuTTY-User-Key-File-"
    rb'|\s*\{\s*"type":\s*"service_account"'
)
_NAME, _FILE = _any_of(NAMES), _any_of(FILES)
_NO_KEY, _OUTPUT = _any_of(NO_KEYS), _any_of(OUTPUT)


@dataclass(frozen=True)
class LeftOut:
    """A path that is not pushed. size: bytes in total. at_least: whether it may be larger."""

    path: str
    size: int
    at_least: bool = False


def listed(left_out: Collection[LeftOut]) -> str:
    """Return a line of paths and sizes, the largest first."""
    order = sorted(left_out, key=lambda each: (-each.size, each.path))
    shown = [f"{quoted(each.path, LONGEST_PATH)} ({_size(each)})" for each in order[:_SHOWN]]
    if rest := order[_SHOWN:]:
        shown.append(f"{len(rest)} more ({_size(*rest)})")
    return ", ".join(shown)


def _size(*paths: LeftOut) -> str:
    return "over " * any(p.at_least for p in paths) + decimal(sum(p.size for p in paths))


@dataclass(frozen=True)
class IgnoreFile:
    folder: str  # relative to the tree, with a trailing slash, or ""
    patterns: GitIgnoreSpec
    can_keep: bool  # whether it may keep what is left out by default; only .ddpctlignore may

    def verdict(self, path: str) -> tuple[bool | None, str]:
        """Return whether `path` is ignored and the deciding pattern; (None, "") if none matches."""
        result = self.patterns.check_file(path[len(self.folder) :])
        if result.include is None or result.index is None:
            return None, ""
        return result.include, str(list(self.patterns.patterns)[result.index].pattern)


class TooManyPatterns(Exception):
    """Raised with an ignore file's path if its patterns would take too long to match."""


def ignore_files(root: bytes, folder: bytes, above: Collection[IgnoreFile]) -> Iterator[IgnoreFile]:
    """Yield a folder's ignore files; the one that takes precedence comes last.

    above: the ignore files of its parent folders. Raises TooManyPatterns.
    """
    count = sum(map(len, (file.patterns for file in above)))
    base = folder + b"/" if folder else b""
    for name in (b".gitignore", b".ddpctlignore"):
        text = _beginning(os.path.join(root, base, name), LARGEST).decode(errors="replace")
        if text:
            lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
            if (count := count + len(lines)) > MOST_PATTERNS:
                raise TooManyPatterns(base + name)
            spec = GitIgnoreSpec.from_lines(lines, QuickPattern)
            yield IgnoreFile(os.fsdecode(base), spec, can_keep=name == b".ddpctlignore")


def is_left_out(
    root: bytes, path: str, children: Set[str] | None, files: Collection[IgnoreFile]
) -> bool:
    """Return whether a push of the workdir leaves out `path`.

    children: the names in `path` if it is a folder; None if it is a file. files: the ignore files
    that apply to `path`, from the root down.
    """
    name = path.rpartition("/")[2]
    if name == ".git":
        return True
    for file in reversed([*files]):
        ignored, pattern = file.verdict(path if children is None else path + "/")
        if ignored:
            return True
        if ignored is False and file.can_keep and _names(pattern, name):
            return False
        if ignored is False:
            break
    if _NAME.match(name):
        return True
    if children is None:
        is_data = bool(_FILE.match(name)) and not _NO_KEY.match(name)
        full = os.path.join(root, os.fsencode(path))
        is_private_key = bool(PRIVATE_KEY.match(_beginning(full, 64)))
        return is_data or is_private_key or _is_ddpctls(full)
    is_output = bool(_OUTPUT.match(name)) and "__init__.py" not in children
    return is_output or any(mark <= children for mark in MARKS)


def _names(pattern: str, name: str) -> bool:
    """Return whether a pattern means `name` itself, rather than every file (`*`) or its parent."""
    last = pattern.rstrip("/").rpartition("/")[2].removeprefix("!")
    return bool(last.strip("*?.")) and fnmatchcase(name, last)


def _is_ddpctls(path: bytes) -> bool:
    """Return whether a file is a report of ddpctl or a hosts file, whose `env` may hold secrets."""
    extension = path.rpartition(b".")[2].lower()
    if extension == b"html":
        return REPORT.encode() in _beginning(path, _HEAD)
    text = _beginning(path, MAX_BYTES) if extension in (b"yaml", b"yml") else b""
    return all(re.search(rb"^%b:" % key, text, re.MULTILINE) for key in (b"hosts", b"job"))


def _beginning(path: bytes, most: int) -> bytes:
    """Return the first `most` bytes of a file; b"" if it is unreadable or not a regular file."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):  # links are not followed, as in git
            with open_file(path) as file:
                return file.read(most)
    return b""


class NamedPaths:
    """Paths to leave out wherever they are in a tree, even under another name or as a link."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._ids: set[tuple[int, int]] = set()
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                status = os.stat(path)
                self._ids.add((status.st_ino, status.st_dev))
        self._inodes = {inode for inode, _ in self._ids}

    def include(self, child: os.DirEntry[bytes]) -> bool:
        with contextlib.suppress(OSError):
            if child.is_symlink() or child.inode() in self._inodes:
                status = child.stat()
                return (status.st_ino, status.st_dev) in self._ids
        return False


def private_paths(cluster: Cluster) -> list[str]:
    """Return the secret files on this machine that the hosts file names."""
    keys = (host.identity_file for host in (*cluster.hosts, *cluster.spares))
    return [path for path in (cluster.job.env_file, *keys) if path]


def data_paths(cluster: Cluster) -> list[str]:
    """Return the data paths in the hosts file, including those that flags replaced."""
    mounts = (mount.partition(":")[0] for mount in cluster.job.mounts)
    folders = (cluster.job.dataset, cluster.job.metrics_dir, *mounts)
    return [*filter(None, folders), *cluster.replaced]


def own_folders() -> list[str]:
    """Return ddpctl's own folders. They change during a push and belong to this machine only."""
    return [str(folder) for folder in (cache_home(), state_home(), home_folder() / ".ddpctl")]


def measured(root: bytes, path: bytes) -> LeftOut:
    """Return a LeftOut for `path`, which is relative to `root`, with its total size."""
    pending, size, count = [os.path.join(root, path)], 0, 0
    with contextlib.suppress(OSError):
        size = 0 if os.path.isdir(pending[0]) else os.lstat(pending[0]).st_size
    while pending and count < _MOST_COUNTED:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as children:
            for child in children:
                count += 1
                if child.is_dir(follow_symlinks=False):
                    pending.append(child.path)
                else:
                    size += child.stat(follow_symlinks=False).st_size
    return LeftOut(os.fsdecode(path), size, bool(pending))
