"""Logs of ranks that print a lot, over connections that break, with an engine that drops its log."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from cluster import USER, Cluster, Home, until
from talking import SCRIPT, Heard, Progress, heard, peak

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

MEMORY = 150 << 10  # KiB
CUTS = 5
PARTS = CUTS + 2  # of the lines, each begun by the test: a cut may take long on a busy machine


def begin_part(cluster: Cluster, part: int) -> None:
    """Let the ranks print the next part of their lines, once the nodes have folders."""
    folder = f"/home/{USER}/.ddpctl/runs/*/output"
    script = f"until cd {folder} 2>/dev/null; do sleep 0.1; done; touch part-{part}"
    for node in cluster.nodes:
        cluster.exec(node, "sh", "-c", script)


@pytest.mark.parametrize(
    ("cluster", "count"),  # lines per rank; benchmarks/logs.py tests ten times as many
    [("hosts", 20_000), ("hosts_without_containers", 5_000)],
    indirect=["cluster"],
)
def test_every_line_comes_once_whatever_breaks_and_whatever_the_engine_forgets(
    cluster: Cluster, home: Home, tmp_path: Path, count: int
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "talk.py").write_text(SCRIPT)
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", workdir=str(code), nproc_per_node=2)
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        words = ["talk.py", str(count), str(count // 250), "0.15", str(PARTS)]
        own = {"preexec_fn": None}  # no fork, which would have the memory of this process
        process = home.start(
            "launch", hosts, "--no-check", "--", *words, stdout=stdout, stderr=stderr, **own
        )
    progress = Progress(out)
    begin_part(cluster, 0)
    for cut in range(CUTS):
        mark = 6 * count * (2 * cut + 1) // (2 * PARTS)  # the middle of a part
        until(
            lambda m=mark: progress.look() > m or process.poll() is not None,
            120,
            f"the lines before cut {cut}",
        )
        begin_part(cluster, cut + 1)  # so that lines come while the connections break
        assert process.poll() is None, err.read_text()
        assert cluster.hang_up(cluster.nodes[cut % 3]) > 0
    begin_part(cluster, PARTS - 1)
    most = 0
    while process.poll() is None:
        most = max(most, peak(process.pid))
        time.sleep(0.05)
    progress.close()
    assert process.returncode == 0, err.read_text()
    assert heard(out.read_bytes(), 6, count) == Heard(0, 0, 0, 0)
    assert 0 < most < MEMORY
    logs = home.state / "ddpctl" / "runs" / home.record()["run_id"] / "logs"
    kept = b"".join((logs / f"node-{rank}.log").read_bytes() for rank in range(3))
    assert heard(kept, 6, count) == Heard(0, 0, 0, 0)

    # the engine keeps a few megabytes, for people who look there
    for node, [container] in ((n, c) for n in cluster.nodes if (c := cluster.containers(n))):
        assert container["HostConfig"]["LogConfig"]["Config"]["max-size"] == "1m"
        words = ["sh", "-c", f"ls {container['LogPath']}*"]
        assert len(cluster.exec(node, *words).split()) > 1, "its log was rotated"

    # the same again from the hosts, on a machine that did not follow the run, after a power cut
    cluster.kill_host("node1")
    cluster.start_host("node1")
    other = cluster.home_at(tmp_path / "other")
    asked = ["logs", "--hosts", hosts, "--rank", "3"]
    mine = other.ddpctl(*asked, home.record()["run_id"]).stdout.encode()
    assert re.findall(rb"@(\d+)/(\d+) ", mine) == [(b"3", b"%d" % i) for i in range(count)]
