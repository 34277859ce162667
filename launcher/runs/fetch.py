"""The `fetch` command's work: files of a run from its hosts, each whole and verified."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launcher.engines.attempt import RunningAttempt
from launcher.errors import CommandFailed, DdpctlError
from launcher.logs.store import LogStore
from launcher.plan.plan import Place
from launcher.runs.attempt import running_attempt
from launcher.runs.record import RunFolder
from launcher.runs.sync_logs import catch_up
from launcher.ssh.many import ask_each
from launcher.ssh.node import Node
from launcher.ssh.stream import READ_SIZE
from launcher.terminal.console import Console

# NUL-separated: sha256, two spaces, path relative to the run's folder, of every file that is whole.
LIST = r"""
cd "$1" 2>/dev/null || exit 0
find checkpoints output -type f ! -name '.*' -exec sha256sum -z {} + 2>/dev/null
"""


@dataclass(frozen=True)
class RemoteFile:
    node: Node
    run_dir: str
    path: str  # relative to run_dir
    sha256: str
    node_rank: int


@dataclass
class Fetched:
    files: int = 0
    skipped: int = 0
    bytes: int = 0


def fetch(folder: RunFolder, to: Path, console: Console, *, as_json: bool) -> int:
    """Returns 0, or 4 when a host was not seen: then what the others have is here all the same."""
    record = folder.load()
    with running_attempt(folder, record) as party:
        if store := LogStore.acquire(folder.logs, console.say):
            catch_up(party, store)
            store.close()
        with console.step("listing the files of the run"):
            files, failures = listed(party)
        wanted = placed(files, to)
        done = Fetched()
        to.mkdir(parents=True, exist_ok=True)
        for target, file in wanted.items():
            _fetch_one(file, target, done, console)
    _copy_records(folder, to)
    for error in failures.values():
        console.error(f"cannot see {error}")
    if as_json:
        unseen = [{"host": host, "error": str(e)} for host, e in failures.items()]
        console.json(
            {
                "version": 1,
                "run_id": folder.run_id,
                "to": str(to),
                "fetched": done.files,
                "skipped": done.skipped,
                "bytes": done.bytes,
                "unseen": unseen,
            }
        )
    else:
        size = done.bytes / 1e6
        console.say(f"{to}: {done.files} files, {size:.1f} MB, {done.skipped} were there already")
        console.print(str(to))
    return 4 if failures else 0


def listed(party: RunningAttempt) -> tuple[list[RemoteFile], dict[str, DdpctlError]]:
    """Every file of the run on every host, one node a run folder, and the hosts not seen."""
    by_folder: dict[tuple[str, str], tuple[Node, Place]] = {}
    for node, place in zip(party.nodes, party.places, strict=True):
        by_folder.setdefault((node.name, place.run_dir), (node, place))
    places = dict(by_folder.values())

    def ask(node: Node) -> list[RemoteFile]:
        place = places[node]
        done = node.script(LIST, place.run_dir, timeout=600.0)
        rows = [row.partition(b"  ") for row in done.stdout.split(b"\0") if row]
        return [
            RemoteFile(
                node,
                place.run_dir,
                path.decode(errors="surrogateescape"),
                digest.decode(),
                place.node_rank,
            )
            for digest, _, path in rows
        ]

    found, failures = ask_each(list(places), ask)
    return [file for files in found.values() for file in files], failures


def placed(files: Sequence[RemoteFile], to: Path) -> dict[Path, RemoteFile]:
    """Where each file goes. What node 0 has stands at the top; a node's own beside it."""
    at: dict[Path, RemoteFile] = {}
    for file in sorted(files, key=lambda f: f.node_rank):
        parts = PurePosixPath(file.path).parts
        if ".." in parts or file.path.startswith("/"):
            raise CommandFailed(f"{file.node.name}: {file.path!r} leads out of the run's folder")
        target = to.joinpath(*parts)
        if target in at and at[target].sha256 != file.sha256:
            target = to.joinpath("nodes", str(file.node_rank), *parts)
        at.setdefault(target, file)
    return at


def _fetch_one(file: RemoteFile, target: Path, done: Fetched, console: Console) -> None:
    if target.exists() and _sha256(target) == file.sha256:
        done.skipped += 1
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{file.sha256[:12]}.part")
    with console.step(f"fetching {file.path} from {file.node.name}"):
        _receive(file, part, done)
    if _sha256(part) != file.sha256:
        part.unlink()
        raise CommandFailed(
            f"{file.node.name}: {file.path} changed while it was fetched; fetch again "
            "(a run that is still writing changes its files)"
        )
    part.replace(target)
    done.files += 1


def _receive(file: RemoteFile, part: Path, done: Fetched) -> None:
    """Goes on where an earlier fetch was cut off."""
    have = part.stat().st_size if part.exists() else 0
    argv = ["tail", "-c", f"+{have + 1}", f"{file.run_dir}/{file.path}"]
    stream = file.node.open(argv, stdin=False)
    try:
        with part.open("ab") as out:
            while data := stream.read(READ_SIZE):
                out.write(data)
                done.bytes += len(data)
    finally:
        stream.close()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy_records(folder: RunFolder, to: Path) -> None:
    (to / "logs").mkdir(exist_ok=True)
    for path in [folder.path / "run.json", folder.hosts_file]:
        (to / path.name).write_bytes(path.read_bytes())
    for path in folder.logs.glob("node-*.log"):
        (to / "logs" / path.name).write_bytes(path.read_bytes())
