"""Plain torchrun by hand: `ssh HOST docker run ... torchrun` on every host of a simulated cluster."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))

from cluster import USER, Cluster


def ssh(cluster: Cluster, node: str, argv: Sequence[str]) -> list[str]:
    """Return the `ssh` command line that runs `argv` on a host."""
    options = ["-F", str(cluster.home / ".ssh" / "config"), "-o", "BatchMode=yes"]
    options += ["-o", f"UserKnownHostsFile={cluster.home}/.ssh/known_hosts"]
    options += ["-i", str(cluster.home / ".ssh" / "id_ed25519"), "-l", USER]
    return ["ssh", *options, cluster.addresses[node], shlex.join(argv)]


def torchrun(
    cluster: Cluster, rank: int, nproc: int, port: int, docker: Sequence[str], script: Sequence[str]
) -> list[str]:
    """Return the `docker run` for one node, with ddpctl's own options and those in `docker`."""
    run = ["docker", "run", "--rm", "--network=host", "--init", "--shm-size=16g"]
    run += ["--env=PYTHONUNBUFFERED=1", "--env=OMP_NUM_THREADS=1", "--env=GLOO_SOCKET_IFNAME=eth0"]
    run += [*docker, cluster.engine_has, "torchrun", f"--nnodes={len(cluster.nodes)}"]
    run += [f"--node-rank={rank}", f"--nproc-per-node={nproc}"]
    run += [f"--master-addr={cluster.addresses[cluster.nodes[0]]}", f"--master-port={port}"]
    return [*run, *script]


def start_all(
    cluster: Cluster,
    nproc: int,
    port: int,
    docker: Sequence[str],
    script: Sequence[str],
    out: IO[bytes],
) -> list[subprocess.Popen[bytes]]:
    """Start all nodes concurrently. All their output goes to one file."""
    return [
        subprocess.Popen(
            ssh(cluster, node, torchrun(cluster, rank, nproc, port, docker, script)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        for rank, node in enumerate(cluster.nodes)
    ]
