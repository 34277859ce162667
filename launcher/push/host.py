"""What a push has to know of a host: one `sh` script, one round trip, one value.

The script needs a POSIX shell and coreutils; python3 makes a host able to relay, nothing more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.errors import DockerUnavailable, PushFailed
from launcher.ssh.node import Node

# $1 image or "", $2 dataset digest or "", $3 workdir digest or ""
SCRIPT = r"""
cd "$HOME" || exit
printf 'home %s\n' "$HOME"
have() { [ -n "$2" ] && [ -d "$3/$2" ] && touch "$3/$2" && echo "have $1"; }
have dataset "$2" .ddpctl/datasets
have workdir "$3" .ddpctl/workdirs
command -v python3 >/dev/null 2>&1 && echo 'have python3'
printf 'ssh %s\n' "$SSH_CONNECTION"
if [ -n "$1" ]; then
  said=$(docker image inspect --format '{{json .}}' "$1" 2>&1)
  printf 'image %s\n' "$said"
fi
exit 0
"""


@dataclass(frozen=True)
class Image:
    """One image as an engine shows it. `id` starts it there and differs between engines' stores;
    `fingerprint` does not."""

    id: str
    layers: tuple[str, ...]  # diffIDs
    repo_digests: tuple[str, ...]
    fingerprint: str
    architecture: str = "amd64"

    def same_as(self, other: Image) -> bool:
        return (
            self.id == other.id
            or (bool(self.layers) and self.fingerprint == other.fingerprint)
            or bool(set(self.repo_digests) & set(other.repo_digests))
        )


@dataclass(frozen=True)
class HostState:
    has: frozenset[str]  # of dataset, workdir, python3
    image: Image | None
    address: str | None  # that this machine reached it by: its own, behind any jump host


@dataclass(frozen=True)
class Inspected:
    """The job's image, from engines that somebody has just asked: this machine's and the nodes'."""

    here: Image | None
    there: Mapping[Node, Image | None]


def ask(node: Node, image: str, dataset: str, workdir: str) -> HostState:
    """DockerUnavailable when the host cannot say what images it has."""
    done = node.script(SCRIPT, image, dataset, workdir, timeout=60.0)
    text = done.stdout.decode(errors="replace")
    if done.code != 0 or not text.startswith("home "):
        said = done.stderr.decode(errors="replace").strip() or f"exit {done.code}"
        raise PushFailed(f"{node.name}: its shell did not run a plain script: {said}")
    connection = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
    return HostState(
        has=frozenset(re.findall(r"^have (\w+)$", text, re.MULTILINE)),
        image=_image(node, image, text) if image else None,
        address=connection.group(1) if connection else None,
    )


def parse_image(inspected: Mapping[str, Any]) -> Image:
    config = inspected.get("Config") or {}
    layers = tuple((inspected.get("RootFS") or {}).get("Layers") or ())
    # engines of different ages leave out or write null what is empty
    runs = {key: config.get(key) or None for key in ("Cmd", "Entrypoint", "Env", "User", "Labels")}
    told = [layers, runs, config.get("WorkingDir") or "", inspected.get("Architecture")]
    return Image(
        id=inspected["Id"],
        layers=layers,
        repo_digests=tuple(inspected.get("RepoDigests") or ()),
        fingerprint=json.dumps(told, sort_keys=True),
        architecture=inspected.get("Architecture") or "amd64",
    )


def _image(node: Node, name: str, text: str) -> Image | None:
    said = text.partition("\nimage ")[2].strip()
    if said.startswith("{"):
        return parse_image(json.loads(said.splitlines()[0]))
    if "no such image" in said.lower() or "no such object" in said.lower():
        return None
    raise docker_says(node.name, said)


def docker_says(host: str, said: str) -> DockerUnavailable:
    """Why the docker command did not work there, with what to do about it."""
    text = " ".join(said.split())[-300:]
    if "not found" in text and "docker" in text:
        return DockerUnavailable(f"{host}: docker is not installed; install Docker Engine there")
    if "permission denied" in text.lower():
        return DockerUnavailable(
            f"{host}: the SSH user may not use Docker; `sudo usermod -aG docker USER` there, "
            "then log in again"
        )
    if "cannot connect" in text.lower() or "is the docker daemon running" in text.lower():
        return DockerUnavailable(
            f"{host}: the Docker daemon does not run; `sudo systemctl start docker` there"
        )
    return DockerUnavailable(f"{host}: docker: {text}")
