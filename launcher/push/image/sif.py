"""The image as a file for Apptainer: the user's own, or one converted once from a Docker image."""

import contextlib
import hashlib
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

from ...engines.choose import image_here, images_of
from ...errors import DdpctlError, PushFailed
from ...hosts import Host
from ...own_folders import cache_home
from ...plan.plan import IMAGE_FILE
from ...ssh.host_connection import connected
from ..files.scan import Tree, scan_file
from ..make_once import make_once
from ..push_progress import PushProgress
from ..transfer.payload import failed


def image_file(image: str, progress: PushProgress) -> Tree:
    """Return a tree with the image's file. image: job.image.

    Converts the image first if necessary. Raises PushFailed if this machine does not have the image
    or cannot convert it.
    """
    file = _file_of(image)
    if file is None:
        raise PushFailed(
            f"this machine's Docker does not have {image}, which must be converted for Apptainer",
            "pull or build it here, or set job.image to a .sif file "
            f"(`apptainer pull docker://{image}`)",
            host="this machine",
        )
    if not image.endswith(".sif"):
        make_once(file, partial(_convert, image, progress))
    return scan_file(str(file), IMAGE_FILE)


def converted_file(image: str) -> set[str]:
    """Return a set with the digest of the image's file; it is empty if there is no file yet."""
    file = _file_of(image)
    with contextlib.suppress(DdpctlError):
        if file and file.exists():
            return {scan_file(str(file), IMAGE_FILE).manifest.digest}
    return set()


def _file_of(image: str) -> Path | None:
    """Return the path of the image's file, which may not exist yet.

    Returns None if this machine does not have the image.
    """
    if image.endswith(".sif"):
        return Path(image)
    info = image_here(image)
    key = hashlib.sha256(info.fingerprint.encode()).hexdigest() if info else ""
    return cache_home() / "images" / f"{key[:32]}.sif" if key else None


def _convert(image: str, progress: PushProgress, draft: Path) -> None:
    progress.say(f"converting {image} for Apptainer (only once); this may take minutes")
    if not shutil.which("apptainer"):
        raise PushFailed(
            f"ddpctl needs apptainer to convert {image}, but it is not installed",
            f"install it, or run `docker save -o FILE {image}`, then `apptainer build NAME.sif "
            "docker-archive:FILE` on another machine, and set job.image to NAME.sif",
            host="this machine",
        )
    archive = draft.with_name("image.tar")
    with connected([Host(host="local")]) as [local], archive.open("wb") as tar:
        for chunk in images_of(local).save(image):
            tar.write(chunk)
    done = subprocess.run(
        ["apptainer", "build", "--disable-cache", str(draft), f"docker-archive:{archive}"],
        env={**os.environ, "APPTAINER_TMPDIR": str(draft.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise failed("this machine", "image", done.stderr.decode(errors="replace"))
