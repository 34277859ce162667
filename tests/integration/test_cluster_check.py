"""`ddpctl check` on the simulated cluster: each fault is real and is reported in one line."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from cluster import TRAINER_IMAGE, Cluster, Home, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(cluster: Cluster, home: Home, tmp_path: Path) -> Check:
    """Return the JSON document of a check of all hosts, with the exit code added as `rc`."""

    def run(hosts: list[Any] | None = None, **job: Any) -> dict[str, Any]:
        file = cluster.hosts_yaml(tmp_path / "hosts.yaml", hosts, **job)
        done = home.ddpctl("check", file, "--json")
        assert done.stdout, done.stderr
        return {**json.loads(done.stdout), "rc": done.returncode}

    return run


def told(document: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    assert all(finding["remedy"] for finding in document["findings"])
    return [(f["severity"], f["host"], f["check"], f["what"]) for f in document["findings"]]


def only(document: dict[str, Any]) -> tuple[str, str, str, str]:
    found = told(document)
    assert len(found) == 1, found
    assert document["rc"] == (3 if found[0][0] == "failure" else 0)
    return found[0]


def test_a_clean_cluster_gives_no_finding(cluster: Cluster, check: Check) -> None:
    document = check()
    assert told(document) == []
    assert (document["rc"], document["ok"]) == (0, True)
    chosen = {h["host"]: (h["internal_ip"], h["interface"]) for h in document["hosts"]}
    assert chosen == {node: (cluster.addresses[node], "eth0") for node in cluster.nodes}
    assert document["seconds"] < 30
    assert document["hosts"][0]["torch"]
    for node in cluster.nodes:  # nothing is left behind
        assert cluster.containers(node) == []
        assert cluster.exec(node, "sh", "-c", "ls -A /home/ddp/.ddpctl | grep check || true") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_check_that_ends_early_leaves_no_container_and_no_folder(
    cluster: Cluster, home: Home, tmp_path: Path, number: signal.Signals
) -> None:
    recipe = f"FROM {TRAINER_IMAGE}\nRUN printf '#!/bin/sh\\nexec sleep 60' >/usr/bin/slow && "
    recipe += "chmod 755 /usr/bin/slow && ln -sf /usr/bin/slow $(command -v python3)\n"
    build = ["env", "DOCKER_BUILDKIT=0", "docker", "build", "-q", "-t", "slow:1", "-"]
    cluster.exec("node1", *build, stdin=recipe.encode())
    checking = home.start(
        "check", cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node1"], image="slow:1")
    )
    until(lambda: cluster.engine("node1", "ps", "-q"), 60, "the container runs")
    checking.send_signal(number)
    _, err = checking.communicate(timeout=5)
    if number is signal.SIGINT:
        assert (checking.returncode, b"error: interrupted" in err) == (130, True)
    until(lambda: not cluster.engine("node1", "ps", "-aq"), 10, "the container is gone")
    find = ["find", "/home/ddp/.ddpctl", "-name", "check-*"]
    until(lambda: not cluster.exec("node1", *find), 10, "the folder is gone")
    cluster.exec("node1", "docker", "rmi", "slow:1")


def test_containers_that_may_not_write_and_a_folder_that_is_missing(
    cluster: Cluster, check: Check
) -> None:
    document = check(user="12345:12345", mounts=["/no/such:/scratch"])
    assert {f[1:] for f in told(document)} == {
        (node, "disk", "/no/such does not exist, but job.mounts names it") for node in cluster.nodes
    }
    recipe = f"FROM {TRAINER_IMAGE}\nENTRYPOINT []\nRUN mv /opt/venv/bin /gone\n"
    build = ["env", "DOCKER_BUILDKIT=0", "docker", "build", "-q", "-t", "bare:1", "-"]
    cluster.exec("node1", *build, stdin=recipe.encode())
    found = [f for f in told(check(image="bare:1")) if f[1] == "node1"]
    cluster.exec("node1", "docker", "rmi", "bare:1")
    assert len(found) == 1
    assert found[0][0] == "failure" and found[0][2] == "image"


def test_the_table_and_the_lines(cluster: Cluster, home: Home, tmp_path: Path) -> None:
    file = cluster.hosts_yaml(tmp_path / "hosts.yaml", master_port=22)
    done = home.ddpctl("check", file)
    head, first, *rest = done.stdout.splitlines()
    assert head.split()[:4] == ["HOST", "SSH", "DOCKER", "GPUS"]
    assert first.split()[0] == "node0"
    assert any(line.startswith("failure: node0: ports: ") and "port 22" in line for line in rest)
    assert done.returncode == 3


def test_docker_is_down(cluster: Cluster, check: Check) -> None:
    cluster.stop_dockerd("node1")
    severity, host, name, what = only(check())
    assert (severity, host, name) == ("failure", "node1", "docker")
    assert "is not running" in what or "daemon" in what


def test_no_permission_on_the_socket(cluster: Cluster, check: Check) -> None:
    cluster.exec("node1", "gpasswd", "-d", "ddp", "docker")
    try:
        severity, host, name, what = only(check())
    finally:
        cluster.exec("node1", "gpasswd", "-a", "ddp", "docker")
    assert (severity, host, name) == ("failure", "node1", "docker")
    assert "not allowed to use Docker" in what


def test_a_lost_host_is_reported_as_unreachable(cluster: Cluster, check: Check) -> None:
    cluster.kill_host("node2")
    document = check()
    ((severity, host, name, what),) = told(document)
    assert (severity, host, name, document["rc"]) == ("failure", "node2", "ssh", 4)
    assert cluster.addresses["node2"] in what


def test_a_key_that_is_refused(cluster: Cluster, check: Check) -> None:
    cluster.exec("node2", "mv", "/home/ddp/.ssh", "/home/ddp/.ssh.off")
    try:
        document = check()
    finally:
        cluster.exec("node2", "mv", "/home/ddp/.ssh.off", "/home/ddp/.ssh")
    ((severity, host, name, _what),) = told(document)
    assert (severity, host, name, document["rc"]) == ("failure", "node2", "ssh", 4)


def test_a_port_that_is_held(cluster: Cluster, check: Check) -> None:
    cluster.exec("node0", "sh", "-c", "setsid nc -l -k -p 29500 >/dev/null 2>&1 </dev/null &")
    try:
        severity, host, name, what = only(check(master_port=29500))
        assert told(check()) == []
    finally:
        cluster.exec("node0", "sh", "-c", "pkill -x nc; true")
    assert (severity, host, name) == ("failure", "node0", "ports")
    assert what.startswith("port 29500 is taken by ")
    assert "user root" in what


def test_a_firewall_before_one_port(cluster: Cluster, check: Check) -> None:
    rule = ["INPUT", "-p", "tcp", "--dport", "29500", "-s", cluster.addresses["node2"]]
    cluster.exec("node0", "iptables", "-A", *rule, "-j", "DROP")
    try:
        severity, host, name, what = only(check(master_port=29500))
    finally:
        cluster.exec("node0", "iptables", "-F", "INPUT")
    assert (severity, host, name) == ("failure", "node0", "ports")
    where = f"a connection to port 29500 on {cluster.addresses['node0']}"
    assert what == f"{where} timed out from 1 of 2 hosts (node2)"


def test_a_firewall_before_the_data(cluster: Cluster, check: Check) -> None:
    """The firewall accepts SSH and traffic from node0, but not from node2."""
    rule = ["INPUT", "-p", "tcp", "!", "--dport", "22", "-s", cluster.addresses["node2"]]
    cluster.exec("node1", "iptables", "-A", *rule, "--syn", "-j", "DROP")
    try:
        document = check()
    finally:
        cluster.exec("node1", "iptables", "-F", "INPUT")
    severity, host, name, what = only(document)
    assert (severity, host, name) == ("failure", "node1", "network")
    where = f"a connection to {cluster.addresses['node1']}"
    assert what == f"{where} timed out from 1 of 2 hosts (node2)"
    [finding] = document["findings"]
    assert "allow all TCP between the hosts in its firewall" in finding["remedy"]


def test_a_full_disk(cluster: Cluster, check: Check) -> None:
    small = "mount -t tmpfs -o size=20m tmpfs /home/ddp/.ddpctl && chown ddp /home/ddp/.ddpctl"
    cluster.exec("node1", "sh", "-c", f"mkdir -p /home/ddp/.ddpctl && {small}")
    try:
        severity, host, name, what = only(check())
    finally:
        cluster.exec("node1", "umount", "/home/ddp/.ddpctl")
    assert (severity, host, name) == ("failure", "node1", "disk")
    assert "20 MiB free on /home/ddp/.ddpctl for data and checkpoints" in what


def test_gpu_ids_that_do_not_exist(cluster: Cluster, check: Check) -> None:
    for node in ("node0", "node1"):
        cluster.give_gpus(node, 2)
    wrong = [{"host": "node0", "gpus": [0, 1]}, {"host": "node1", "gpus": [0, 5]}]
    finding = only(check(wrong))
    right = [{"host": "node0", "gpus": [0, 1]}, {"host": "node1", "gpus": 2}]
    assert told(check(right)) == []
    cluster.exec("node1", "rm", "/usr/local/bin/nvidia-container-runtime-hook")
    toolkit = only(check(right))
    assert finding == (
        "failure",
        "node1",
        "gpus",
        "the host has no GPU 5, only 0-1",
    )
    assert toolkit[:3] == ("failure", "node1", "gpus")
    assert "toolkit is not installed" in toolkit[3]


def test_a_gpu_in_use_is_reported_with_its_process_user_and_run(
    cluster: Cluster, check: Check
) -> None:
    for node in ("node0", "node1"):
        cluster.give_gpus(node, 2)
    run = "20261122-010203-night"
    labels = {"run-id": run, "attempt": "1", "nnodes": "1", "node-rank": "0"}
    flags = [f"--label=io.ddpctl.{key}={value}" for key, value in labels.items()]
    flags += ["-d", "--network=host", "--user=1000"]
    sleeping = ["--entrypoint", "sleep", TRAINER_IMAGE, "300"]
    name = cluster.exec("node1", "docker", "run", *flags, *sleeping)
    [container] = cluster.containers("node1")
    pid = container["State"]["Pid"]
    process = f"<pid>{pid}</pid><type>C</type><process_name>/bin/sleep</process_name>"
    process += "<used_memory>30000 MiB</used_memory>"
    used = f"<gpu><processes><process_info>{process}</process_info></processes></gpu>"
    log = f"<nvidia_smi_log><gpu/>{used}</nvidia_smi_log>"
    answers = f"#!/bin/sh\ncase \"$*\" in '-q -x') echo '{log}';; *compute-apps*) echo {pid};; *)\n"
    more = 'sed 1d /usr/local/bin/nvidia-smi >>/tmp/smi; echo ";; esac" >>/tmp/smi; cat /tmp/smi'
    put = f"cat >/tmp/smi; {more} >/usr/local/bin/nvidia-smi"
    cluster.exec("node1", "sh", "-c", put, stdin=answers.encode())
    wanted = [{"host": "node0", "gpus": [0, 1]}, {"host": "node1", "gpus": [0, 1]}]
    document = check(wanted)
    cluster.exec("node1", "docker", "rm", "-f", name)
    severity, host, name, what = only(document)
    assert (severity, host, name) == ("failure", "node1", "gpus")
    assert what == f"GPU 1 is in use: sleep (pid {pid}, user ddp, run {run}) holds 30000 MiB"
    [finding] = document["findings"]
    assert finding["remedy"] == f"run `ddpctl kill {run}`, wait for it to end, or choose other GPUs"


@contextlib.contextmanager
def another_mtu(cluster: Cluster) -> Iterator[None]:
    cluster.exec("node2", "ip", "link", "set", "eth0", "mtu", "1400")
    try:
        yield
    finally:
        cluster.exec("node2", "ip", "link", "set", "eth0", "mtu", "1500")


@contextlib.contextmanager
def a_clock_that_is_off(cluster: Cluster) -> Iterator[None]:
    late = '#!/bin/sh\n[ "$1" = +%s.%N ] && exec /bin/date -d "-90 seconds" "$1"\nexec /bin/date "$@"\n'
    program = "cat > /usr/local/bin/date; chmod 755 /usr/local/bin/date"
    cluster.exec("node2", "sh", "-c", program, stdin=late.encode())
    try:
        yield
    finally:
        cluster.exec("node2", "rm", "/usr/local/bin/date")


@contextlib.contextmanager
def another_image_under_the_same_name(cluster: Cluster) -> Iterator[None]:
    build = 'printf \'FROM %s\\nRUN touch /other\\n\' "$1" | docker build -q -t "$1" - '
    [was] = json.loads(cluster.exec("node1", "docker", "image", "inspect", TRAINER_IMAGE))
    cluster.exec("node1", "env", "DOCKER_BUILDKIT=0", "sh", "-c", build, "sh", TRAINER_IMAGE)
    try:
        yield
    finally:
        cluster.exec("node1", "docker", "tag", was["Id"], TRAINER_IMAGE)


@contextlib.contextmanager
def a_run_that_was_left_paused(cluster: Cluster) -> Iterator[None]:
    labels = {"run-id": "old", "attempt": 1, "node-rank": 1, "nnodes": 2, "owner": "eve@head"}
    flags = [f"--label=io.ddpctl.{name}={value}" for name, value in labels.items()]
    run = ["docker", "run", "-d", "--network", "host", "--name", "ddpctl-old-1", *flags]
    cluster.exec("node1", *run, "--entrypoint", "sleep", TRAINER_IMAGE, "60")
    cluster.exec("node1", "docker", "pause", "ddpctl-old-1")
    try:
        yield
    finally:
        cluster.exec("node1", "docker", "unpause", "ddpctl-old-1")


def test_what_need_not_stop_a_run_is_a_warning(cluster: Cluster, check: Check) -> None:
    """Four of them at once, because a check takes a while."""
    with (
        another_mtu(cluster),
        a_clock_that_is_off(cluster),
        another_image_under_the_same_name(cluster),
        a_run_that_was_left_paused(cluster),
    ):
        document = check()
    found = {finding[:3]: finding[3] for finding in told(document)}
    assert (document["rc"], len(document["findings"])) == (0, 4), found
    assert found["warning", "node2", "network"] == "MTU 1400 on eth0, while other hosts have 1500"
    assert found["warning", "node2", "clock"].startswith(("its clock is 90.", "its clock is 89."))
    assert f"{TRAINER_IMAGE} is a different image" in found["warning", "node1", "image"]
    assert found["warning", "node1", "runs"] == "node 1 of run old (eve@head) is paused"


# Decoys: plain torchrun over Gloo listens where nobody connects, but ddpctl does not

TALK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
print("sum", int(one.item()), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def decoys(cluster: Cluster) -> Any:
    """Make every host resolve its own name to 127.0.1.1 and have a bridge with the others' addresses."""
    names: dict[str, str] = {}
    for node in cluster.nodes:
        names[node] = cluster.exec(node, "cat", "/etc/hosts")
        wrong = f"127.0.0.1 localhost\n127.0.1.1 {node}\n"
        cluster.exec(node, "sh", "-c", "cat > /etc/hosts", stdin=wrong.encode())
        bridge = "ip link add name docker0 type bridge && ip addr add 172.29.0.1/16 dev docker0"
        cluster.exec(node, "sh", "-c", f"{bridge} && ip link set docker0 up")
    yield
    for node in cluster.nodes:
        cluster.exec(node, "sh", "-c", "cat > /etc/hosts", stdin=names[node].encode())
        cluster.exec(node, "ip", "link", "del", "docker0")


