"""build_plan: the whole value, from a hosts file and what the hosts said."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from host_facts import facts, gpus

from launcher.errors import CommandFailed, UsageError
from launcher.facts.facts import Facts
from launcher.facts.gpus import Gpu
from launcher.facts.network import Address
from launcher.facts.rdma import Gid, RdmaPort
from launcher.hosts import Cluster, Host, Job, parse
from launcher.plan.build import PlanInputs, build_plan
from launcher.plan.container import METRICS_DIR
from launcher.plan.launch_options import TRAINER_HANG_TIMEOUT, LaunchOptions
from launcher.plan.plan import EngineTraits, Plan
from launcher.plan.render import LABELS_AT_LAUNCH, node_rows, plan_document, plan_text
from launcher.plan.supervisor_spec import supervisor_spec, torchrun_command
from launcher.plan.topology import free_port, same_subnet_first
from launcher.supervisor.spec import Spec

DOCKER = EngineTraits("docker", in_container=True)


def planned(text: str | Cluster, options: LaunchOptions | None = None, **how: Any) -> Plan:
    cluster = parse(text, "hosts.yaml") if isinstance(text, str) else text
    given = {"run_id": "r", "owner": "me@here", **how}
    return build_plan(cluster, DOCKER, options or LaunchOptions(), **given)


TWO = """
hosts:
  - {host: gpu1, gpus: [0, 1]}
  - {host: gpu2, gpus: [2, 3], internal_ip: 10.0.0.2, interface: eth7}
job:
  command: [-m, trainer, --epochs, "10"]
  dataset: /srv/data
  env: {NCCL_DEBUG: WARN, OMP_NUM_THREADS: "3"}
  master_port: 29500
