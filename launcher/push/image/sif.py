"""The image as a file for Apptainer: one that the user has, or a Docker image that is converted once."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...engines.choose import images_of
from ...errors import CommandFailed, DockerUnavailable, PushFailed
from ...hosts import Host
from ...plan.plan import IMAGE_FILE
from ...ssh.node import connected
from ...state import cache_home, locked, make_folder
from ..files.scan import Tree, scan_file
from ..push_progress import PushProgress
from ..transfer.payload import failed

KEPT = 3  # converted images on this machine


def image_file(image: str, progress: PushProgress) -> Tree:
    """Return the tree of the image's file. image: job.image. Raises PushFailed if it has none."""
    file = _file_of(image)
    if file is None:
        raise PushFailed(
            f"{image} is not in this machine's Docker, so it cannot be converted for Apptainer",
            f"get it here, or set job.image to a .sif file (`apptainer pull docker://{image}`)",
            host="this machine",
        )
    if not image.endswith(".sif"):
        _convert_once(image, file, progress)
    return scan_file(str(file), IMAGE_FILE)


def converted_file(image: str) -> set[str]:
    """Return the digest of the image's file, if there is one by now."""
    file = _file_of(image)
    with contextlib.suppress(PushFailed):
        if file and file.exists():
            return {scan_file(str(file), IMAGE_FILE).manifest.digest}
    return set()


def _file_of(image: str) -> Path | None:
    """Return the path of the image's file, which may not exist yet, or None if Docker lacks the image."""
    if image.endswith(".sif"):
        return Path(image)
    with (
        contextlib.suppress(DockerUnavailable, CommandFailed),
        connected([Host(host="local")]) as [local],
    ):
        if info := images_of(local, "docker").inspect(image):
            key = hashlib.sha256(info.fingerprint.encode()).hexdigest()
            return cache_home() / "images" / f"{key[:32]}.sif"
    return None


def _convert_once(image: str, file: Path, progress: PushProgress) -> None:
    make_folder(file.parent)
    with locked(file.parent / ".lock"):
        if not file.exists():
            progress.say(f"converting {image} for Apptainer, once; this may take minutes")
            _convert(image, file)
        os.utime(file)
        for old in sorted(file.parent.glob("[!.]*"), key=os.path.getmtime)[:-KEPT]:
            old.unlink()


def _convert(image: str, file: Path) -> None:
    if not shutil.which("apptainer"):
        raise PushFailed(
            f"there is no apptainer to convert {image} with",
            "install it here, or convert the image elsewhere (`apptainer build NAME.sif "
            "docker-archive:FILE` of what `docker save` writes) and set job.image to the .sif file",
            host="this machine",
        )
    with tempfile.TemporaryDirectory(prefix=".", dir=file.parent) as scratch:
        archive, draft = Path(scratch, "image.tar"), Path(scratch, file.name)
        with connected([Host(host="local")]) as [local], archive.open("wb") as tar:
            for chunk in images_of(local, "docker").save(image):
                tar.write(chunk)
        build = ["apptainer", "build", "--disable-cache", str(draft), f"docker-archive:{archive}"]
        done = subprocess.run(
            build,
            env={**os.environ, "APPTAINER_TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode:
            raise failed("this machine", "image", done.stderr.decode(errors="replace"))
        draft.rename(file)
