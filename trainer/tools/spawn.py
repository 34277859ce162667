"""Ranks on this machine, without torchrun: `--spawn N`, and the older `--rank R --world-size N`.

The ranks are ordinary processes with torchrun's variables, so everything behaves as under torchrun,
except that exit codes are passed on. If one rank fails, the others are stopped. All ranks end when
the process that started them ends.

--rank and --world-size count nodes, as in the older scripts: the command is run on each node and
starts one process per GPU there, or one process to train on the CPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from ..config import Config
from ..errors import UsageError

TRAINER = __package__.rpartition(".")[0]  # "trainer", or its name in an installed ddpctl
OWN_END = 5.0  # seconds that the other ranks get to exit on their own after one has failed
KILL_AFTER = 30.0  # seconds from the first failure until the remaining ranks are killed


def spawn(config: Config, argv: Sequence[str], nodes: Mapping[str, str]) -> int:
    """Run `python -m trainer argv` as this node's ranks. Return the exit code of the first rank that
    failed (128 + N if signal N ended it), or 0.

    nodes: NODE_RANK and NNODES, if there are several nodes.
    """
    try:
        node_rank, nnodes = int(nodes.get("NODE_RANK", 0)), int(nodes.get("NNODES", 1))
    except ValueError as error:
        raise UsageError(f"--rank and --world-size: {error}; pass whole numbers") from error
    count = config.spawn or 1
    if not config.spawn and config.device != "cpu":
        from torch import cuda

        count = max(1, cuda.device_count() if cuda.is_available() else 0)
    with tempfile.TemporaryDirectory(prefix="trainer-spawn-") as folder:
        shared = {
            "WORLD_SIZE": str(nnodes * count),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": str(node_rank),
            "GROUP_WORLD_SIZE": str(nnodes),
            "TRAINER_SPAWNED": str(os.getpid()),
        }
        if nnodes == 1:  # use a file as the store, because it needs no port
            shared |= {"TRAINER_STORE": f"{folder}/store"}
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
        ranks = []
        for local in range(count):
            own = {"RANK": str(node_rank * count + local), "LOCAL_RANK": str(local)}
            command = [sys.executable, "-m", TRAINER, *argv]
            ranks.append(subprocess.Popen(command, env=os.environ | shared | own))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: _signal(ranks, number))
        return _wait(ranks)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    code, failed_at, terminated = 0, 0.0, False
    while any(process.poll() is None for process in ranks):
        time.sleep(0.05)
        if not code:
            code = next((p.returncode for p in ranks if p.returncode), 0)
            failed_at = time.monotonic()
            continue
        waited = time.monotonic() - failed_at
        if waited > KILL_AFTER:
            _signal(ranks, signal.SIGKILL)
        elif waited > OWN_END and not terminated:
            _signal(ranks, signal.SIGTERM)
            terminated = True
    code = code or next((process.returncode for process in ranks if process.returncode), 0)
    return code if code >= 0 else 128 - code


def _signal(ranks: list[subprocess.Popen[bytes]], number: int) -> None:
    for process in ranks:
        process.send_signal(number)  # no effect if it has already ended
