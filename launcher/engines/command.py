"""Find a host's container engine, connect to its API, and explain failures.

Podman serves the Docker API too, but it has no daemon, and its socket is often not enabled. ddpctl
therefore starts Podman's API service itself, on its own socket, for as long as it is needed.
`flock` ensures that only one service runs, and detects a socket left by a killed service.
"""

import re

from ..errors import DockerUnavailable
from ..ssh import shell
from ..ssh.script_files import load_script

RUN_ENGINE = load_script(__file__, "run_engine.sh")
DIAL = load_script(__file__, "dial_engine.sh")
NOT_INSTALLED = "docker: not found"
PROBLEMS = {  # pattern in the output of the engine or its command -> the problem, the remedy
    "ontext not found": (
        "the current context of its docker command does not exist",
        "on that host, check `docker context ls` and $DOCKER_CONTEXT",
    ),
    "no runtime directory": (
        "Podman needs a runtime directory (XDG_RUNTIME_DIR), but there is none",
        "on that host, run `sudo loginctl enable-linger $USER`, then log in again",
    ),
    "podman system service did not start": (
        "Podman's API service did not start",
        "on that host, run `podman system service --time=10` and see what it prints",
    ),
    "ermission denied|PermissionError": (
        "this user is not allowed to use Docker",
        "on that host, run `sudo usermod -aG docker $USER`, then log in again",
    ),
    "is not a docker command|unknown command|Usage:|BadStatusLine": (
        "its docker command is too old: it has no `docker system dial-stdio`",
        "install Docker 18.09 or newer on that host",
    ),
    NOT_INSTALLED: (
        "Docker is not installed",
        "install Docker Engine (https://docs.docker.com/engine/install/) or Podman on that host",
    ),
    "Cannot connect to the Docker daemon|onnection refused|o such file or directory": (
        "the Docker daemon is not running",
        "on that host, run `sudo systemctl start docker` (rootless: `systemctl --user start "
        "docker`)",
    ),
}


def engine_command(*arguments: str) -> list[str]:
    """Return a command that runs a host's docker or podman with these arguments."""
    return shell.script(RUN_ENGINE, arguments)


def unavailable(name: str, printed: str) -> DockerUnavailable:
    """Return an error for host `name` that names the problem and its remedy.

    printed: output of the engine or its command. It is quoted if it matches nothing in PROBLEMS.
    """
    text = " ".join(printed.split())
    for pattern, (problem, remedy) in PROBLEMS.items():
        if re.search(pattern, text):
            return DockerUnavailable(problem, remedy, host=name)
    remedy = "run `docker info` on that host and see what it prints"
    return DockerUnavailable(f"no usable answer from Docker: {text[-300:]}", remedy, host=name)