def test_decoys_are_named_and_never_chosen(cluster: Cluster, check: Check, decoys: Any) -> None:
    document = check()
    assert [finding[:3] for finding in told(document)] == [
        ("warning", node, "network") for node in cluster.nodes
    ]
    assert all("resolves to 127.0.1.1" in finding[3] for finding in told(document))
    assert [h["internal_ip"] for h in document["hosts"]] == list(cluster.addresses.values())


def test_a_launch_passes_where_plain_torchrun_fails(
    cluster: Cluster, home: Home, tmp_path: Path, decoys: Any
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "talk.py").write_text(TALK)
    file = cluster.hosts_yaml(
        tmp_path / "hosts.yaml", ["node0", "node1"], workdir="code", command=["talk.py"]
    )
    done = home.ddpctl("launch", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 2") == 2

    plain = (
        "cat > /tmp/talk.py; timeout 30 docker run --rm -i --name plain --network host -v /tmp:/t "
        "--entrypoint torchrun {image} --nnodes 2 --node-rank {rank} --nproc-per-node 1 "
        "--master-addr {address} --master-port 29511 /t/talk.py; echo rc $?"
    )

    def by_hand(rank: int) -> str:
        words = {"image": TRAINER_IMAGE, "address": cluster.addresses["node0"]}
        command = plain.format(rank=rank, **words)
        return cluster.exec(f"node{rank}", "sh", "-c", command, stdin=TALK.encode())

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(by_hand, rank) for rank in range(2)]
        wait(both, return_when=FIRST_COMPLETED)
        for node in (
            "node0",
            "node1",
        ):  # the run has failed, so there is no need to wait for the rest
            cluster.exec(node, "sh", "-c", "docker rm -f plain || true")
    said = [half.result() for half in both]
    assert not any("rc 0" in text for text in said), said
