"""Download CIFAR once per machine and verify it. The trainer downloads nothing else."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from .cifar import HUNDRED, TEN


@dataclass(frozen=True)
class Source:
    url: str
    md5: str  # the checksum that the dataset's authors publish
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
    """Return the dataset's folder under `to`. Downloads the dataset if the folder is missing; the
    ranks of a machine take turns.

    Raises DataError if the download fails, the file is not the published one, or `to` cannot be
    written.
    """
    source = SOURCES[name]
    try:
        to.mkdir(parents=True, exist_ok=True)
        with (to / ".fetch.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (to / source.folder).is_dir():
                scratch = to / f".{source.folder}.part"
                shutil.rmtree(scratch, ignore_errors=True)
                scratch.mkdir()
                with tarfile.open(_download(source, scratch / "archive")) as tar:
                    tar.extractall(scratch)  # safe, because its checksum is the published one
                (scratch / source.folder).replace(to / source.folder)
                shutil.rmtree(scratch)
    except OSError as error:
        raise DataError(
            f"{to}: cannot be written: {error.strerror or error}; fetch into another folder with "
            "`python -m trainer data fetch --to DIR`, and pass it with --data"
        ) from error
    return to / source.folder


def _download(source: Source, archive: Path) -> Path:
    try:
        with (
            urllib.request.urlopen(source.url, timeout=TIMEOUT) as answer,
            archive.open("wb") as out,
        ):
            shutil.copyfileobj(answer, out)
    except OSError as error:  # URLError is an OSError
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{source.url}: cannot be fetched ({reason}); download it elsewhere, unpack it, "
            "and pass its folder with --data"
        ) from None
    with archive.open("rb") as file:
        md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if md5 != source.md5:
        raise DataError(
            f"{source.url}: the file has MD5 {md5} instead of the published {source.md5}; "
            "fetch it again"
        )
    return archive
