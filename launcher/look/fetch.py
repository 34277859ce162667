"""Copy a run's checkpoints, output and logs from its hosts to this machine, and verify them."""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from rich.filesize import decimal

from ..budget import SLOWEST, Budget, time_to_hash
from ..engines.node_handle import AttemptHandle, NodeHandle
from ..errors import CommandFailed, DdpctlError, UnusableAnswer, UsageError
from ..facts.shared_homes import one_per_home
from ..runs.newest_attempt import newest_attempt
from ..runs.record import RunRecord
from ..runs.run_folder import RunFolder
from ..runs.sync_logs import sync_logs
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.many import ask_each
from ..ssh.script_files import load_script
from ..ssh.stream import CHUNK, Completed
from ..terminal.console import Console
from ..terminal.host_errors import unseen
from ..text import counted, names, one_line

LIST = load_script(__file__, "list_files.sh")
HASH = load_script(__file__, "hash_file.sh")
LISTING = 600.0  # seconds to list a host's files
SILENCE = 60.0  # seconds without data after which ddpctl gives up on a host
FOLDERS = ("checkpoints", "output", "nodes")
SIZE = re.compile(rb"([0-9]{1,15}) ([^ ].*)", re.DOTALL)
ROW = re.compile(rb"([0-9a-f]{64}|[->]) {1,2}(.+)", re.DOTALL)
HASHED = re.compile(rb"([0-9]{1,15}) ([0-9a-f]{64}) .*\n")
UNREADABLE, LINK = "-", ">"  # instead of a sha256


@dataclass(frozen=True)
class RemoteFile:
    member: NodeHandle  # the node that has it
    path: PurePosixPath  # relative to the run's folder on the host, in one of FOLDERS
    sha256: str  # UNREADABLE for a file or folder that the user may not read; LINK
    size: int  # bytes
    leads_to: PurePath | None = None  # of a link: see `inside`; in `targets`, the local path


class NotLinked(Exception):
    """Raised with the reason if a link is left out, which is not an error."""


@dataclass
class FetchResult:
    """The result of a fetch. failures: the errors of hosts that did not answer."""

    to: Path
    files: int = 0
    skipped: int = 0  # files that this machine already had
    bytes: int = 0
    failures: Mapping[str, DdpctlError] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)  # by host: its first file error

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
        files, size = counted(self.files, "file"), decimal(self.bytes)
        return f"{self.to}: fetched {files}, {size}; {counted(self.skipped, 'file')} unchanged"


def fetch(folder: RunFolder, to: Path, console: Console) -> FetchResult:
    done = FetchResult(to)
    with newest_attempt(folder, console) as attempt:
        missing_lines = sync_logs(folder, attempt, console)
        try:
            (to / "logs").mkdir(parents=True, exist_ok=True)
            kept = folder.logs.glob("node-*.log"), folder.logs.glob("failure-*.txt")
            for path in (folder.record_file, folder.hosts_file, *chain(*kept)):
                shutil.copyfile(path, to / path.relative_to(folder.path))
            with console.step("listing the files of the run"):
                files, silent = list_files(attempt)
            done.failures = {**missing_lines, **silent}
            stuck: set[HostConnection] = set()
            left_out: dict[str, list[str]] = {}  # links, by the reason
            for target, file in targets(files, to).items():
                connection = file.member.connection
                if connection in stuck:
                    continue
                try:
                    _fetch_one(file, target, done, console)
                except NotLinked as why:
                    name = one_line(f"{connection.name}:{file.path}")
                    left_out.setdefault(str(why), []).append(name)
                except DdpctlError as error:
                    done.errors.setdefault(connection.name, error)
                    if not isinstance(error, CommandFailed):  # the host is to blame, not the file
                        stuck.add(connection)
        except shutil.SameFileError:
            what = f"{to} is where this machine keeps the run's record and logs"
            raise UsageError(what, "pass another folder with --to") from None
        except OSError as error:
            what = f"{error.filename or to}: cannot be written: {error.strerror}"
            remedy = "fix its permissions, free up space, or pass another folder with --to"
            raise UsageError(what, remedy) from None
    for reason, links in left_out.items():
        count = counted(len(links), "symbolic link")
        console.say(f"not fetched: {count}, such as {links[0]}: {reason}")
    if (record := folder.load_if_readable(console)) and (former := former_hosts(record)):
        console.say(f"not asked for files: {names(former)}, used only by earlier attempts")
    return done


