"""Copy files of a run's checkpoints from one host to another, through this machine.

The source lists regular files and their folders, and sends the content of these files, but no links.
This machine checks the list and the content, and writes the archive for the target itself. So the target
receives only what was asked for, whatever the source sends. Links are made on the target.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from ..budget import SLOWEST, Budget, time_to_hash
from ..errors import CommandFailed
from ..push.files.tar import Member, archive, file_info
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.script_files import load_script
from ..ssh.stream import Completed, Stream
from ..text import LONGEST_PATH

END_TIMEOUT = 60.0  # seconds to wait for more data, and for a command to end after its last data
ARRIVING = ".arriving"  # the folder in checkpoints/ that receives the files
HASH = load_script(__file__, "hash_files.sh")
SEND = load_script(__file__, "send_files.sh")
RECEIVE = load_script(__file__, "receive_files.sh")
PLACE = load_script(__file__, "place_files.sh")
SIZE = re.compile(r"([0-9]{1,15}) ([0-9]{1,11})[.0-9]* \./(.+)", re.DOTALL)
DIGEST = re.compile(r"([0-9a-f]{64})  \./(.+)", re.DOTALL)
CHECK_FOLDER = "check the free space (`df -h`) and the permissions of that folder"


@dataclass(frozen=True)
class HostFolder:
    """A run's folder on a host."""

    connection: HostConnection
    run_dir: str

    def script(
        self,
        text: str,
        *args: str,
        stdin: bytes = b"",
        hashed: int = 0,
        prints: bool = True,
    ) -> Completed:
        """Run a script on the host with the run's folder as $1, and return its result.

        Raises CommandFailed if it fails. hashed: the bytes of the files that the script hashes.
        prints: whether it must print something every END_TIMEOUT seconds.
        """
        done = self.connection.script(
            text,
            self.run_dir,
            *args,
            stdin=stdin,
            timeout=time_to_hash(hashed),
            limit=LONG_OUTPUT,
            silence=END_TIMEOUT if prints else None,
        )
        if done.code != 0:
            raise self.failed(done.reason)
        return done

    def failed(self, reason: str, remedy: str = CHECK_FOLDER) -> CommandFailed:
        what = f"{self.run_dir}/checkpoints: {reason}"
        return CommandFailed(what, remedy, host=self.connection.name)


class PlainFile(NamedTuple):
    path: str
    size: int  # bytes
    time: int  # last modification, unix seconds
    sha256: str


def listed_files(folder: HostFolder, below: str, paths: Sequence[str]) -> tuple[PlainFile, ...]:
    """Return the regular files at or below `paths`, sorted by path.

    below: the folder in the run's folder that `paths` are relative to. Skips malformed rows, and
    paths that were not asked for. Raises CommandFailed if the host cannot list the files.
    """
    stdin, wanted = ended_by_nul(paths), {*paths}
    rows = matches(SIZE, folder.script(HASH, below, "sizes", stdin=stdin))
    sizes = {row[3]: row for row in rows if _is_at_or_below(row[3], wanted)}
    hashed = sum(int(row[1]) for row in sizes.values())
    second = folder.script(HASH, below, "hashes", stdin=stdin, hashed=hashed)
    digests = {row[2]: row[1] for row in matches(DIGEST, second)}
    files = {
        path: PlainFile(path, int(row[1]), int(row[2]), digests[path])
        for path, row in sizes.items()
        if path in digests
    }
    return tuple(files[path] for path in sorted(files))


def matches(form: re.Pattern[str], listed: Completed) -> Iterator[re.Match[str]]:
    """Yield the well-formed rows of a host's list."""
    for row in listed.rows():
        if match := form.fullmatch(os.fsdecode(row)):
            yield match


def ended_by_nul(rows: Iterable[str]) -> bytes:
    return os.fsencode("".join(f"{row}\0" for row in rows))


def is_below(path: str) -> bool:
    return len(path) <= LONGEST_PATH and {"", ".", ".."}.isdisjoint(path.split("/"))


def _is_at_or_below(path: str, paths: Set[str]) -> bool:
    ends = (match.start() for match in re.finditer(r"/|\Z", path))
    return is_below(path) and any(path[:end] in paths for end in ends)


def copy_files(
    source: HostFolder,
    target: HostFolder,
    paths: Mapping[str, str],
    *,
    copies: Collection[str],
    aside: str,
    uid: str,
) -> None:
    """Copy files, folders and links into the target's checkpoints, once all of them have arrived.

    paths: the paths to copy, each with its target if it is a link, else with "". copies: paths whose
    files on the target are only copies, which are not kept. aside: the folder in the target's checkpoints
    that keeps all other files that are replaced. uid: see `fixed_uid`. Raises CommandFailed if a file
    does not arrive intact.
    """
    plain = [path for path, link in paths.items() if not link]
    files = listed_files(source, "checkpoints", plain)
    try:
        _stream(source, target, files)
        arrived = listed_files(target, f"checkpoints/{ARRIVING}", plain)
        if {file.path: file.sha256 for file in arrived} != {f.path: f.sha256 for f in files}:
            raise target.failed(
                f"files from {source.connection.name} arrived damaged", "resume again"
            )
        items = (
            ("=" if path in copies else "+") + path + (f"//{link}" if link else "")
            for path, link in paths.items()
        )
        target.script(PLACE, ARRIVING, aside, uid, stdin=ended_by_nul(items), prints=False)
    except BaseException:
        with contextlib.suppress(Exception):
            target.connection.run(["rm", "-rf", f"{target.run_dir}/checkpoints/{ARRIVING}"])
        raise


def _stream(source: HostFolder, target: HostFolder, files: Sequence[PlainFile]) -> None:
    with (
        source.connection.open_script(SEND, source.run_dir) as sending,
        target.connection.open_script(RECEIVE, target.run_dir, ARRIVING) as receiving,
    ):
        with contextlib.suppress(BrokenPipeError):  # the sender ended early, which is handled below
            sending.write(ended_by_nul(file.path for file in files), END_TIMEOUT)
            sending.close_stdin()
        try:
            for data in archive(_members(source, sending, files)):
                receiving.write(data, END_TIMEOUT)
            receiving.close_stdin()
            ended = receiving.wait(END_TIMEOUT) == 0
        except (BrokenPipeError, TimeoutError):
            ended = False
        if not ended:
            printed = receiving.stderr_tail().splitlines() or ["tar failed or did not finish"]
            raise target.failed(printed[-1])


def _members(source: HostFolder, sending: Stream, files: Sequence[PlainFile]) -> Iterator[Member]:
    """Yield the files with their content. Raises CommandFailed if the content is not as listed."""
    size = sum(file.size for file in files)
    budget = Budget("`cat`", source.connection.name, size, END_TIMEOUT, slowest=SLOWEST)
    chunks, ahead = budget.chunks(sending), b""

    def content(file: PlainFile) -> Iterator[bytes]:
        nonlocal ahead
        missing, digest = file.size, hashlib.sha256()
        while missing:
            ahead = ahead or next(chunks, b"")
            if not ahead:
                break
            block, ahead = ahead[:missing], ahead[missing:]
            missing -= len(block)
            digest.update(block)
            yield block
        if missing or digest.hexdigest() != file.sha256:
            printed = sending.stderr_tail().splitlines() or ["changed while it was being sent"]
            raise source.failed(f"{file.path}: {printed[-1]}", "resume again")

    for file in files:
        info = file_info(file.path, file.size)
        info.mtime = file.time
        yield info, content(file)