"""


def spec_of(plan: Plan, node_rank: int) -> dict[str, Any]:
    return asdict(supervisor_spec(plan, plan.nodes[node_rank], "token"))


def torchrun(plan: Plan, node_rank: int) -> list[str]:
    return torchrun_command(plan, plan.nodes[node_rank])


def two_nodes(known: bool = True) -> Plan:
    cluster = parse(TWO, "hosts.yaml")
    second = facts(ssh_server_ip="192.168.1.2", home="/root", uid=0, gid=0, user="root")
    inputs = PlanInputs((facts(), second), ("sha256:aa", "sha256:bb"), dataset_digest="d1")
    names = tuple(cluster.job.env)
    return planned(cluster, run_id="r1", inputs=inputs if known else None, env_names=names)


def test_the_supervisor_reads_what_the_plan_writes() -> None:
    spec = Spec(**json.loads(json.dumps(spec_of(two_nodes(), 1))))
    assert (spec.node_rank, spec.first_rank) == (1, 2)


def test_only_node_0_is_sent_the_names_of_all_hosts() -> None:
    plan = two_nodes()
    assert [spec_of(plan, rank)["hosts"] for rank in (0, 1)] == [["gpu1", "gpu2"], ["gpu1"]]


def test_the_torchrun_line_is_the_contracts() -> None:
    assert " ".join(torchrun(two_nodes(), 1)) == (
        "torchrun --nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr 10.0.0.1 "
        "--master-port 29500 --max-restarts 0 -- -m trainer --epochs 10"
    )


def test_each_node_has_its_own_rank_address_interface_and_user() -> None:
    first, second = two_nodes().nodes
    assert (first.internal_ip, first.interface) == ("10.0.0.1", "ib0")
    assert (second.internal_ip, second.interface) == ("10.0.0.2", "eth7")
    assert first.container.user == "1000:1001"
    assert first.container.env["NCCL_SOCKET_IFNAME"] == "=ib0"
    assert second.container.env["GLOO_SOCKET_IFNAME"] == "eth7"
    assert (first.container.gpus, second.container.gpus) == ((0, 1), (2, 3))
    assert (first.container.image, second.container.image) == ("sha256:aa", "sha256:bb")


def test_nccl_gets_exactly_the_interface_of_the_chosen_address() -> None:
    fast = Address("192.168.0.1", "eth1")
    host = facts(addresses=(Address("10.0.0.1", "eth10"), fast), ssh_server_ip=fast.ip)
    plan = planned("hosts: [a]", inputs=PlanInputs((host,), ("i",)))
    env = plan.nodes[0].container.env
    assert (plan.master_addr, plan.nodes[0].interface) == (fast.ip, "eth1")
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == ("=eth1", "eth1")
    slow = planned("hosts: [a]", inputs=PlanInputs((host,), ("i",), unreached=frozenset({fast.ip})))
    assert (slow.master_addr, slow.nodes[0].interface) == ("10.0.0.1", "eth10")


def test_nccl_warns_unless_the_user_says_otherwise() -> None:
    assert planned("hosts: [a]").nodes[0].container.env["NCCL_DEBUG"] == "WARN"
    mine = planned("hosts: [a]", env_names=("NCCL_DEBUG",)).nodes[0].container
    assert "NCCL_DEBUG" not in mine.env


def test_labels_and_name_are_the_contracts() -> None:
    container = two_nodes().nodes[1].container
    assert container.name == "ddpctl-r1-1"
    assert {
        key: container.labels[f"io.ddpctl.{key}"]
        for key in ("run-id", "attempt", "node-rank", "nnodes", "owner")
    } == {
        "run-id": "r1",
        "attempt": "1",
        "node-rank": "1",
        "nnodes": "2",
        "owner": "me@here",
    }


def test_mounts_lie_under_the_hosts_own_home() -> None:
    mounts = {m.target: m for m in two_nodes().nodes[0].container.mounts}
    assert mounts["/data"].source == "/home/ann/.ddpctl/datasets/d1"
    assert mounts["/data"].read_only
    assert mounts["/checkpoints"].source == "/home/ann/.ddpctl/runs/r1/checkpoints"
    assert mounts["/output"].source == "/home/ann/.ddpctl/runs/r1/output"
    assert mounts["/ddpctl-cache"].source == "/home/ann/.ddpctl/cache/1000"
    assert "/workspace" not in mounts


def test_a_node_writes_to_all_its_mounts_but_the_dataset_and_what_is_mounted_read_only() -> None:
    job = "{dataset: /srv/d, workdir: ., mounts: ['/a:/b', '/c:/d:ro'], metrics_dir: /m}"
    [node] = planned(f"{{hosts: [a], job: {job}}}", inputs=PlanInputs((facts(),))).nodes
    writable = {mount.target: not mount.read_only for mount in node.container.mounts}
    assert {target for target in writable if not writable[target]} == {"/data", "/d"}
    assert set(writable) == {
        "/ddpctl", "/data", "/workspace", "/checkpoints", "/output", "/ddpctl-cache", "/b", "/d",
        METRICS_DIR,
    }  # fmt: skip


def test_the_job_sees_the_folder_for_metrics_where_its_engine_shows_it() -> None:
    for engine, seen in (
        (DOCKER, METRICS_DIR),
        (EngineTraits("process", in_container=False), "/m"),
    ):
        for job, metrics in (("{metrics_dir: /m}", seen), ("{}", None)):
            cluster = parse(f"{{hosts: [a], job: {job}}}", "hosts.yaml")
            how: dict[str, Any] = {"run_id": "r", "owner": "me"}
            inputs = PlanInputs((facts(),), ("i",))
            plan = build_plan(cluster, engine, LaunchOptions(), inputs=inputs, **how)
            assert plan.nodes[0].paths.metrics == spec_of(plan, 0)["metrics_dir"] == metrics


def test_root_has_a_cache_of_its_own_and_local_processes_have_their_users() -> None:
    cluster = parse("{hosts: [a], job: {user: root}}", "hosts.yaml")
    plan = planned(cluster, inputs=PlanInputs((facts(),)))
    mounts = {m.target: m.source for m in plan.nodes[0].container.mounts}
    assert mounts["/ddpctl-cache"] == "/home/ann/.ddpctl/cache/0"
    assert plan.nodes[0].container.env["DDPCTL_CACHE_DIR"] == "/ddpctl-cache"
    processes = EngineTraits("process", in_container=False)
    plan = build_plan(cluster, processes, LaunchOptions(), run_id="r", owner="me")
    assert "DDPCTL_CACHE_DIR" not in plan.nodes[0].container.env


def test_the_users_environment_wins_and_ours_fills_the_rest() -> None:
    container = two_nodes().nodes[0].container
    env = container.env
    assert container.env_names == ("NCCL_DEBUG", "OMP_NUM_THREADS")
    assert not set(env) & set(container.env_names)
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"] == "1800"
    assert env["DDPCTL_RESUME"] == "0"
    assert env["USER"] == env["LOGNAME"] == "ann"


def test_before_the_hosts_are_asked_unknown_values_are_none_and_a_dry_run_says_so() -> None:
    plan = two_nodes(known=False)
    assert plan.world_size == 4
    assert (plan.master_addr, plan.master_port, plan.control_port) == (None, 29500, None)
    first, second = plan.nodes
    assert (first.internal_ip, first.interface) == (None, None)
    assert (second.internal_ip, second.interface) == ("10.0.0.2", "eth7")
    assert second.container.env["NCCL_SOCKET_IFNAME"] == "=eth7"
    shown = plan_text(plan)
    for line in (
        "master        <asked at launch>:29500",
        " 0  gpu1  address <asked at launch> on <asked at launch>, gpus 0,1",
        " 1  gpu2  address 10.0.0.2 on eth7, gpus 2,3, env NCCL_SOCKET_IFNAME==eth7",
        " ~/.ddpctl/runs/r1/output:/output",
        "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 2 --master-addr gpu1 --master-port 29500",
    ):
        assert line in shown
    assert "<asked at launch>" in plan_document(plan)["nodes"][0]["torchrun"]


@pytest.mark.parametrize("user", ["host", "root"])
def test_a_dry_run_names_everything_that_a_launch_sets(user: str) -> None:
    """Both have the same variables, labels and limits; only their values differ."""
    text = f"hosts: [{{host: a, gpus: [0, 1]}}, b]\njob: {{user: {user}}}"
    near = tuple(replace(gpu, cores=CORES[gpu.index]) for gpu in gpus(2))
    host = facts(infiniband=("uverbs0",), rdma_ports=(roce("mlx5_0", "10.0.0.1"),), gpus=near)
    host = replace(host, all_cores=frozenset(range(16)))
    second = replace(host, addresses=(Address("10.0.0.1", "ib0"),), network_stack="other")
    asked = PlanInputs((host, second), ("i", "i"), dataset_digest="d")

    def named(plan: Plan) -> list[set[str]]:
        containers = [node.container for node in plan.nodes]
        return [
            {*c.env, *c.env_at_launch, *LABELS_AT_LAUNCH, *c.labels, *c.ulimits} for c in containers
        ]

    assert named(planned(text)) == named(planned(text, inputs=asked))


def test_one_process_a_gpu_and_one_on_a_cpu_host() -> None:
    cluster = parse("hosts: [a, b]", "hosts.yaml")

    def nproc(*counts: int) -> list[int | None]:
        inputs = PlanInputs(tuple(facts(gpus=gpus(n)) for n in counts), ("i", "i"))
        return [node.nproc_per_node for node in planned(cluster, inputs=inputs).nodes]

    assert nproc(8, 8) == [8, 8]
    assert nproc(0, 0) == [1, 1]
    assert nproc(8, 4) == [8, 4]


UNEVEN = """
hosts: [{host: a, nproc_per_node: 3}, {host: b, gpus: 2}, {host: a, gpus: 0, nproc_per_node: 1}, c]
"""


def test_nodes_may_have_different_numbers_of_processes() -> None:
    cluster = parse(UNEVEN.replace("host: a, nproc", "host: a, gpus: 3, nproc"), "hosts.yaml")
    inputs = PlanInputs(tuple(facts(gpus=gpus(4)) for _ in range(4)), ("i",) * 4)
    plan = planned(cluster, inputs=inputs)
    assert plan.world_size == 3 + 2 + 1 + 4
    assert [node.first_rank for node in plan.nodes] == [0, 3, 5, 6]
    assert [spec_of(plan, n)["nproc_per_node"] for n in range(4)] == [3, 2, 1, 4]
    assert [spec_of(plan, n)["first_rank"] for n in range(4)] == [0, 3, 5, 6]
    lines = [torchrun(plan, rank) for rank in range(4)]
    flags = [line[line.index("--nproc-per-node") + 1] for line in lines]
    assert flags == ["3", "2", "1", "4"]
    # node 0 and node 2 share the 16 cores of a
    threads = [node.container.env["OMP_NUM_THREADS"] for node in plan.nodes]
    assert threads == ["4", "8", "4", "4"]


def test_a_dry_run_knows_the_processes_that_the_file_sets() -> None:
    plan = planned(parse(UNEVEN, "hosts.yaml"))
    assert [node.nproc_per_node for node in plan.nodes] == [3, 2, 1, None]
    assert [node.first_rank for node in plan.nodes] == [0, 3, 5, 6]
    assert plan.world_size is None


def test_the_jobs_devices_limits_and_mounts_reach_the_container() -> None:
    job = (
        "{devices: [/dev/fuse], cap_add: [SYS_PTRACE], ulimits: {memlock: 5, nofile: 9}, "
        "tmpfs: {/fast: 1g}}"
    )
    cluster = parse(f"hosts: [a]\njob: {job}\n", "hosts.yaml")
    plan = planned(cluster, inputs=PlanInputs((facts(infiniband=("uverbs0",)),), ("i",)))
    container = plan.nodes[0].container
    assert container.devices == ("/dev/infiniband", "/dev/fuse")
    assert container.cap_add == ("IPC_LOCK", "SYS_PTRACE")
    assert container.ulimits == {"memlock": 5, "stack": 67108864, "nofile": 9}
    assert container.tmpfs == {"/fast": 2**30}
    shown = plan_text(plan)
    for line in ("tmpfs       /fast=1g", "/dev/fuse", "nofile=9"):
        assert line in shown


def test_without_a_container_a_dry_run_names_the_folders_on_the_host() -> None:
    job = "{engine: process, workdir: /me/code, dataset: /me/data}"
    cluster = parse(f"hosts: [a]\njob: {job}", "hosts.yaml")
    process = EngineTraits("process", in_container=False)
    plan = build_plan(cluster, process, LaunchOptions(), run_id="r1", owner="me")
    shown = plan_text(plan)
    assert "workdir       /me/code -> ~/.ddpctl/runs/r1/workspace\n" in shown
    assert "dataset       /me/data -> ~/.ddpctl/datasets/<digest>\n" in shown
    contained = plan_text(planned(replace(cluster, job=replace(cluster.job, engine="docker"))))
    assert "/me/code -> /workspace\n" in contained
    assert "/me/data -> /data (read-only)\n" in contained


def test_amd_gpus_reach_the_container_as_devices() -> None:
    amd = tuple(Gpu(index, "", "AMD MI300X", 1, "amd") for index in range(4))
    host = facts(gpus=amd, gpu_groups=(44, 109))
    text = "hosts: [{host: a, gpus: [1, 3]}, b, {host: c, gpus: 0}]"
    plan = planned(text, inputs=PlanInputs((host, host, facts()), ("i",) * 3))
    two, every, cpu = (node.container for node in plan.nodes)
    assert two.devices == every.devices == ("/dev/kfd", "/dev/dri")
    assert two.group_add == (44, 109)
    assert two.env["ROCR_VISIBLE_DEVICES"] == "1,3"
    assert every.env.keys().isdisjoint({"ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
    assert plan.nodes[1].nproc_per_node == 4
    assert (cpu.devices, cpu.group_add, cpu.gpu_vendor) == ((), (), "nvidia")


def test_all_leaves_out_the_gpu_of_a_processor() -> None:
    own = Gpu(0, "", "AMD raphael", 512, "amd", integrated=True)
    both = facts(gpus=(own, Gpu(1, "", "AMD navi31", 24576, "amd")))
    text = "hosts: [a, b, {host: c, gpus: [0]}]"
    plan = planned(text, inputs=PlanInputs((both, facts(gpus=(own,)), both), ("i",) * 3))
    card, cpu, named = (node.container for node in plan.nodes)
    assert (card.gpus, card.env["ROCR_VISIBLE_DEVICES"]) == ((1,), "1")
    assert (cpu.gpus, cpu.devices) == ((), ())
    assert (named.gpus, named.env["ROCR_VISIBLE_DEVICES"]) == ((0,), "0")
    assert [node.nproc_per_node for node in plan.nodes] == [1, 1, 1]


def roce(name: str, ip: str, index: int = 3, gbits: int = 400, **changes: Any) -> RdmaPort:
    gids = (Gid(index - 1, ip, "IB/RoCE v1"), Gid(index, ip, "RoCE v2"))
    port = RdmaPort(f"{name}:1", "ACTIVE", is_ethernet=True, gbits=gbits, gids=gids)
    return replace(port, **changes)


RAILS = (roce("mlx5_0", "10.0.0.1"), roce("mlx5_1", "10.0.1.1"))


@pytest.mark.parametrize(
    ("ports", "names", "expected"),
    [
        (RAILS, (), ("=mlx5_0:1,mlx5_1:1", "3")),
        ((RAILS[0], roce("mlx5_1", "10.0.1.1", state="DOWN")), (), ("=mlx5_0:1", "3")),
        ((RAILS[0], roce("mlx5_1", "", gids=())), (), ("=mlx5_0:1", "3")),  # without an address
        (RAILS, ("NCCL_IB_HCA",), (None, None)),  # the user's own
        (RAILS, ("NCCL_IB_GID_INDEX",), (None, None)),
        (RAILS[1:], (), (None, None)),  # another network is in use
        ((RAILS[0], roce("mlx5_1", "10.0.1.1", index=5)), (), (None, None)),
        ((RAILS[0], roce("mlx5_1", "", gbits=800, gids=())), (), (None, None)),
        ((RAILS[0], roce("mlx5_1", "", is_ethernet=False, gids=())), (), (None, None)),
        ((roce("mlx5_0", "10.0.0.1", gids=RAILS[0].gids[:1]),), (), (None, None)),  # version 1
    ],
)
def test_nccl_is_told_of_roce_where_the_address_in_use_is_on_it(
    ports: tuple[RdmaPort, ...], names: tuple[str, ...], expected: tuple[str | None, str | None]
) -> None:
    host = facts(infiniband=("uverbs0",), rdma_ports=ports)
    plan = planned("hosts: [a]", inputs=PlanInputs((host,), ("i",)), env_names=names)
    env = plan.nodes[0].container.env
    assert (env.get("NCCL_IB_HCA"), env.get("NCCL_IB_GID_INDEX")) == expected


def test_threads_are_shared_by_the_processes_of_a_machine() -> None:
    cluster = parse(
        "hosts: [{host: a, gpus: 0}, {host: a, gpus: 0}]\njob: {nproc_per_node: 2}", "h"
    )
    plan = planned(cluster, inputs=PlanInputs((facts(), facts()), ("i", "i")))
    assert plan.nodes[0].container.env["OMP_NUM_THREADS"] == "4"


def test_two_names_of_one_machine_share_its_cores() -> None:
    cluster = parse("hosts: [a, also-a, b]\njob: {nproc_per_node: 2}", "h")
    inputs = PlanInputs(tuple(facts(boot_id=boot) for boot in ("1", "1", "")), ("i",) * 3)
    threads = [n.container.env["OMP_NUM_THREADS"] for n in planned(cluster, inputs=inputs).nodes]
    assert threads == ["4", "4", "8"]


def test_resume_is_the_next_attempt_with_its_arguments() -> None:
    cluster = parse("hosts: [local]\njob: {command: [t.py], resume_args: [--resume]}", "h")
    plan = planned(cluster, attempt=2)
    assert torchrun(plan, 0)[-2:] == ["t.py", "--resume"]
    assert plan.nodes[0].container.env["DDPCTL_RESUME"] == "1"
    assert plan.nodes[0].place.control_dir.endswith("/nodes/0/attempt-2")


def test_no_python_is_torchruns_own_flag() -> None:
    cluster = parse("hosts: [local]\njob: {command: [--no-python, ./run.sh, -x]}", "h")
    line = torchrun(planned(cluster), 0)
    assert line[-4:] == ["--no-python", "--", "./run.sh", "-x"]


def test_auto_finds_ports_that_are_free() -> None:
    cluster = parse("hosts: [local]\njob: {master_port: auto}", "h")

    def ports(*listening: int) -> tuple[int | None, int | None]:
        inputs = PlanInputs((facts(listening=frozenset(listening)),), ("i",))
        plan = planned(cluster, inputs=inputs)
        return plan.master_port, plan.control_port

    master, control = ports()
    assert master != control
    assert master is not None
    assert ports(master)[0] == master + 1


@pytest.mark.parametrize(
    ("engine", "user", "names"),
    [
        (DOCKER, "host", {"HOME", "USER", "LOGNAME"}),
        (DOCKER, "root", set()),
        (EngineTraits("process", in_container=False), "host", set()),
    ],
)
def test_the_ssh_user_is_named_only_in_a_container_that_runs_as_that_user(
    engine: EngineTraits, user: str, names: set[str]
) -> None:
    cluster = parse(f"hosts: [local]\njob: {{user: {user}}}", "hosts.yaml")
    inputs = PlanInputs((facts(),), ("i",))
    plan = build_plan(cluster, engine, LaunchOptions(), run_id="r", owner="me", inputs=inputs)
    assert {"HOME", "USER", "LOGNAME"} & plan.nodes[0].container.env.keys() == names


def test_the_control_port_is_never_the_master_port() -> None:
    def plan(master_port: object) -> Plan:
        text = f"hosts: [local]\njob: {{master_port: {master_port}}}"
        return planned(text, inputs=PlanInputs((facts(),), ("i",)))

    first_choice = plan("auto").control_port
    assert plan(first_choice).control_port not in (None, first_choice)


def test_the_plan_does_not_hold_the_values_of_the_users_environment() -> None:
    plan = planned("hosts: [a]\njob: {env: {TOKEN: hunter2}}", env_names=("TOKEN",))
    assert "hunter2" not in repr(plan)
    assert plan.nodes[0].container.env_names == ("TOKEN",)


def test_different_runs_look_at_different_ports_first() -> None:
    assert len({free_port(f"run-{n}", frozenset()) for n in range(20)}) > 15


def test_a_loopback_address_among_others_is_refused() -> None:
    cluster = parse("hosts: [a, b]", "hosts.yaml")
    inputs = PlanInputs(
        (facts(ssh_server_ip="127.0.0.1"), facts(ssh_server_ip="10.0.0.2")), ("i", "i")
    )
    with pytest.raises(UsageError, match=r"a: node 0 .*127\.0\.0\.1.*internal_ip"):
        planned(cluster, inputs=inputs)


def test_this_machine_among_others_is_known_by_the_address_they_see() -> None:
    cluster: Cluster = parse("hosts: [local, b]", "hosts.yaml")
    inputs = PlanInputs((facts(ssh_server_ip=None, ssh_client_ip=None), facts()), ("i", "i"))
    assert planned(cluster, inputs=inputs).master_addr == "10.0.0.9"


def test_the_plan_prints_all_that_a_launch_will_do() -> None:
    options = LaunchOptions(
        name="n", hang_timeout=90.0, on_exit="mail me", detach=True, on_event="log it"
    )
    cluster = parse(TWO, "hosts.yaml")
    plan = planned(cluster, options, env_names=("NCCL_DEBUG",))
    rows = [list(row) for row in node_rows(plan, plan.nodes[0])]
    rows += [line.split("  ", 1) for line in plan_text(plan).splitlines() if "  " in line]
    rows = [[part.strip() for part in row] for row in rows]
    for row in (
        ["hang timeout", "1m30s"],
        ["on exit", "mail me"],
        ["on event", "log it"],
        ["detach", "yes"],
        ["max restarts", "0"],
        ["entrypoint", "python3 -I -S /ddpctl/supervisor.pyz /ddpctl/spec.json"],
        ["init", "yes"],
        ["network", "host"],
        ["ulimit", "memlock=-1"],
        ["cap-add", "<asked at launch>"],
        ["device", "<asked at launch>"],
        ["not shown", "NCCL_DEBUG"],
    ):
        assert row in rows
    document = plan_document(plan)
    assert (document["version"], document["engine"]) == (1, "docker")
    assert (document["image"], document["max_restarts"]) == ("ddpctl-trainer:latest", 0)
    assert "job" not in document
    assert document["options"]["hang_timeout"] == 90.0
    assert "WARN" not in str(document)


def test_a_dry_run_does_not_know_the_hosts_infiniband() -> None:
    container = planned("hosts: [a, b]").nodes[0].container
    assert (container.devices, container.cap_add) == ((), ())
    assert set(container.env_at_launch) == {
        "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
        "OMP_NUM_THREADS", "DDPCTL_RANK_CORES", "USER", "LOGNAME",
    }  # fmt: skip
    assert not set(container.env_at_launch) & set(container.env)
    mine = planned("hosts: [a]", env_names=("NCCL_IB_HCA", "USER")).nodes[0].container
    assert not {"NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "USER"} & set(mine.env_at_launch)
    shown = plan_text(planned("hosts: [a]\njob: {devices: [/dev/fuse]}"))
    assert "device      <asked at launch>  /dev/fuse\n" in shown


@pytest.mark.parametrize(
    ("command", "given", "settled"),
    [
        (("-m", "trainer", "--epochs", "3"), None, TRAINER_HANG_TIMEOUT),
        (("-m", "trainer"), 30.0, 30.0),
        (("-m", "trainer"), 0.0, 0.0),
        (("-m", "trainers"), None, 0.0),
        (("train.py", "-m", "trainer"), None, 0.0),
        (("train.py",), 20.0, 20.0),
    ],
)
def test_by_default_only_our_trainer_has_a_hang_timeout(
    command: tuple[str, ...], given: float | None, settled: float
) -> None:
    assert LaunchOptions(hang_timeout=given).settled(command).hang_timeout == settled


def test_for_the_collectives_check_nodes_of_one_machine_count_as_two() -> None:
    def host_ids(text: str) -> list[str | None]:
        nodes = planned(text, LaunchOptions(network_only=True)).nodes
        return [node.container.env.get("NCCL_HOSTID") for node in nodes]

    assert host_ids("hosts: [{host: a, gpus: 0}, {host: a, gpus: 0}]") == ["ddpctl-0", "ddpctl-1"]
    assert host_ids("hosts: [a, b]") == [None, None]


@pytest.mark.parametrize("odd", ["nan", "inf", "-1"])
def test_a_hang_timeout_that_is_no_time_is_refused(odd: str) -> None:
    match = r"^hang_timeout \S+: not a duration; pass a number of seconds, or 0 for no limit$"
    with pytest.raises(UsageError, match=match):
        LaunchOptions(hang_timeout=float(odd))


@pytest.mark.parametrize(
    ("subnets", "count", "picked"),
    [
        (["a", "b", "b", "a"], 2, [0, 3]),
        (["a", "b", "b"], 2, [1, 2]),
        (["a", "b", "b", "c"], 3, [0, 1, 2]),
        (["a"], 1, [0]),
    ],
)
def test_hosts_of_one_subnet_are_taken_together(
    subnets: list[str], count: int, picked: list[int]
) -> None:
    assert same_subnet_first(subnets, count) == picked


def test_a_node_is_labeled_with_its_gpus_and_the_time_it_asked_for_them() -> None:
    odd = Gpu(1, "[N/A]", "GB10", None)
    host = facts(gpus=(*gpus(1), odd))
    plan = planned("hosts: [gpu1]", inputs=PlanInputs((host,), ("i",)), since=12.3456)
    labels = plan.nodes[0].container.labels
    assert (labels["io.ddpctl.gpus"], labels["io.ddpctl.since"]) == ("GPU-0,gpu-1", "12.346")
    assert plan.key == (12.346, "r")  # as others read it, else both of two could go first
    assert plan.resources(plan.nodes[0]) == {"GPU-0", "gpu-1", f"port {plan.master_port}"}


CORES = (frozenset(range(8)), frozenset(range(8, 16)))


def numa_host(**changes: Any) -> Facts:
    """A host with two NUMA nodes and two GPUs at each."""
    near = [replace(gpu, cores=CORES[gpu.index // 2]) for gpu in gpus(4)]
    return facts(gpus=tuple(near), all_cores=frozenset(range(16)), boot_id="b", **changes)


def rank_cores_of(text: str, *hosts: Facts, env_names: tuple[str, ...] = ()) -> list[str | None]:
    inputs = PlanInputs(hosts, ("i",) * len(hosts))
    plan = planned(text, inputs=inputs, env_names=env_names)
    return [node.container.env.get("DDPCTL_RANK_CORES") for node in plan.nodes]


def test_ranks_run_on_the_cores_next_to_their_gpus() -> None:
    assert rank_cores_of("hosts: [a]", numa_host()) == ["0-7 0-7 8-15 8-15"]
    halves = "hosts: [{host: a, gpus: [0, 2]}, {host: a, gpus: [1, 3]}]"
    assert rank_cores_of(halves, numa_host(), numa_host()) == ["0-7 8-15"] * 2


@pytest.mark.parametrize(
    ("text", "host", "env_names"),
    [
        ("{hosts: [a], job: {numa: off}}", numa_host(), ()),
        ("{hosts: [a], job: {torchrun_args: [--numa_binding=node]}}", numa_host(), ()),
        ("hosts: [a]", numa_host(), ("CUDA_VISIBLE_DEVICES",)),
        ("hosts: [{host: a, gpus: [0, 1]}]", numa_host(), ()),  # others may use the rest
        ("{hosts: [a], job: {nproc_per_node: 2}}", numa_host(), ()),  # two GPUs per rank
        ("hosts: [{host: a, gpus: 0}]", numa_host(), ()),
        ("hosts: [{host: a, gpus: [3, 2, 1, 0]}]", numa_host(), ()),
        ("hosts: [a]", facts(gpus=gpus(4), all_cores=CORES[0]), ()),  # nothing is known
        ("hosts: [a]", replace(numa_host(), all_cores=frozenset(range(32))), ()),  # idle cores
        ("hosts: [a]", replace(numa_host(), all_cores=CORES[0]), ()),
        ("hosts: [a]", replace(numa_host(), gpus=numa_host().gpus[:3]), ()),  # uneven
        ("hosts: [a]", replace(numa_host(), gpus=numa_host().gpus[:2]), ()),  # one NUMA node
        (
            "hosts: [a]",
            replace(
                numa_host(), gpus=(replace(numa_host().gpus[0], name="L4"), *numa_host().gpus[1:])
            ),
            (),
        ),
    ],
)
def test_ranks_whose_cores_are_unclear_run_anywhere(
    text: str, host: Facts, env_names: tuple[str, ...]
) -> None:
    assert rank_cores_of(text, host, env_names=env_names) == [None]


def test_a_dry_run_says_that_the_cores_of_ranks_are_found_out_at_launch() -> None:
    shown = plan_text(planned("{hosts: [a, {host: b, gpus: 0}], job: {numa: auto}}"))
    assert shown.count("at launch DDPCTL_RANK_CORES") == 1


def test_a_dry_run_of_many_nodes_fits_on_a_screen_and_its_torchrun_line_can_be_pasted() -> None:
    text = (
        "hosts: [{host: 'gpu[1-16]', gpus: 8}, {host: old, gpus: 4}]\njob: {command: [t.py, 'a b']}"
    )
    shown = plan_text(planned(text)).splitlines()
    assert len(shown) < 45 + 17 and max(map(len, shown)) < 140
    assert "   3  gpu4   processes 8, gpus 0,1,2,3,4,5,6,7" in shown
    assert "  16  old    processes 4, gpus 0,1,2,3" in shown
    assert shown[-1].strip() == (
        "torchrun --nnodes 17 --node-rank 0 --nproc-per-node 8 --master-addr gpu1 --master-port 29500 "
        "--max-restarts 0 -- t.py 'a b'"
    )


def test_torchrun_gets_the_flags_of_the_job() -> None:
    plan = planned("{hosts: [a], job: {command: [x.py], torchrun_args: [--role, a]}}")
    assert torchrun(plan, 0)[-5:] == ["0", "--role", "a", "--", "x.py"]


def test_a_home_folder_may_have_a_folder_named_runs_above_it() -> None:
    job = Job(engine="process", requirements="/r.txt")
    processes = EngineTraits("process", in_container=False)
    inputs = PlanInputs((facts(home="/home/runs/ann"),), image_digest="d1")
    cluster = Cluster((Host("a"),), job)
    plan = build_plan(cluster, processes, LaunchOptions(), run_id="r", owner="me", inputs=inputs)
    python = "/home/runs/ann/.ddpctl/venvs/d1/bin/python"
    assert plan.nodes[0].container.entrypoint[0] == python


def test_labels_that_ddpctl_could_not_read_again_are_not_written() -> None:
    with pytest.raises(CommandFailed, match=r"gpu1: .* since '?999999999999"):
        planned("hosts: [gpu1]", inputs=PlanInputs((facts(),)), since=999999999999.039)


def test_a_container_has_few_privileges_unless_the_job_asks_for_more() -> None:
    plan = planned("hosts: [a]")
    container = plan.nodes[0].container
    assert (container.pids_limit, container.new_privileges) == (32768, False)
    assert {"NET_RAW", "MKNOD", "SETPCAP"} <= {*container.cap_drop}
    shown = plan_text(plan)
    for line in ("NET_RAW", "pids-limit  32768", "security    no-new-privileges"):
        assert line in shown
    plan = planned("{hosts: [a], job: {cap_add: [NET_RAW], new_privileges: allow, pids_limit: -1}}")
    container = plan.nodes[0].container
    assert "NET_RAW" not in container.cap_drop and "MKNOD" in container.cap_drop
    assert (container.pids_limit, container.new_privileges) == (-1, True)
    assert "no-new-privileges" not in plan_text(plan)
    everything = planned("{hosts: [a], job: {cap_add: [ALL]}}").nodes[0].container
    assert everything.cap_drop == ()
