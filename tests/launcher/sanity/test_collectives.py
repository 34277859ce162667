"""The program that `sanity` runs on every rank, started by real torchruns on this machine."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

from launcher.sanity.sanity import SCRIPT
from launcher.sanity.verdict import Report, problems

pytestmark = pytest.mark.real


def measured(ranks_per_node: Sequence[int], **options: object) -> Report:
    """Return what rank 0 reports if each node has this many ranks."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    defaults = {"timeout": 60, "max_bytes": 32, "pairwise": True, "largest_only": False}
    command = [str(SCRIPT), json.dumps(defaults | options)]
    where = ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    torchruns = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(ranks_per_node)}"]
            + [f"--node-rank={node}", f"--nproc-per-node={count}", *where, *command],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for node, count in enumerate(ranks_per_node)
    ]
    report = Report([f"gpu{node}" for node in range(len(ranks_per_node))])
    for torchrun in torchruns:
        for line in torchrun.communicate(timeout=240)[0].splitlines():
            report.take(line)
    return report


def test_nodes_may_have_different_numbers_of_ranks() -> None:
    report = measured([2, 1])
    assert problems(report, None, None) == []
    assert (report.last("world")["nodes"], report.last("world")["ranks"]) == (2, 3)
    assert [(pair["source"], pair["target"]) for pair in report.all("pair")] == [(0, 1), (1, 0)]