def former_hosts(record: RunRecord) -> dict[str, None]:
    """Return the hosts that started only earlier attempts, in order."""
    now = {node.host for node in record.attempt.nodes}
    started = (attempt for attempt in record.attempts if attempt.started or attempt.is_reported)
    hosts = (node.host for attempt in started for node in attempt.nodes)
    return dict.fromkeys(host for host in hosts if host not in now)


def list_files(attempt: AttemptHandle) -> tuple[list[RemoteFile], dict[str, DdpctlError]]:
    """Return the run's files, and the errors of hosts that do not answer or send an unusable list.

    If hosts share a home directory, only one of them is asked.
    """

    def ask(connection: HostConnection) -> list[RemoteFile]:
        member = attempt.by_connection[connection]
        run_dir = member.place.run_dir

        def listed(what: str, seconds: float) -> Completed:
            return connection.script(
                LIST, run_dir, what, timeout=seconds, silence=SILENCE, limit=LONG_OUTPUT
            )

        first = listed("sizes", LISTING)
        rows = [SIZE.fullmatch(row) for row in first.rows() if row]
        sizes = {size[2]: int(size[1]) for size in rows if size}
        second = listed("hashes", time_to_hash(sum(sizes.values())))
        cut_off = not all(done.stdout[-1:] in (b"", b"\0") for done in (first, second))
        files, nonsense = [], cut_off or None in rows
        for row in filter(None, second.rows()):
            match = ROW.fullmatch(row)
            listed_path, _, link = match[2].partition(b"//") if match else (b"", b"", b"")
            kind, size = match[1].decode() if match else "", sizes.get(listed_path, 0)
            if path := safe_path(listed_path, whole=kind == UNREADABLE):
                leads_to = inside(path, link, run_dir) if kind == LINK else None
                files.append(RemoteFile(member, path, kind, size, leads_to))
            else:
                nonsense = True
        if nonsense or (sizes and not files):
            what = "its answer is not a list of the run's files"
            remedy = f"check {run_dir}, `find` and `sha256sum` on that host"
            raise UnusableAnswer(what, remedy, host=connection.name)
        return files

    lists, failures = ask_each(one_per_home(attempt.connections), ask)
    return [file for files in lists.values() for file in files], failures


def safe_path(text: bytes, *, whole: bool = False) -> PurePosixPath | None:
    """Return a path that a host listed, or None if it is not below one of FOLDERS.

    whole: allow these folders too.
    """
    path = PurePosixPath(text.decode(errors="surrogateescape"))
    top, *below = path.parts or ("",)
    is_safe = top in FOLDERS and ".." not in below and bool(below or whole)
    return path if is_safe else None


def inside(path: PurePosixPath, link: bytes, run_dir: str) -> PurePosixPath | None:
    """Return the target of the link at `path` in the run's folder; None if it is not in FOLDERS.

    link: the link's text. An absolute path may be one in a container, such as /checkpoints/last.pt, or one
    on the host.
    """
    full = os.path.normpath(bytes(path.parent / os.fsdecode(link)))
    here = f"/runs/{PurePath(run_dir).name}/".encode()
    below = full.partition(here)[2] if link.startswith(b"/") else b""
    return safe_path(below or full.lstrip(b"/"), whole=True)


def targets(files: Iterable[RemoteFile], to: Path) -> dict[Path, RemoteFile]:
    """Return the files and links to fetch, keyed by local path.

    If nodes have different files with the same path, the file of the lowest node rank gets that
    path and the others go to nodes/RANK. A link leads to the file of its own node.
    """
    at: dict[Path, RemoteFile] = {}
    for file in sorted(files, key=lambda f: (f.sha256 == LINK, f.member.place.node_rank)):
        target, own = to / file.path, to / "nodes" / str(file.member.place.node_rank)
        if file.leads_to:
            is_own = own / file.leads_to in at
            file = replace(file, leads_to=(own if is_own else to) / file.leads_to)
        there = at.get(target, file)
        if (there.sha256, there.leads_to) != (file.sha256, file.leads_to):
            target = own / file.path
        at.setdefault(target, file)
    return at


