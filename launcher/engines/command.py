"""Find a host's container engine, connect to its API, and explain failures.

Podman serves the Docker API too, but has no daemon, and its socket is often not enabled. So ddpctl
starts Podman's API service itself, on its own socket, for as long as it is needed. `flock` ensures
that only one service runs, and detects a stale socket of a service that was killed.
"""

import re

from ..errors import DockerUnavailable

# Sets $engine to docker or podman. Non-interactive logins often lack the folder of `docker` in
# PATH. Where both are installed, Podman serves users who may not use Docker. `docker` may itself be
# Podman.
SEARCH = """PATH="$PATH:/usr/bin:/usr/local/bin:/snap/bin:$HOME/bin"
engine=docker
if command -v podman >/dev/null 2>&1; then
  case $(docker version 2>&1) in
    *"not found"*|*[Pp]odman*|*"ermission denied"*) engine=podman ;;
  esac
fi
"""

IS_DOCKER = f'{SEARCH} [ "$engine" = docker ]'

# Connects standard input and output to the engine's API.
DIAL = f"""{SEARCH}
[ "$engine" = podman ] || exec docker system dial-stdio
run=/run/podman
if [ "$(id -u)" != 0 ]; then
  run=${{XDG_RUNTIME_DIR:-/run/user/$(id -u)}}
  [ -w "$run" ] || {{ echo "no runtime directory $run" >&2; exit 1; }}
fi
mkdir -p "$run"; sock=$run/ddpctl.sock; lock=$run/ddpctl.lock
flock -n "$lock" rm -f "$sock"
setsid flock -no "$lock" podman system service --time=300 "unix://$sock" \\
  </dev/null >/dev/null 2>&1 &
for _ in $(seq 100); do
  [ -S "$sock" ] && exec podman --url "unix://$sock" system dial-stdio
  sleep 0.1
done
echo "podman system service did not start: $(podman info 2>&1 >/dev/null | tail -n 1)" >&2
exit 1
"""
NOT_INSTALLED = "docker: not found"
PROBLEMS = {  # pattern in the output of the engine or its command -> the problem
    "no runtime directory": "Podman needs a runtime directory (XDG_RUNTIME_DIR) and there is none; "
    "on that host, run `sudo loginctl enable-linger $USER`, then log in again",
    "podman system service did not start": "Podman's API service did not start; "
    "run `podman system service --time=10` there and see what it prints",
    "ermission denied|PermissionError": "this user may not use Docker; "
    "on that host, run `sudo usermod -aG docker $USER`, then log in again",
    "is not a docker command|unknown command|Usage:|BadStatusLine": "its docker command is too old: "
    "it has no `docker system dial-stdio`; install Docker 18.09 or newer there",
    NOT_INSTALLED: "Docker is not installed; "
    "install Docker Engine (https://docs.docker.com/engine/install/) or Podman there",
    "Cannot connect to the Docker daemon|onnection refused|o such file or directory": "the Docker "
    "daemon is not running; on that host, run `sudo systemctl start docker` "
    "(rootless: `systemctl --user start docker`)",
}


def unavailable(name: str, printed: str) -> DockerUnavailable:
    """Return an error that names the problem and its remedy.

    printed: output of the engine or its command. It is quoted if the problem is not in PROBLEMS.
    """
    text = " ".join(printed.split())
    for pattern, problem in PROBLEMS.items():
        if re.search(pattern, text):
            return DockerUnavailable(f"{name}: {problem}")
    return DockerUnavailable(f"{name}: Docker does not answer: {text[-300:]}")
