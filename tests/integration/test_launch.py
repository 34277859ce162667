"""`ddpctl launch` end to end: real sshd, real dockerd, real torchrun on simulated hosts."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from textwrap import dedent

import pytest
from cluster import Cluster, Home, until

pytestmark = pytest.mark.cluster

STARTED = re.compile(r"run (\S+) started")
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A code folder whose name needs quoting."""
    folder = tmp_path / "my code $(touch x)"
    folder.mkdir()
    return folder


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(dedent(text))
    return name


def lines_by_rank(stdout: str) -> dict[tuple[str, int], list[str]]:
    found = defaultdict(list)
    for line in stdout.split("\n"):
        if matched := re.match(r"\[([^\]:]+):(\d+)\] (.*)", line):
            found[matched[1], int(matched[2])].append(matched[3])
    return dict(found)


def test_three_hosts_run_a_foreign_script_and_every_line_arrives_whole_once_in_order(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    name = script(
        code,
        """
        import json, os, sys
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        ones = torch.ones(1)
        dist.all_reduce(ones)
        print(json.dumps({"sum": ones.item(), "argv": sys.argv[1:], "cwd": os.getcwd()}), flush=True)
        text = chr(97 + dist.get_rank()) * 2000
        for i in range(1000):
            print(i, text, file=(sys.stdout, sys.stderr)[i % 2], flush=True)
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", workdir=str(code), nproc_per_node=2)
    done = home.ddpctl("launch", hosts, "--", name, "two words", "--flag", " lead")
    assert done.returncode == 0, done.stderr

    said = lines_by_rank(done.stdout)
    assert sorted(said) == [(f"node{rank // 2}", rank) for rank in range(6)]
    for (_, rank), lines in said.items():
        # stdout and stderr of a rank are two files: each is in order
        first = json.loads(next(line for line in lines if line.startswith("{")))
        assert first == {"sum": 6.0, "argv": ["two words", "--flag", " lead"], "cwd": "/workspace"}
        numbered = [line.split(" ", 1) for line in lines if re.match(r"\d+ [a-f]", line)]
        assert {text for _, text in numbered} == {chr(97 + rank) * 2000}
        for parity in (0, 1):
            order = [int(i) for i, _ in numbered if int(i) % 2 == parity]
            assert order == list(range(parity, 1000, 2))
    record = home.record()
    [attempt] = record["attempts"]
    assert attempt["state"] == "SUCCEEDED" and attempt["first_failure"] is None
    assert [node["exit_code"] for node in attempt["nodes"]] == [0, 0, 0]
    kept = home.state / "ddpctl" / "runs" / record["run_id"] / "logs" / "node-1.log"
    assert kept.read_text().count("c" * 2000) == 1000
    assert cluster.idle()


def test_containers_are_as_promised(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    name = script(
        code,
        """
        import json, os, pathlib
        for folder in ("/checkpoints", "/output", "/workspace"):
            pathlib.Path(folder, "written").write_text("x")
        os.mkdir(os.environ["HF_HOME"])
        pathlib.Path(os.environ["HF_HOME"], "model").write_text("x")
        facts = {k: v for k, v in os.environ.items()}
        print(json.dumps({"env": facts, "uid": os.getuid()}), flush=True)
        """,
    )
    secrets = tmp_path / "secrets.env"
    secrets.write_text("TOKEN=s3cr3t-value\n")
    job = {
        "workdir": str(code),
        "env_file": str(secrets),
        "env": {"GREETING": "a 'b' \"c\" $(id)\n$HOME"},
    }
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"], **job, nproc_per_node=1)
    done = home.ddpctl("launch", hosts, "--no-check", "--name", "promise", "--", name)
    assert done.returncode == 0, done.stderr

    run_id = home.record()["run_id"]
    assert run_id.startswith("promise-")
    for rank, node in enumerate(("node0", "node1")):
        [container] = cluster.containers(node)
        assert container["Name"] == f"/ddpctl-{run_id}-{rank}"
        labels = container["Config"]["Labels"]
        assert labels["io.ddpctl.run-id"] == run_id
        assert labels["io.ddpctl.attempt"] == "1"
        assert labels["io.ddpctl.node-rank"] == str(rank)
        assert labels["io.ddpctl.nnodes"] == "2"
        assert labels["io.ddpctl.owner"]
        assert container["HostConfig"]["NetworkMode"] == "host"
        assert container["HostConfig"]["Init"] is True
        assert container["HostConfig"]["SecurityOpt"] == ["no-new-privileges"]
        assert container["HostConfig"]["PidsLimit"] == 32768
        assert "CAP_NET_RAW" in {
            f"CAP_{c.removeprefix('CAP_')}" for c in container["HostConfig"]["CapDrop"]
        }
        assert container["HostConfig"]["ShmSize"] == 16 << 30
        [line] = [each for each in lines_by_rank(done.stdout)[node, rank] if each.startswith("{")]
        seen = json.loads(line)
        assert seen["env"]["GREETING"] == "a 'b' \"c\" $(id)\n$HOME"
        assert seen["env"]["TOKEN"] == "s3cr3t-value"
        assert seen["env"]["DDPCTL_RUN_ID"] == run_id
        assert seen["env"]["DDPCTL_NODE_RANK"] == str(rank)
        assert seen["env"]["GLOO_SOCKET_IFNAME"] == "eth0"
        cores = int(cluster.exec(node, "nproc"))  # those of the machine that both hosts are on
        assert seen["env"]["OMP_NUM_THREADS"] == str(max(1, cores // 2))
        assert seen["env"]["HOME"] == "/tmp"
        assert str(seen["uid"]) == cluster.exec(node, "id", "-u", "ddp")
        written = f"/home/ddp/.ddpctl/runs/{run_id}/output/written"
        assert cluster.exec(node, "stat", "-c", "%U", written) == "ddp"
        cached = f"/home/ddp/.ddpctl/cache/{seen['uid']}/huggingface/model"
        assert cluster.exec(node, "stat", "-c", "%U", cached) == "ddp"
    kept = "".join(p.read_text() for p in home.state.rglob("run.json"))
    assert "s3cr3t-value" not in kept + done.stderr


def test_arguments_values_and_paths_arrive_unchanged(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    ugly = "sp ace 'single' \"double\" $(touch /tmp/pwned) `id` $HOME \\ ; | & * ? ~ \u00fc"
    folder = tmp_path / "co'de $(touch pwned) \u00fc"
    folder.mkdir()
    (folder / "un der.txt").write_text("kept")
    script(
        folder,
        """
        import json, os, sys
        print(json.dumps([sys.argv[1:], os.environ["UGLY"], open("un der.txt").read()]), flush=True)
        """,
        "tr ain.py",
    )
    hosts = cluster.hosts_yaml(tmp_path / "ho sts.yaml", ["node1"], workdir=str(folder))
    given = [ugly, "two\nlines", "", "--", "-x"]
    done = home.ddpctl("launch", hosts, "--env", f"UGLY={ugly}\nmore", "--", "tr ain.py", *given)
    assert done.returncode == 0, done.stderr
    [line] = lines_by_rank(done.stdout)["node1", 0]
    assert json.loads(line) == [given, f"{ugly}\nmore", "kept"]
    assert "pwned" not in cluster.exec("node1", "ls", "/tmp", "/home/ddp")


def test_an_unreachable_host_is_named_and_the_others_are_not_started(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", workdir=str(code))
    name = script(code, FOREVER)
    cluster.cut("node1")
    began = time.monotonic()
    done = home.ddpctl("launch", hosts, "--", name, timeout=60)
    assert done.returncode == 4, done.stderr
    assert time.monotonic() - began < 30
    assert "node1" in done.stderr and "Traceback" not in done.stderr
    left = [each for node in ("node0", "node2") for each in cluster.containers(node)]
    assert not any("io.ddpctl.run-id" in each["Config"]["Labels"] for each in left)
    # the engines are still removing the containers of the probe's agents
    until(lambda: not any(map(cluster.containers, ["node0", "node2"])), 10, "no container is left")


def test_through_a_jump_host_on_another_port(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    name = script(code, "print('through', flush=True)")
    far = {
        "host": cluster.addresses["node1"],
        "user": "ddp",
        "port": 2222,
        "proxy_jump": f"root@{cluster.addresses['node0']}:2222",
        "identity_file": str(cluster.home / ".ssh" / "id_ed25519"),
    }
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", [far], workdir=str(code))
    done = home.ddpctl("launch", hosts, "--", name)
    assert done.returncode == 0, done.stderr
    assert lines_by_rank(done.stdout) == {(cluster.addresses["node1"], 0): ["through"]}
    log = cluster.exec("node1", "cat", "/var/log/sshd.log")
    assert f"from {cluster.addresses['node0']} port" in log, log


def test_gpus_of_one_host_are_split_between_two_nodes(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    """The engine's GPU requests are checked; the GPUs themselves are stand-ins."""
    for node in ("node0", "node1"):
        cluster.give_gpus(node, 2)
    name = script(code, "import os\nprint(os.environ['LOCAL_WORLD_SIZE'], flush=True)")
    rows = [{"host": "node0", "gpus": [0]}, {"host": "node0", "gpus": [1]}]
    rows += [{"host": "node1", "gpus": 1}]
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", rows, workdir=str(code))
    done = home.ddpctl("launch", hosts, "--no-check", "--", name)
    assert done.returncode == 0, done.stderr
    said = lines_by_rank(done.stdout)
    assert said == {("node0", 0): ["1"], ("node0", 1): ["1"], ("node1", 2): ["1"]}
    asked = {}
    for node in ("node0", "node1"):
        for container in cluster.containers(node):
            [request] = container["HostConfig"]["DeviceRequests"]
            assert ["gpu"] in request["Capabilities"]
            rank = container["Config"]["Labels"]["io.ddpctl.node-rank"]
            asked[rank] = request["DeviceIDs"] or request["Count"]
    assert (asked["0"], asked["1"]) == (["0"], ["1"])
    assert asked["2"] in (1, ["0"])


def test_python_calls_a_function_on_every_rank(
    cluster: Cluster, home: Home, tmp_path: Path
) -> None:
    """With trust=True, a tensor is returned. A rank that is killed is named, and there is no result."""
    program = """
        import os, signal, sys, torch, ddpctl

        def total(start, killed=None):
            import torch.distributed as dist
            dist.init_process_group("gloo")
            if dist.get_rank() == killed:
                os.kill(os.getpid(), signal.SIGKILL)
            ones = torch.full((2,), float(start))
            dist.all_reduce(ones)
            return os.environ["DDPCTL_NODE_RANK"], ones

        results = ddpctl.run(total, (5,), hosts=sys.argv[1], trust=True)
        print([(node, ones.tolist()) for node, ones in results])
        try:
            ddpctl.run(total, (5, 1), hosts=sys.argv[1], trust=True, check=False)
        except ddpctl.RunFailed as error:
            print(error)
    """
    name = script(tmp_path, program, "program.py")
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"])
    argv = [sys.executable, name, str(hosts)]
    env = {**home.environment, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    results, error = done.stdout.splitlines()
    assert results == str([(str(node), [10.0, 10.0]) for node in range(2)])
    assert "rank 1 (node1, local_rank 0) was killed by SIGKILL" in error
    assert cluster.idle()


def test_two_launches_at_once_do_not_disturb_each_other(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    name = script(
        code,
        """
        import sys, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor(float(sys.argv[1]))
        dist.all_reduce(total)
        print(total.item(), flush=True)
        dist.barrier()
        dist.destroy_process_group()
        """,
    )
    job = {"workdir": str(code), "master_port": "auto"}
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"], **job)
    both = [home.start("launch", hosts, "--", name, value) for value in ("1", "10")]
    outputs = [process.communicate(timeout=180) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    for (out, _), total in zip(outputs, ("2.0", "20.0"), strict=True):
        assert lines_by_rank(out.decode()) == {("node0", 0): [total], ("node1", 1): [total]}
    assert cluster.idle()


def test_a_taken_port_is_reported_with_its_owner_before_the_start(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    name = script(code, FOREVER)
    hosts = cluster.hosts_yaml(
        tmp_path / "hosts.yaml", ["node0"], workdir=str(code), master_port=29500
    )
    detached = home.ddpctl("launch", hosts, "--detach", "--", name)
    assert detached.returncode == 0, detached.stderr
    first = home.record()["run_id"]
    second = home.ddpctl("launch", hosts, "--", name)
    assert second.returncode == 3, second.stderr
    assert "29500" in second.stderr + second.stdout
    assert first in second.stderr + second.stdout
    assert len(cluster.containers("node0")) == 1


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_a_stopped_launcher_leaves_nothing_half_done(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path, signals: list[signal.Signals]
) -> None:
    name = script(code, FOREVER)
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"], workdir=str(code))
    process = home.start("launch", hosts, "--no-check", "--", name)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"[node")
    for number in signals:
        process.send_signal(number)
        time.sleep(0.3)  # two signals at the same moment would be one
    process.wait(timeout=90)
    assert process.returncode in (7, 130, 143)
    until(cluster.idle, 20, "nothing of the run is left")
    assert home.record()["attempts"][0]["state"] == "CANCELLED"


def test_a_reader_that_goes_away_costs_no_run_and_no_line(
    cluster: Cluster, home: Home, code: Path, tmp_path: Path
) -> None:
    name = script(
        code,
        """
        import time
        for i in range(300):
            print(i, flush=True)
            time.sleep(0.02)
        """,
    )
    hosts = cluster.hosts_yaml(tmp_path / "hosts.yaml", ["node0", "node1"], workdir=str(code))
    process = home.start("launch", hosts, "--no-check", "--", name)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith(b"[node")
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    assert process.wait(timeout=90) == 0
    record = home.record()
    assert record["attempts"][0]["state"] == "SUCCEEDED"
    for node in (0, 1):
        log = home.state / "ddpctl" / "runs" / record["run_id"] / "logs" / f"node-{node}.log"
        said = [
            line.rsplit(" ", 1)[-1] for line in log.read_text().splitlines() if f":{node}]" in line
        ]
        assert said == [str(i) for i in range(300)]
