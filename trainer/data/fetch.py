"""Download CIFAR once per machine and verify it. Nothing else in the trainer uses the network."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from .cifar import HUNDRED, TEN


@dataclass(frozen=True)
class Source:
    url: str
    md5: str  # the checksum that the set's authors publish
    folder: str


SOURCES = {
    "cifar10": Source(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        TEN,
    ),
    "cifar100": Source(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        HUNDRED,
    ),
}
TIMEOUT = 30  # seconds without receiving a byte


def fetch(name: str, to: Path) -> Path:
    """The set's folder under `to`, downloaded if missing. The ranks of one machine take turns.

    Raises DataError if there is no network or the file is not the published one.
    """
    source = SOURCES[name]
    to.mkdir(parents=True, exist_ok=True)
    with (to / ".fetch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (to / source.folder).is_dir():
            archive = to / Path(source.url).name
            _download(source, archive)
            _unpack(archive, to, source.folder)
            archive.unlink()
    return to / source.folder


def _download(source: Source, archive: Path) -> None:
    part = archive.with_name(archive.name + ".part")
    try:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT) as answer, part.open("wb") as out:
            shutil.copyfileobj(answer, out)
    except (OSError, urllib.error.URLError) as error:
        part.unlink(missing_ok=True)
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{source.url}: cannot be fetched ({reason}): download it elsewhere, unpack it, "
            "and pass its folder as --data"
        ) from None
    found = hashlib.md5(part.read_bytes(), usedforsecurity=False).hexdigest()
    if found != source.md5:
        part.unlink()
        raise DataError(f"{source.url}: md5 {found}, published is {source.md5}: fetch it again")
    part.replace(archive)


def _unpack(archive: Path, to: Path, folder: str) -> None:
    scratch = to / f".{folder}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(archive) as tar:
        for member in tar:  # Python 3.11.2 has no filter="data"
            if not (member.isfile() or member.isdir()) or ".." in Path(member.name).parts:
                raise DataError(f"{archive}: {member.name} is not a file of the set")
            member.name = member.name.lstrip("/")
            tar.extract(member, scratch, set_attrs=False)
    (scratch / folder).replace(to / folder)
    shutil.rmtree(scratch)
