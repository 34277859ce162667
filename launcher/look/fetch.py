"""Copy a run's checkpoints, output and logs from its hosts to this machine, and verify them."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from ..budget import SLOWEST, Budget, TooMuch
from ..engines.running import RunningAttempt
from ..errors import CommandFailed, DdpctlError, UnusableAnswer, UsageError
from ..facts.shared_homes import one_per_home
from ..plan.plan import Place
from ..runs.newest_attempt import log_store, newest_attempt, sync_logs
from ..runs.record import RunFolder
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.many import ask_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import unseen

LIST = load_script(__file__, "list_files.sh")
SILENCE = 60.0  # seconds without data until a host is given up
FOLDERS = ("checkpoints", "output", "nodes")
SIZE = re.compile(rb"([0-9]{1,15}) ([^ ].*)", re.DOTALL)
ROW = re.compile(rb"([0-9a-f]{64})  (.+)", re.DOTALL)


@dataclass(frozen=True)
class RemoteFile:
    node: HostConnection
    place: Place
    path: PurePosixPath  # relative to the run's folder on the host, in one of FOLDERS
    sha256: str
    size: int  # bytes


@dataclass
class FetchResult:
    """What was fetched. failures: errors of hosts that did not answer. errors: of single files."""

    to: Path
    files: int = 0
    skipped: int = 0  # existed here already
    bytes: int = 0
    failures: Mapping[str, DdpctlError] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)  # the first of each host

    def document(self, run_id: str) -> dict[str, Any]:
        return {
            "version": 1,
            "run_id": run_id,
            "to": str(self.to),
            "fetched": self.files,
            "skipped": self.skipped,
            "bytes": self.bytes,
            "unseen": unseen(self.failures),
        }

    def summary(self) -> str:
        size = self.bytes / 1e6
        return f"{self.to}: fetched {self.files} files, {size:.1f} MB; {self.skipped} unchanged"


def fetch(folder: RunFolder, to: Path, console: Console) -> FetchResult:
    done = FetchResult(to)
    with newest_attempt(folder, console) as attempt:
        with log_store(folder, console) as store:
            missing_lines = sync_logs(attempt, store, console)
        with console.step("listing the files of the run"):
            files, silent = list_files(attempt)
        done.failures = {**missing_lines, **silent}
        try:
            (to / "logs").mkdir(parents=True, exist_ok=True)
            kept = folder.logs.glob("node-*.log"), folder.logs.glob("failure-*.txt")
            for path in (folder.record_file, folder.hosts_file, *chain(*kept)):
                shutil.copyfile(path, to / path.relative_to(folder.path))
            stuck: set[HostConnection] = set()
            for target, file in targets(files, to).items():
                if file.node in stuck:
                    continue
                try:
                    _fetch_one(file, target, done, console)
                except DdpctlError as error:
                    done.errors.setdefault(file.node.name, error)
                    if not isinstance(error, CommandFailed):  # the host, not this file
                        stuck.add(file.node)
        except OSError as error:
            what = f"{error.filename or to}: cannot be written: {error.strerror}"
            remedy = "fix its permissions, free some space, or pass another folder as --to"
            raise UsageError(what, remedy) from None
    return done


def list_files(attempt: RunningAttempt) -> tuple[list[RemoteFile], dict[str, DdpctlError]]:
    """Return the run's files, and the errors of hosts that are silent or send no list of files.

    Lists a shared home only once.
    """
    nodes = one_per_home(attempt.nodes)

    def ask(node: HostConnection) -> list[RemoteFile]:
        place = attempt.by_node[node].place
        listed = node.script(LIST, place.run_dir, timeout=600.0, limit=LONG_OUTPUT)
        sizes: dict[bytes, int] = {}
        files, nonsense = [], bool(listed.stdout) and not listed.stdout.endswith(b"\0")
        for row in listed.rows():
            if match := SIZE.fullmatch(row):
                sizes[match[2]] = int(match[1])
            elif file := parse_row(row, node, place, sizes):
                files.append(file)
            elif row:
                nonsense = True
        if nonsense or (sizes and not files):
            what = "its answer is not a list of the run's files"
            remedy = f"check {place.run_dir}, `find` and `sha256sum` on that host"
            raise UnusableAnswer(what, remedy, host=node.name)
        return files

    lists, failures = ask_each(nodes, ask)
    return [file for files in lists.values() for file in files], failures


def parse_row(
    row: bytes, node: HostConnection, place: Place, sizes: Mapping[bytes, int]
) -> RemoteFile | None:
    """Parse a row of LIST. Return None if it is malformed or its path is outside FOLDERS.

    sizes: in bytes, by path, as listed before.
    """
    match = ROW.fullmatch(row)
    path = PurePosixPath(match[2].decode(errors="surrogateescape") if match else "")
    if not match or len(path.parts) < 2 or path.parts[0] not in FOLDERS or ".." in path.parts:
        return None
    return RemoteFile(node, place, path, match[1].decode(), sizes.get(match[2], 0))


def targets(files: Iterable[RemoteFile], to: Path) -> dict[Path, RemoteFile]:
    """Choose a local path for each file.

    If nodes have different files with the same path, the file of the lowest rank gets that path
    and the others go to nodes/RANK.
    """
    at: dict[Path, RemoteFile] = {}
    for file in sorted(files, key=lambda f: f.place.node_rank):
        target = to / file.path
        if target in at and at[target].sha256 != file.sha256:
            target = to / "nodes" / str(file.place.node_rank) / file.path
        at.setdefault(target, file)
    return at


def _fetch_one(file: RemoteFile, target: Path, done: FetchResult, console: Console) -> None:
    """Fetch a file, continuing where an earlier fetch was interrupted. Raises DdpctlError."""
    if target.is_file() and _sha256(target) == file.sha256:
        done.skipped += 1
        return
    try:
        with console.step(f"fetching {file.path} from {file.node.name}"):
            part = _fetch_part(file, target, done)
        part.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise  # no other file will fit either
        what = f"{file.path} cannot be written to {done.to}: {error.strerror}"
        remedy = "rename what is in its place, or pass another folder as --to"
        raise CommandFailed(what, remedy, host=file.node.name) from None
    done.files += 1


def _fetch_part(file: RemoteFile, target: Path, done: FetchResult) -> Path:
    """Fetch a file into a hidden one beside `target`, not through a link. Return its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.parent.resolve() != done.to.resolve() / target.parent.relative_to(done.to):
        raise OSError(errno.ELOOP, "its folder is a link or below one")
    part = target.with_name(f".{file.sha256[:24]}.part")
    to = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    with os.fdopen(to, "ab") as out:
        have = out.seek(0, os.SEEK_END)
        if have > file.size:
            out.truncate(have := 0)
        if file.size - have > shutil.disk_usage(target.parent).free:
            raise OSError(errno.ENOSPC, "No space left on device", str(done.to))
        rest = Budget("`tail`", file.node.name, file.size - have, SILENCE, slowest=SLOWEST)
        argv = ["tail", "-c", f"+{have + 1}", f"{file.place.run_dir}/{file.path}"]
        with (
            contextlib.suppress(TooMuch),  # its digest is wrong
            file.node.open(argv, stdin=False) as stream,
        ):
            for data in rest.chunks(stream):
                out.write(data)
                done.bytes += len(data)
    if _sha256(part) != file.sha256:
        part.unlink()
        what = f"{file.path} changed while it was being fetched"
        raise CommandFailed(what, "fetch again (a live run changes its files)", host=file.node.name)
    return part


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
