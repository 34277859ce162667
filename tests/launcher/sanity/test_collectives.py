"""The program that `sanity` runs on every rank, started by real torchruns on this machine."""

import ast
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.sanity.sanity import SCRIPT
from launcher.sanity.verdict import Report, problems

pytestmark = pytest.mark.real


def measured(
    ranks_per_node: Sequence[int], master: str = "127.0.0.1", interface: str = "lo"
) -> Report:
    """Return what rank 0 reports if each node has this many ranks."""
    family = socket.AF_INET6 if ":" in master else socket.AF_INET
    with socket.create_server((master, 0), family=family) as free:
        port = free.getsockname()[1]
    options = {"timeout": 60, "max_bytes": 32, "pairwise": True, "largest_only": False}
    command = [str(SCRIPT), json.dumps(options)]
    where = ["--master-addr", master, "--master-port", str(port)]
    torchruns = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(ranks_per_node)}"]
            + [f"--node-rank={node}", f"--nproc-per-node={count}", *where, *command],
            env=os.environ | {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"},
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


def test_it_is_python_3_8_which_evaluates_no_newer_annotation() -> None:
    tree = ast.parse(SCRIPT.read_text(), feature_version=(3, 8))
    [future] = [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    assert [each.name for each in future.names] == ["annotations"]


def test_nodes_may_have_different_numbers_of_ranks() -> None:
    report = measured([2, 1])
    assert problems(report, None, None) == []
    assert (report.last("world")["nodes"], report.last("world")["ranks"]) == (2, 3)
    assert [(pair["source"], pair["target"]) for pair in report.all("pair")] == [(0, 1), (1, 0)]


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_nodes_may_have_only_ipv6_addresses() -> None:
    report = measured([1, 1], master="::1", interface="")
    assert (report.last("mesh"), problems(report, None, None)) == ({"failed": []}, [])


def test_many_nodes_behind_firewalls_are_dialed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.sanity import collectives

    dialing = threading.Barrier(40, timeout=30)

    def dial(address: tuple[str, int], timeout: float) -> None:
        dialing.wait()
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", dial)
    me: Any = SimpleNamespace(
        node=0, nodes=41, store={f"mesh/{n}": b"10.0.0.1 7" for n in range(41)}
    )
    assert [failed["target"] for failed in collectives.unreached(me)] == [*range(1, 41)]


def test_transports_are_those_of_this_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host without containers, /tmp also has the files of other checks."""
    from launcher.sanity import collectives

    log = "gpu1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {}\n"
    (tmp_path / "gpu1.7").write_text(log.format("P2P/CUMEM") + log.format("SHM/direct/direct"))
    monkeypatch.setattr(collectives.dist, "all_gather_object", lambda every, own: every.append(own))
    me: Any = SimpleNamespace(cuda=True, world=0)
    found = collectives.transports(me, tmp_path)
    assert found == {"NVLink or PCIe peer-to-peer": 1, "shared memory": 1}
