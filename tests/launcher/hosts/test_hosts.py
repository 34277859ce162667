"""A correct hosts file: what each way of writing it means."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import HostsFileError
from launcher.hosts import Cluster, Host, Job, dump, load, override_job, parse

ROOT = Path(__file__).parents[3]


def cluster(text: str) -> Cluster:
    return parse(text, "/etc/cluster/hosts.yaml")


def job(line: str) -> Job:
    return cluster(f"hosts: [a]\njob:\n  {line}\n").job


def test_the_shortest_file_gives_the_documented_defaults() -> None:
    made = cluster("hosts: [gpu1.lab]\n")
    assert made == Cluster(hosts=(Host("gpu1.lab"),), source="/etc/cluster/hosts.yaml")
    assert made.job == Job(
        engine="docker",
        image="ddpctl-trainer:latest",
        command=("-m", "trainer"),
        master_port="auto",
        shm_size=17179869184,
        user="host",
        max_restarts=0,
        stop_timeout=60,
    )
    assert made.nnodes == 1
    assert made.hosts[0].gpus == "all"


def test_the_contract_file_is_read_as_written() -> None:
    made = cluster(
        """
defaults:
  user: ubuntu
  port: 22
  identity_file: keys/id
  gpus: all
hosts:
  - host: gpu1.lab
  - host: gpu2.lab
    gpus: [0, 1, 2, 3]
    internal_ip: 10.0.0.2
    interface: ib0
    port: 2222
    proxy_jump: bastion
  - gpu3.lab
  - host: local
job:
  engine: docker
  image: ddpctl-trainer:latest
  workdir: .
  dataset: ./data
  command: [-m, trainer, --epochs, "10"]
  resume_args: [--resume]
  nproc_per_node: 2
  master_port: 29500
  env: {NCCL_DEBUG: WARN}
  env_file: secrets.env
  mounts: ["/scratch:/scratch:ro"]
  shm_size: 16g
  user: host
  max_restarts: 0
  stop_timeout: 60
