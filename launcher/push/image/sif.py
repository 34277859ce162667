"""The image as a file for Apptainer: one that the user has, or a Docker image that is converted once."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ...engines.choose import images_of
from ...engines.engine_info import ImageInfo
from ...errors import CommandFailed, DockerUnavailable, PushFailed
from ...hosts import Host
from ...plan.plan import IMAGE_FILE
from ...ssh.node import Node, connected
from ...state import cache_home, locked, make_folder
from ..files.scan import Tree, scan_file
from ..push_progress import PushProgress
from ..transfer.payload import failed

KEPT = 3  # converted images on this machine


def image_file(image: str, progress: PushProgress) -> Tree:
    """Return the tree of the image's file. image: job.image. Raises PushFailed if it has none."""
    if image.endswith(".sif"):
        return scan_file(image, IMAGE_FILE)
    with connected([Host(host="local")]) as [local]:
        info = _inspect(image, local)
        if info is None:
            raise PushFailed(
                f"{image} is not in this machine's Docker, so it cannot be converted for Apptainer",
                f"get it here, or set job.image to a .sif file (`apptainer pull docker://{image}`)",
                host="this machine",
            )
        file = _file_of(info)
        make_folder(file.parent)
        with locked(file.parent / ".lock"):
            if not file.exists():
                progress.say(f"converting {image} for Apptainer, once; this may take minutes")
                _convert(image, local, file)
            os.utime(file)
            for old in sorted(file.parent.glob("[!.]*"), key=os.path.getmtime)[:-KEPT]:
                old.unlink()
            return scan_file(str(file), IMAGE_FILE)


def known_file(image: str) -> set[str]:
    """Return the digest of the image's file, if there is one by now."""
    with contextlib.suppress(PushFailed):
        if image.endswith(".sif"):
            return {scan_file(image, IMAGE_FILE).manifest.digest}
        with connected([Host(host="local")]) as [local]:
            info = _inspect(image, local)
        if info and _file_of(info).exists():
            return {scan_file(str(_file_of(info)), IMAGE_FILE).manifest.digest}
    return set()


def _inspect(image: str, local: Node) -> ImageInfo | None:
    with contextlib.suppress(DockerUnavailable, CommandFailed):
        return images_of(local, "docker").inspect(image)
    return None


def _file_of(info: ImageInfo) -> Path:
    key = hashlib.sha256(info.fingerprint.encode()).hexdigest()
    return cache_home() / "images" / f"{key[:32]}.sif"


def _convert(image: str, local: Node, file: Path) -> None:
    if not shutil.which("apptainer"):
        raise PushFailed(
            f"there is no apptainer to convert {image} with",
            "install it here, or convert the image elsewhere (`apptainer build NAME.sif "
            "docker-archive:FILE` of what `docker save` writes) and set job.image to the .sif file",
            host="this machine",
        )
    with tempfile.TemporaryDirectory(prefix=".", dir=file.parent) as scratch:
        archive, draft = Path(scratch, "image.tar"), Path(scratch, file.name)
        with archive.open("wb") as tar:
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
