"""Which engine on a host is used, and how Podman's API is reached; with stand-ins for both."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.engines.command import DIAL, RUN_ENGINE
from launcher.engines.image_store import LIST_LAYERS

TOOLS = ("sh", "mkdir", "rm", "seq", "sleep", "flock", "setsid", "sort", "tail", "xargs")
USUAL = (
    ":/usr/bin:/usr/local/bin:/snap/bin:$HOME/bin"  # what a test does not shadow must not be found
)
DOCKER = "echo Client: Docker Engine"
DENIED = "echo permission denied while trying to connect to the Docker daemon socket >&2; exit 1"
DOWN = "echo Cannot connect to the Docker daemon >&2; exit 1"
MISSING = "echo sh: docker: Kommando nicht gefunden >&2; exit 127"  # as bash says it in German
EMULATED = 'exec podman "$@"'
PODMAN = f"""
case "$1 $2" in
"version ") echo Client: Podman Engine ;;
"system service")
    echo $$ >>"$XDG_RUNTIME_DIR/services"
    exec {sys.executable} -c '
import socket, sys
served = socket.socket(socket.AF_UNIX)
served.bind(sys.argv[1].removeprefix("unix://"))
served.listen()
while True: served.accept()' "$4" ;;
"--url unix://$XDG_RUNTIME_DIR/ddpctl.sock") exec {sys.executable} -c '
import socket, sys
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
print(*sys.argv[2:])' "$XDG_RUNTIME_DIR/ddpctl.sock" "$3" "$4" ;;
info*) echo "Error: cannot set up namespace" >&2; exit 125 ;;
esac
"""

Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name) or name)

    def start(text: str, *arguments: str, **commands: str) -> subprocess.Popen[str]:
        for name, script in {"id": "echo 1000", **commands}.items():
            file = folder / name
            if not file.exists():  # it may be running
                file.write_text(f"#!/bin/sh\n{script}\n")
                file.chmod(0o755)
        return subprocess.Popen(
            ["sh", "-c", text.replace(USUAL, ""), "sh", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": str(folder), "XDG_RUNTIME_DIR": str(tmp_path)},
        )

    return start


@pytest.mark.parametrize(
    ("commands", "engine"),
    [
        ({}, "docker"),
        ({"docker": DOCKER}, "docker"),
        ({"podman": PODMAN}, "podman"),
        ({"podman": PODMAN, "docker": MISSING}, "podman"),
        ({"podman": PODMAN, "docker": EMULATED}, "podman"),
        ({"podman": PODMAN, "docker": DENIED}, "podman"),
        ({"podman": PODMAN, "docker": DOCKER}, "docker"),
        ({"podman": PODMAN, "docker": DOWN}, "docker"),
    ],
)
def test_docker_is_used_where_it_may_be(run: Run, commands: dict[str, str], engine: str) -> None:
    script = RUN_ENGINE.replace('exec "$engine" "$@"', 'echo "$engine"')
    assert run(script, **commands).communicate()[0] == f"{engine}\n"


def test_a_command_for_the_engine_goes_to_the_one_that_is_used(run: Run) -> None:
    commands = {"docker": DENIED, "podman": 'echo "podman $@"'}
    asked = run(RUN_ENGINE, "load", "-q", **commands)
    assert asked.communicate()[0] == "podman load -q\n"


def test_an_image_that_is_removed_while_images_are_listed_does_not_matter(run: Run) -> None:
    gone = """
case "$1 $2" in
"image ls") printf 'one\ngone\n' ;;
"image inspect") echo '["layer"]'; echo Error: No such image: gone >&2; exit 1 ;;
esac"""
    listing = run(LIST_LAYERS, docker=gone)
    assert listing.communicate()[0] == '["layer"]\n'
    assert listing.returncode == 0


def test_many_dials_share_one_service_of_podman(run: Run, tmp_path: Path) -> None:
    services = tmp_path / "services"
    try:
        dials = [run(DIAL, podman=PODMAN) for _ in range(5)]
        assert [dial.communicate()[0] for dial in dials] == ["system dial-stdio\n"] * 5
        [first] = services.read_text().split()
        os.kill(int(first), 9)  # leaves its socket
        subprocess.run(["flock", str(tmp_path / "ddpctl.lock"), "true"], check=True)  # it has ended
        assert run(DIAL, podman=PODMAN).communicate()[0] == "system dial-stdio\n"
        assert len(services.read_text().split()) == 2
    finally:
        for service in services.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(service), 9)


def test_a_podman_that_cannot_serve_says_why(run: Run, tmp_path: Path) -> None:
    broken = PODMAN.replace('"system service")', '"system service") exit 125')
    _, said = run(DIAL.replace("seq 100", "seq 1"), podman=broken).communicate()
    assert said == "podman system service did not start: Error: cannot set up namespace\n"
    no_folder = f"XDG_RUNTIME_DIR={tmp_path}/none; {DIAL}"
    assert (
        run(no_folder, podman=PODMAN).communicate()[1] == f"no runtime directory {tmp_path}/none\n"
    )
