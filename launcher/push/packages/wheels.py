"""The packages of `job.requirements`: wheels for the hosts' Pythons, and environments made from them.

This machine downloads the wheels once, into one tree with a folder for each Python version and
architecture that the hosts have. Each folder also contains pip, so that a host needs neither its own
pip nor the internet.
"""

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from ...errors import PushFailed, UsageError
from ...hosts import Job
from ...own_folders import cache_home
from ...plan.supervisor_spec import python_on
from ...ssh.host_connection import HostConnection
from ...ssh.many import try_each
from ...ssh.script_files import load_script
from ..files.scan import Tree, scan
from ..image.recipe import find_source, requirements_of, with_named
from ..make_once import make_once
from ..push_progress import PushProgress
from ..transfer.payload import Failures, failed, script_output

PLATFORM = load_script(__file__, "python_platform.sh")
MAKE_VENV = load_script(__file__, "make_venv.sh")
ANSWER = re.compile(r"(3\.[0-9]{1,2}-[a-z0-9_]{1,20}) 2\.([0-9]{1,3})\n")
INSTALL_TIME = 1800.0  # seconds; torch has 15,000 files, and a home folder may be on NFS
OLDEST_GLIBC = 5  # manylinux1 wheels need glibc 2.5


@dataclass(frozen=True, order=True)
class WheelTarget:
    """A Python on some of the hosts. folder: its version and architecture.

    glibc: N, where 2.N is the oldest glibc of these hosts.
    """

    folder: str
    glibc: int

    @property
    def minor(self) -> int:
        """N, where 3.N is the version of the Python."""
        return int(self.folder.partition("-")[0].removeprefix("3."))

    def pip_options(self) -> Iterator[str]:
        version, _, machine = self.folder.partition("-")
        yield from ("--only-binary=:all:", "--implementation=cp", f"--python-version={version}")
        for minor in range(self.glibc, OLDEST_GLIBC - 1, -1):
            yield f"--platform=manylinux_2_{minor}_{machine}"
        for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux"):
            yield f"--platform={name}_{machine}"


def wheels_of(
    job: Job, connections: Sequence[HostConnection], progress: PushProgress
) -> tuple[Tree | None, Failures]:
    """Return the tree of wheels for these hosts, and the errors of hosts that cannot use wheels.

    The tree is None if no host can use wheels. Raises UsageError or PushFailed, for example if a
    package has no wheel.
    """
    answers, failures = try_each(connections, lambda connection: _target(job, connection))
    newest_first = sorted(answers.values(), reverse=True)
    targets = {target.folder: target for target in newest_first}  # the oldest glibc wins
    return (_collect(job, sorted(targets.values()), progress) if targets else None), failures


def make_venv(job: Job, digest: str, connection: HostConnection) -> None:
    """Create the virtual environment from the wheels on the host, unless it exists and works."""
    arguments = digest, python_on(job, connection.host)
    script_output(connection, "packages", MAKE_VENV, *arguments, timeout=INSTALL_TIME)


def collected(job: Job) -> set[str]:
    """Return the digests of the wheel trees that this machine has collected for the job."""
    if job.requirements is None:
        return set()
    folders = (cache_home() / "wheels").glob(f"{_key(*_requirements(job))}-*")
    return {scan(str(folder), code_only=False).manifest.digest for folder in folders}


def _target(job: Job, connection: HostConnection) -> WheelTarget:
    text = script_output(
        connection, "packages", PLATFORM, python_on(job, connection.host), timeout=60.0
    )
    if match := ANSWER.fullmatch(text):
        return WheelTarget(match[1], int(match[2]))
    raise PushFailed(
        "its Python was not built for Linux with glibc, which the wheels need",
        "set job.python or job.conda to a Python for Linux with glibc",
        host=connection.name,
    )


def _requirements(job: Job) -> tuple[Path, str]:
    """Return the file that lists the job's packages, and that list in requirements.txt format."""
    source = find_source(Path(job.requirements or ""))
    if source.suffix in (".txt", ".toml"):
        return source, requirements_of(source)
    raise UsageError(
        f"{source}: is neither a requirements.txt nor a pyproject.toml",
        "list the packages in one of them, or set job.conda to an environment that has them",
    )


def _key(source: Path, text: str) -> str:
    stats = [(name, path.stat()) for name, path in with_named(source, text, wheels=True)]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return hashlib.sha256(json.dumps([str(source), text, files]).encode()).hexdigest()[:32]


def _collect(job: Job, targets: Sequence[WheelTarget], progress: PushProgress) -> Tree:
    source, text = _requirements(job)
    rest = json.dumps([[astuple(target) for target in targets], job.python, job.conda])
    key = f"{_key(source, text)}-{hashlib.sha256(rest.encode()).hexdigest()[:32]}"
    folder = cache_home() / "wheels" / key

    def make(draft: Path) -> None:
        pip = _own_pip()
        for target in targets:
            what = f"the packages in {source.name} for Python {target.folder}"
            progress.say(f"downloading {what}")
            _download_packages(source, text, target, draft)
            _add_pip(pip, target, draft / target.folder)
        # so that a different Python gives a different digest and thus a different environment
        (draft / "python").write_text(job.conda or job.python or "")

    make_once(folder, make)
    return scan(str(folder), code_only=False)


def _download_packages(source: Path, text: str, target: WheelTarget, to: Path) -> None:
    listed = source
    to.mkdir(exist_ok=True)
    if source.suffix == ".toml":
        listed = to / "requirements.txt"
        listed.write_text(text)
    words = ("--requirement", str(listed))
    _download(source.name, target, to / target.folder, *words, cwd=source.parent)


def _add_pip(own: importlib.metadata.Distribution, target: WheelTarget, to: Path) -> None:
    """Add pip to the wheels. If this machine's own pip is too new for the target, add an older one."""
    oldest = re.search(r">= *3\.(\d+)", own.metadata["Requires-Python"])
    if oldest is None or int(oldest[1]) <= target.minor:
        pip = Path(str(own.locate_file("pip")))
        shutil.copytree(pip, to / "pip", ignore=shutil.ignore_patterns("__pycache__"))
        return
    with tempfile.TemporaryDirectory() as scratch:
        _download("pip", target, Path(scratch), "--no-deps", "pip", cwd=to.parent)
        [wheel] = Path(scratch).iterdir()
        with zipfile.ZipFile(wheel) as files:
            files.extractall(to, [name for name in files.namelist() if name.startswith("pip/")])


def _download(what: str, target: WheelTarget, to: Path, *words: str, cwd: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    pip += ["--disable-pip-version-check", *target.pip_options(), "--dest", str(to), *words]
    done = subprocess.run(pip, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        what = f"{what} for Python {target.folder}"
        raise failed("this machine", what, done.stderr.decode(errors="replace"))


def _own_pip() -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        remedy = f"run `{sys.executable} -m ensurepip`"
        raise PushFailed("ddpctl's Python has no pip", remedy, host="this machine") from None
