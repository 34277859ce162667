"""What every engine guarantees, on hosts with Docker, Podman or rootless Podman, or without containers."""

from __future__ import annotations

import itertools
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import termios
from pathlib import Path

import pytest
from cluster import Cluster, Home, until

ENGINES = ["hosts_with_podman", "hosts_without_containers", "hosts_with_apptainer"]
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("cluster", ENGINES, indirect=True),
]

BEGIN = """
import os, signal, subprocess, sys, time
from pathlib import Path

rank = int(os.environ["RANK"])
gate = Path(os.environ["DDPCTL_OUTPUT_DIR"], "go")


def wait_at_the_gate():
    while rank == 3 and not gate.exists():
        time.sleep(0.1)
"""
BLOCKED = """
def all_reduce():
    time.sleep(600)


checkpoint = Path(os.environ["DDPCTL_CHECKPOINT_DIR"], "rank-%d" % rank)
if not checkpoint.exists():
    checkpoint.touch()
    wait_at_the_gate()
    all_reduce()
print("attempt", os.environ["DDPCTL_ATTEMPT"], "of rank", rank, flush=True)
"""
FAILS_TWICE = """
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("restart", restarts, flush=True)
if rank == 3 and restarts == "0":
    os.kill(os.getpid(), signal.SIGKILL)
wait_at_the_gate()
if rank == 3:
    raise ValueError("boom")
time.sleep(600)
"""
WITH_DAEMONS = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "4321"], start_new_session=True)
time.sleep(600)
"""
ON_TERMINAL = """
trap 'exit 42' INT
until stty size | grep -x '17 93'; do sleep 0.1; done
test -t 1 && echo first
until stty size | grep -x '30 40'; do sleep 0.1; done
echo second
while :; do sleep 0.1; done
"""


def write_job(cluster: Cluster, folder: Path, script: str, **job: object) -> Path:
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(BEGIN + script)
    job = {"workdir": str(code), "command": ["train.py"], "nproc_per_node": 2} | job
    return cluster.hosts_yaml(folder / "hosts.yaml", **job)


def ok(home: Home, *args: str | Path, **how: str) -> str:
    done = home.ddpctl(*args, **how)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_is_seen_entered_killed_resumed_and_cleaned_from_another_machine(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    hosts = write_job(cluster, tmp_path, BLOCKED)
    ok(home, "launch", hosts, "--detach", "--no-check", "--env", "TOKEN=a b")

    def waiting() -> bool:
        told = ok(home, "stacks", "--json")
        groups = [group["ranks"] for group in json.loads(told)["groups"]]
        return groups == [[0, 1, 2, 4, 5], [3]] and "all_reduce" in told

    until(lambda: _checkpoints(cluster) == 6, 90, "all ranks have begun")
    until(waiting, 30, "five ranks wait for the sixth")
    run_id = home.record()["run_id"]
    shutil.rmtree(home.state)  # the launching machine is lost
    other = cluster.home_at(tmp_path / "machine B")
    [run] = json.loads(ok(other, "ps", hosts, "--json"))["runs"]
    assert (run["run_id"], run["state"]) == (run_id, "RUNNING")
    lines = ok(other, "stacks", run_id, "--hosts", hosts).splitlines()
    assert lines[-2].startswith("rank 3 on node1 is not where the other ranks are: at train.py:")
    assert "0-2,4-5 (5)  node[0-2]" in lines

    script = 'echo "$DDPCTL_NODE_RANK $TOKEN ${PWD##*/}"; seq 100000; exit 3'
    done = other.ddpctl("exec", run_id, "--node", "1", "--", "sh", "-c", script)
    first, *numbers = done.stdout.splitlines()
    assert (done.returncode, first) == (3, "1 a b workspace"), done.stderr
    assert numbers == [str(i) for i in range(1, 100001)]
    users = ok(other, "exec", "--all", "--", "id", "-u").splitlines()
    as_root = [kind.rootless or kind.user == "root" for kind in cluster.kinds.values()]
    assert sorted(users) == [f"[node{i}] {0 if root else 1000}" for i, root in enumerate(as_root)]
    given = "x\n" * 200_000
    here = subprocess.run(["sha256sum"], input=given, capture_output=True, text=True)
    assert ok(other, "exec", "-i", "--rank", "4", "--", "sha256sum", input=given) == here.stdout
    for rank in ("0", "2", "4"):
        missing = other.ddpctl("exec", "--rank", rank, "--", "no-such-command")
        assert missing.returncode in (126, 127)  # 126 with Docker
    with_terminal(other, "--rank", "0")
    with_terminal(other, "--rank", "4")

    follower = other.start("attach", run_id)
    killed = other.ddpctl("kill", run_id, "-y")
    assert killed.returncode == 0 and "nothing left on node[0-2]" in killed.stderr, killed.stderr
    assert cluster.idle()
    _, err = follower.communicate(timeout=60)
    assert follower.returncode == 7, err
    assert other.record(run_id)["attempts"][0]["state"] == "CANCELLED"
    ok(other, "kill", run_id, "-y")  # killing it again is fine
    ended = other.ddpctl("exec", run_id, "--", "true")
    assert ended.returncode == 2 and "is not running" in ended.stderr

    resumed = ok(other, "resume", run_id, "--hosts", hosts)
    assert resumed.count("attempt 2 of rank") == 6
    homes = [cluster.exec(node, "sh", "-c", f"echo ~{k.user}") for node, k in cluster.kinds.items()]
    for node, folder in zip(cluster.nodes, homes, strict=True):
        rank = cluster.nodes.index(node) * 2
        path = f"{folder}/.ddpctl/runs/{run_id}/checkpoints/rank-{rank}"
        assert cluster.exec(node, "stat", "-c", "%U", path) == cluster.kinds[node].user
    ok(other, "clean", hosts, "-y")
    for node, folder in zip(cluster.nodes, homes, strict=True):
        assert cluster.containers(node) == []
        assert cluster.exec(node, "find", folder, "-maxdepth", "1", "-name", ".ddpctl") == ""


def test_a_rank_is_restarted_in_place_and_its_next_failure_stops_all_without_the_launcher(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    hosts = write_job(cluster, tmp_path, FAILS_TWICE, max_restarts=1)
    with (tmp_path / "out").open("wb") as out:
        launcher = home.start("launch", hosts, "--no-check", stdout=out)
    shown = tmp_path / "out"
    until(lambda: shown.read_text().count("restart 1") == 6, 120, "all ranks are restarted")
    launcher.send_signal(signal.SIGKILL)
    launcher.communicate()
    other = cluster.home_at(tmp_path / "machine B")
    words = ["--node", "1", "--", "sh", "-c", 'touch "$DDPCTL_OUTPUT_DIR/go"']
    ok(other, "exec", "--hosts", hosts, *words)
    until(cluster.idle, 40, "all nodes stop")
    told = home.ddpctl("attach")
    assert told.returncode == 1, told.stderr
    [attempt] = home.record()["attempts"]
    first = attempt["first_failure"]
    assert (first["host"], first["rank"], first["kind"]) == ("node1", 3, "exception")
    assert "boom" in first["message"] and "boom" in told.stderr


def test_a_supervisor_that_is_killed_leaves_nothing_and_stops_the_other_nodes(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    hosts = write_job(cluster, tmp_path, WITH_DAEMONS, stop_timeout=5)
    run_id = ok(home, "launch", hosts, "--detach", "--no-check").strip()
    until(lambda: _daemons(cluster) == 6, 90, "all ranks have their daemons")
    cluster.exec("node1", "pkill", "-KILL", "-f", "^[^ ]*python3? .*supervisor[.]pyz")

    def left(node: str) -> list[str]:
        daemons = [line for line in cluster.processes(node) if line == "sleep 4321"]
        return [*cluster.ranks(node), *daemons]

    until(lambda: not left("node1"), 15, "nothing is left on its host")
    until(lambda: not any(map(left, cluster.nodes)), 60, "all nodes stop")
    told = home.ddpctl("attach")
    assert told.returncode == 1 and "node1" in told.stderr, told.stderr
    assert home.record()["attempts"][0]["first_failure"]["host"] == "node1"

    stray = f"DDPCTL_RUN_ID={run_id} DDPCTL_NODE_RANK=1 setsid sleep 4321 >/dev/null 2>&1 &"
    cluster.exec("node1", "sh", "-c", stray, user=cluster.kinds["node1"].user)
    ok(home, "kill", hosts, "--strays", "-y")
    assert left("node1") == []


def test_a_run_that_a_reboot_ended_has_not_succeeded(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """After a reboot, Podman reports exit code 0 for what ran until then."""
    hosts = write_job(cluster, tmp_path, WITH_DAEMONS)
    run_id = ok(home, "launch", hosts, "--include", "node2", "--detach", "--no-check").strip()
    until(lambda: _daemons(cluster) == 2, 90, "the ranks have their daemons")
    cluster.kill_host("node2")
    cluster.start_host("node2")
    assert cluster.idle()
    assert home.ddpctl("attach", run_id).returncode == 1
    [run] = json.loads(ok(home, "ps", hosts, "--all", "--json"))["runs"]
    assert run["state"] != "SUCCEEDED"


def _checkpoints(cluster: Cluster) -> int:
    found = "find /root /home -path '*/checkpoints/rank-*'"
    return sum(cluster.exec(node, "sh", "-c", found).count("rank-") for node in cluster.nodes)


def _daemons(cluster: Cluster) -> int:
    return sum(cluster.processes(node).count("sleep 4321") for node in cluster.nodes)


def with_terminal(home: Home, *where: str) -> None:
    """Check that the command gets the terminal's size, changes of the size, and Ctrl-C."""
    terminal, inside = pty.openpty()
    termios.tcsetwinsize(inside, (17, 93))
    line = ["exec", "-t", *where, "--", "sh", "-c", ON_TERMINAL]
    before = termios.tcgetattr(inside)
    process = home.start(
        *line, stdin=inside, stdout=inside, stderr=inside, preexec_fn=_take_terminal
    )
    shown = b""

    def shows(word: bytes) -> bool:
        nonlocal shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 4096)
        return word in shown

    sizes = itertools.cycle([(30, 40), (30, 41)])

    def shows_after_a_change(word: bytes) -> bool:
        """Change the size again: Podman may lose one of two changes that come close together."""
        termios.tcsetwinsize(terminal, next(sizes))
        return shows(word)

    try:
        until(lambda: shows(b"first"), 60, "the command sees the terminal's size")
        until(lambda: shows_after_a_change(b"second"), 30, "the command sees the new size")
        os.write(terminal, b"\x03")
        assert process.wait(30) == 42, shown
        assert termios.tcgetattr(inside) == before
    finally:
        process.kill()
        os.close(inside)
        os.close(terminal)


def _take_terminal() -> None:
    """Make stdin the controlling terminal of the new process, so that it gets SIGWINCH."""
    os.setsid()
    os.close(os.open(os.ttyname(0), os.O_RDWR))