def _fetch_one(file: RemoteFile, target: Path, done: FetchResult, console: Console) -> None:
    """Fetch a file or link. If an earlier fetch of a file was interrupted, fetch only the rest.

    Raises NotLinked or DdpctlError, or OSError if no other file can be written either.
    """
    if file.sha256 == LINK and not file.leads_to:
        raise NotLinked("it leads out of the run's checkpoints and output")
    if file.sha256 == UNREADABLE:
        what = f"you may not read {file.path}, so it was not fetched"
        remedy = f"as root on that host, run `chmod -R a+rX {file.member.place.run_dir}`"
        raise CommandFailed(what, remedy, host=file.member.connection.name)
    link = os.path.relpath(file.leads_to, target.parent) if file.leads_to else None
    try:
        if _is_here(file, target, link):
            done.skipped += 1
            return
        _make_folder(target.parent, done.to)
        with console.step(one_line(f"fetching {file.path} from {file.member.connection.name}")):
            part = _link_part(link, target) if link else _fetch_part(file, target, done)
        part.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise  # no other file can be written either
        what = f"{file.path} cannot be written to {done.to}: {error.strerror}"
        remedy = "rename what is in its place, or pass another folder with --to"
        raise CommandFailed(what, remedy, host=file.member.connection.name) from None
    done.files += 1


def _is_here(file: RemoteFile, target: Path, link: str | None) -> bool:
    if link:
        return target.is_symlink() and str(target.readlink()) == link
    return target.is_file() and _sha256(target) == file.sha256


def _make_folder(folder: Path, to: Path) -> None:
    """Make a folder below `to`, never through a link."""
    if folder.resolve() != to.resolve() / folder.relative_to(to):
        raise OSError(errno.ELOOP, "its folder is a link or lies below one")
    missing = takewhile(lambda each: not each.is_dir(), (folder, *folder.parents))
    for each in reversed([*missing]):  # `parents=True` recurses, and a path may be deep
        each.mkdir(exist_ok=True)


def _link_part(link: str, target: Path) -> Path:
    part = target.with_name(".link.part")
    part.unlink(missing_ok=True)
    try:
        part.symlink_to(link)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise NotLinked("the destination's file system has no symbolic links") from None
        raise
    return part


def _fetch_part(file: RemoteFile, target: Path, done: FetchResult) -> Path:
    """Fetch into a hidden file beside `target`. Return its path.

    If the file has changed since it was listed, as files of a live run do, fetch its current content.
    """
    part = _copy(file, target, done)
    if part is None and (now := _listed_again(file)) and now != file:
        part = _copy(now, target, done)
    if part is None:
        what = f"{file.path} changed while it was being fetched"
        remedy = "fetch again (a live run changes its files)"
        raise CommandFailed(what, remedy, host=file.member.connection.name)
    return part


def _listed_again(file: RemoteFile) -> RemoteFile | None:
    """Return the file with its current size and hash; None if it can no longer be read."""
    path = f"{file.member.place.run_dir}/{file.path}"
    answer = file.member.connection.script(HASH, path, timeout=time_to_hash(file.size))
    match = HASHED.fullmatch(answer.stdout)
    return match and replace(file, size=int(match[1]), sha256=match[2].decode())


def _copy(file: RemoteFile, target: Path, done: FetchResult) -> Path | None:
    """Copy the first `file.size` bytes to a hidden file beside `target`. Return its path.

    Return None if they do not have the right hash.
    """
    part = target.with_name(f".{file.sha256[:24]}.part")
    to = os.open(part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    connection, run_dir = file.member.connection, file.member.place.run_dir
    with os.fdopen(to, "ab") as out:
        have = out.seek(0, os.SEEK_END)
        if have > file.size:
            out.truncate(have := 0)
        if file.size - have > shutil.disk_usage(target.parent).free:
            raise OSError(errno.ENOSPC, "No space left on device", str(done.to))
        most = file.size - have + CHUNK  # it may have grown since it was listed
        rest = Budget("`tail`", connection.name, most, SILENCE, slowest=SLOWEST)
        argv = ["tail", "-c", f"+{have + 1}", f"{run_dir}/{file.path}"]
        with connection.open(argv, stdin=False) as stream:
            for data in rest.chunks(stream):
                done.bytes += out.write(data[: file.size - out.tell()])
                if out.tell() == file.size:
                    break
    if _sha256(part) == file.sha256:
        return part
    part.unlink()
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