"""
    )
    shared = {"user": "ubuntu", "identity_file": "/etc/cluster/keys/id"}
    assert made.hosts == (
        Host("gpu1.lab", port=22, **shared),
        Host(
            "gpu2.lab",
            port=2222,
            proxy_jump="bastion",
            gpus=(0, 1, 2, 3),
            internal_ip="10.0.0.2",
            interface="ib0",
            **shared,
        ),
        Host("gpu3.lab", port=22, **shared),
        Host("local"),
    )
    assert made.hosts[3].is_local and not made.hosts[0].is_local
    assert (made.job.workdir, made.job.dataset) == ("/etc/cluster", "/etc/cluster/data")
    assert made.job.env_file == "/etc/cluster/secrets.env"
    assert made.job.command == ("-m", "trainer", "--epochs", "10")
    assert made.job.env == {"NCCL_DEBUG": "WARN"}


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("gpu1", Host("gpu1")),
        ("bob@gpu1", Host("gpu1", user="bob")),
        ("bob@corp.example@gpu1", Host("gpu1", user="bob@corp.example")),
        ("{host: gpu1, user: bob@corp.example}", Host("gpu1", user="bob@corp.example")),
        ("gpu1:2222", Host("gpu1", port=2222)),
        ("bob@gpu1.lab:2222", Host("gpu1.lab", user="bob", port=2222)),
        ("fe80::1", Host("fe80::1")),
        ("'[fe80::1]:2222'", Host("fe80::1", port=2222)),
        ("local", Host("local")),
        ("{host: 10.0.0.1, gpus: 0}", Host("10.0.0.1", gpus=0)),
        ('{host: a, gpus: "4", port: "22"}', Host("a", gpus=4, port=22)),
        ("{host: a, gpus: [3, 1]}", Host("a", gpus=(3, 1))),
        ("{host: a, internal_ip: 'fd00::2'}", Host("a", internal_ip="fd00::2")),
        (
            "{host: a, proxy_jump: 'me@j1:2222,j2', host_keys: accept-new}",
            Host("a", proxy_jump="me@j1:2222,j2", host_keys="accept-new"),
        ),
    ],
)
def test_ways_to_write_a_host(written: str, host: Host) -> None:
    assert cluster(f"hosts:\n  - {written}\n").hosts == (host,)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("env: {A: 1, B: yes, C: 0x10, D: 1.10, E: '', F: 2020-01-01}", "env",
         {"A": "1", "B": "yes", "C": "0x10", "D": "1.10", "E": "", "F": "2020-01-01"}),
        ("command: [a b.py, --lr, 1e-3, '$(id)', on, '']", "command",
         ("a b.py", "--lr", "1e-3", "$(id)", "on", "")),
        ("user: 1000:1000", "user", "1000:1000"),
        ("user: 12:34", "user", "12:34"),
        ("master_port: auto", "master_port", "auto"),
        ("shm_size: 512m", "shm_size", 512 * 2**20),
        ("tmpfs: {/fast: 64g, /b: 1m}", "tmpfs", {"/fast": 64 * 2**30, "/b": 2**20}),
        ("devices: [/dev/fuse, '/dev/a:/dev/b:r']", "devices", ("/dev/fuse", "/dev/a:/dev/b:r")),
        ("cap_add: [sys_ptrace, CAP_SYS_NICE]", "cap_add", ("SYS_PTRACE", "SYS_NICE")),
        ("ulimits: {memlock: -1, nofile: 65536}", "ulimits", {"memlock": -1, "nofile": 65536}),
        ("shm_size: 2GiB", "shm_size", 2 * 2**30),
        ("shm_size: 1073741824", "shm_size", 2**30),
        ("time_limit: 2h30m", "time_limit", 9000),
        ("numa: off", "numa", "off"),
        ("torchrun_args: [--signals-to-handle, SIGUSR1]", "torchrun_args",
         ("--signals-to-handle", "SIGUSR1")),
        ("time_limit: 1d1s", "time_limit", 86401),
        ("time_limit: 24:00:00", "time_limit", 86400),
        ("workdir: ../code", "workdir", "/etc/code"),
        ("workdir: '/a b/$(c)'", "workdir", "/a b/$(c)"),
        ("image: reg.lab:5000/team/x:1.10", "image", "reg.lab:5000/team/x:1.10"),
        ("image: x@sha256:" + "a" * 64, "image", "x@sha256:" + "a" * 64),
    ],
)  # fmt: skip
def test_values_of_the_job(line: str, field: str, value: object) -> None:
    assert getattr(job(line), field) == value


def test_the_home_folder_is_that_of_this_machine() -> None:
    assert job("workdir: ~").workdir == str(Path.home())
    assert job("workdir: ~/code").workdir == str(Path.home() / "code")


def test_one_machine_may_be_two_nodes_with_different_gpus() -> None:
    made = cluster("hosts: [{host: a, gpus: [0, 1]}, {host: a, gpus: [2]}, {host: a, gpus: 0}]")
    assert [host.gpus for host in made.hosts] == [(0, 1), (2,), 0]
    made = cluster(
        "hosts: [{host: a, gpus: 2}, {host: a, gpus: [2, 3]}]"
    )  # the first two, the next
    assert [host.gpu_ids for host in made.hosts] == [(0, 1), (2, 3)]


def test_spares_are_hosts_with_the_same_defaults() -> None:
    made = cluster("defaults: {user: u}\nhosts: [a]\nspares: [b, {host: c, gpus: 2}]\n")
    assert made.spares == (Host("b", user="u"), Host("c", user="u", gpus=2))


def test_anchors_merges_and_empty_sections() -> None:
    made = cluster(
        "defaults:\nhosts:\n  - &one {host: a, gpus: [0], user: u}\n"
        "  - {<<: *one, host: b}\n  - {<<: [{gpus: 1}, *one], host: c}\njob:\n"
    )
    assert made.hosts == (
        Host("a", user="u", gpus=(0,)),
        Host("b", user="u", gpus=(0,)),
        Host("c", user="u", gpus=1),
    )


def test_dump_writes_the_file_as_used() -> None:
    made = cluster("defaults: {port: 2222}\nhosts: [a, local]\njob: {workdir: ., env: {A: yes}}\n")
    assert dump(made) == (
        "hosts:\n- host: a\n  port: 2222\n- host: local\n"
        "job:\n  workdir: /etc/cluster\n  env:\n    A: 'yes'\n"
    )
    assert parse(dump(made), made.source) == made


def test_load_reads_relative_to_the_file_not_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "hosts.yaml").write_text("hosts: [a]\njob: {dataset: data}\n")
    monkeypatch.chdir(tmp_path)
    made = load("conf/hosts.yaml")
    assert made.job.dataset == str(tmp_path / "conf" / "data")
    assert made.source == "conf/hosts.yaml"


def test_a_file_in_the_home_folder_is_found_without_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "hosts.yaml").write_text("hosts: [gpu1]\njob: {dataset: ./data}\n")
    for hosts in ("~/hosts.yaml", Path("~/hosts.yaml")):
        cluster = load(hosts)
        assert (cluster.job.dataset, cluster.source) == (
            f"{tmp_path}/data",
            f"{tmp_path}/hosts.yaml",
        )


def test_load_needs_files_only_where_they_are_used(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("hosts: [a]\njob: {dataset: gone, workdir: gone too}\n")
    with pytest.raises(HostsFileError) as caught:
        load(file)
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(HostsFileError) as caught:
        load(file, overridden=["dataset"])
    assert [re.sub(r".*?: (job\.\w+):.*", r"\1", p) for p in str(caught.value).splitlines()] == [
        "job.workdir"
    ]
    assert load(file, job_files=False).job.dataset == str(tmp_path / "gone")


def test_the_command_line_overrides_the_job_with_the_same_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    base = cluster("hosts: [{host: a, gpus: 2}]\njob: {env: {A: x, B: y}, max_restarts: 1}\n")
    flags = {
        "image": "other:1",
        "dataset": "d",
        "workdir": ".",
        "env": {"B": "2", "C": "a b"},
        "nproc_per_node": 2,
        "max_restarts": None,
        "command": ["train.py", "--name", "two words"],
    }
    made = override_job(base, flags).job
    assert (made.dataset, made.workdir) == (str(tmp_path / "d"), str(tmp_path))
    assert made.env == {"A": "x", "B": "2", "C": "a b"}
    assert (made.image, made.nproc_per_node, made.max_restarts) == ("other:1", 2, 1)
    assert made.command == ("train.py", "--name", "two words")
    assert override_job(base, {}) == base
    uneven = cluster(
        "hosts: [{host: a, nproc_per_node: 2}]\nspares: [{host: b, nproc_per_node: 1}]"
    )
    even = override_job(uneven, {"nproc_per_node": 3})
    assert [host.nproc_per_node for host in (*even.hosts, *even.spares)] == [None, None]
    with pytest.raises(HostsFileError, match=r"spares\[0\].gpus: found 2 GPUs"):
        override_job(cluster("hosts: [a]\nspares: [{host: b, gpus: 2}]"), {"nproc_per_node": 3})

    with pytest.raises(HostsFileError) as caught:
        flags = {
            "image": "UPPER",
            "dataset": "nowhere",
            "env": {"1X": "a"},
            "nproc_per_node": 3,
            "max_restarts": -1,
            "command": ["python", "x.py"],
        }
        override_job(base, flags)
    text = "\n".join(str(caught.value).splitlines())
    for flag in ("--image", "--dataset", "--env.1X", "hosts[0].gpus", "--max-restarts", "COMMAND"):
        assert f"command line: {flag}: " in text
    assert len(str(caught.value).splitlines()) == 6


def test_importing_hosts_loads_nothing_heavy() -> None:
    code = (
        "import sys, launcher.hosts;"
        "print(sorted({'paramiko', 'docker', 'torch', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("one", "other", "machine", "account"),
    [
        (Host("gpu1"), Host("GPU1", port=22), True, True),
        (Host("gpu1", user="ann"), Host("gpu1", user="bob"), True, False),
        (Host("gpu1", port=22), Host("gpu1", port=2222), False, False),
        (Host("gpu1", gpus=(0,)), Host("gpu1", gpus=(1,)), True, True),
        (Host("gpu1"), Host("gpu2"), False, False),
    ],
)
def test_hosts_on_one_machine(one: Host, other: Host, machine: bool, account: bool) -> None:
    assert (one.machine == other.machine, one.account == other.account) == (machine, account)
