"""Rounds of launch and kill at random moments, and a look without ddpctl at what they left.

Besides the runs, every host has a container and a process of somebody else that look like a run's but
are not: ddpctl must not touch them.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cluster import TRAINER_IMAGE, USER, Cluster, Home, until

LONGEST = 10.0  # seconds from the start of `launch` to the interruption
SCRIPT = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
while True:
    dist.barrier()
    time.sleep(0.1)
"""
# How a round ends the launcher before the run is killed; None: `ddpctl kill` while it is alive.
INTERRUPTIONS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None)
# Prints pid and name of every process with a run id, whoever owns it.
CARRIERS = r"""
for e in $(grep -lz '^DDPCTL_RUN_ID=' /proc/[0-9]*/environ 2>/dev/null); do
  p=${e#/proc/}; p=${p%/environ}
  [ -d "/proc/$p" ] && echo "process $p $(tr '\0' ' ' < /proc/$p/cmdline | cut -c1-80)"
done; true
"""
STRANGER = "torchrun -m trainer of somebody else"
FIND = f"pgrep -f '^sh -c while.*{STRANGER}'"
BORN = f"{FIND} | xargs -I@ cut -d' ' -f1,22 /proc/@/stat"


@dataclass
class Round:
    """What a round did, and what it wrongly left or did."""

    moment: float  # seconds after the start of `launch`
    interruption: str
    started: bool  # a container of the run existed at the time
    strays: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)  # exit codes of the kills


@dataclass(frozen=True)
class Strangers:
    """Somebody else's container and process on every host, as they were at the beginning."""

    cluster: Cluster
    known: dict[str, str]

    def touched(self) -> list[str]:
        return [node for node in self.cluster.nodes if seen(self.cluster, node) != self.known[node]]


def seen(cluster: Cluster, node: str) -> str:
    """Return their ids, start times and states. Any difference means that one was touched."""
    what = "{{.Id}} {{.State.StartedAt}} {{.State.Running}} {{.RestartCount}}"
    container = cluster.exec(node, "docker", "inspect", f"--format={what}", "ddpctl-stranger-0")
    return f"{container}; {cluster.exec(node, 'sh', '-c', BORN)}"


@contextlib.contextmanager
def strangers(cluster: Cluster) -> Iterator[Strangers]:
    idle = ["sh", "-c", "while sleep 1; do :; done", *STRANGER.split()]
    try:
        for node in cluster.nodes:
            run = ["docker", "run", "-d", "--network=host", "--name=ddpctl-stranger-0"]
            cluster.exec(node, *run, "--entrypoint=sleep", TRAINER_IMAGE, "100000")
            where = ["docker", "exec", "--detach", "--user", USER, cluster.container(node)]
            subprocess.run([*where, *idle], check=True, capture_output=True)
            until(lambda node=node: cluster.exec(node, "sh", "-c", BORN), 10, "the stranger runs")
        yield Strangers(cluster, {node: seen(cluster, node) for node in cluster.nodes})
    finally:
        for node in cluster.nodes:
            cluster.exec(node, "sh", "-c", f"{FIND} | xargs -r kill")


def write_job(cluster: Cluster, folder: Path) -> Path:
    code = folder / "code"
    code.mkdir(parents=True)
    (code / "loop.py").write_text(SCRIPT)
    job = {"workdir": str(code), "command": ["loop.py"], "nproc_per_node": 1, "stop_timeout": 5}
    return cluster.hosts_yaml(folder / "hosts.yaml", **job, master_port="auto")


def play(
    cluster: Cluster, home: Home, file: Path, chance: random.Random, others: Strangers
) -> Round:
    """Play one round: launch, interrupt at a random moment, kill, and look without ddpctl."""
    interruption = chance.choice(INTERRUPTIONS)
    this = Round(
        chance.uniform(0, LONGEST), interruption.name if interruption else "kill", started=False
    )
    launcher = home.start("launch", file, "--no-check", stdout=subprocess.DEVNULL)
    time.sleep(this.moment)  # the random moment
    this.started = any(ours(cluster, node) for node in cluster.nodes)
    if interruption is None:
        this.kills.append(home.ddpctl("kill", file, "--all", "-y").returncode)
    else:
        launcher.send_signal(interruption)
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.communicate(timeout=0.1 if interruption is signal.SIGKILL else 30)
    launcher.kill()
    launcher.communicate()
    for words in (["--all", "-y"], ["--strays", "-y"]):
        this.kills.append(home.ddpctl("kill", file, *words).returncode)
    this.strays = [f"{node}: {each}" for node in cluster.nodes for each in left(cluster, node)]
    this.touched = others.touched()
    return this


def ours(cluster: Cluster, node: str) -> list[str]:
    mine = ["docker", "ps", "-a", "--filter", "label=io.ddpctl.run-id", "--format={{.Names}}"]
    return cluster.exec(node, *mine).split()


def left(cluster: Cluster, node: str) -> list[str]:
    """Return the containers and processes of any run on a host, from its own engine and /proc."""
    processes = cluster.exec(node, "sh", "-c", CARRIERS).splitlines()
    return [f"container {name}" for name in ours(cluster, node)] + processes
