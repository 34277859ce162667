"""A Container of the plan in the words of the Docker Engine API."""

from __future__ import annotations

from typing import Any

from launcher.engines.docker import create_arguments
from launcher.engines.engine_info import Capabilities, parse_capabilities
from launcher.plan.plan import Container

DOCKER = Capabilities()
PODMAN = parse_capabilities(
    {"BuildahVersion": "1.39.3", "ServerVersion": "5.4.2", "SecurityOptions": ["name=rootless"]}
)


def host_config(
    gpus: str | tuple[int, ...] = (), can: Capabilities = DOCKER, **fields: Any
) -> dict[str, Any]:
    container = Container(
        name="c",
        image="i",
        entrypoint=(),
        env={},
        labels={},
        mounts=(),
        gpus=gpus,
        user="0:0",
        shm_size=1,
        stop_timeout=1,
        **fields,
    )
    config: dict[str, Any] = create_arguments(container, {}, can)["host_config"]
    return config


def test_devices_as_docker_run_takes_them() -> None:
    devices = host_config(devices=("/dev/a", "/dev/b:/dev/c", "/dev/d:r", "/dev/e:/dev/f:rw"))
    assert [tuple(device.values()) for device in devices["Devices"]] == [
        ("/dev/a", "/dev/a", "rwm"),
        ("/dev/b", "/dev/c", "rwm"),
        ("/dev/d", "/dev/d", "r"),
        ("/dev/e", "/dev/f", "rw"),
    ]


def test_limits_capabilities_and_folders_in_memory() -> None:
    config = host_config(ulimits={"nofile": 9}, cap_add=("SYS_PTRACE",), tmpfs={"/fast": 1024})
    assert config["Ulimits"] == [{"Name": "nofile", "Soft": 9, "Hard": 9}]
    assert config["CapAdd"] == ["SYS_PTRACE"]
    assert config["Tmpfs"] == {"/fast": "size=1024"}


def test_only_nvidia_gpus_are_asked_of_the_engine() -> None:
    amd = host_config("all", gpu_vendor="amd", group_add=(44, 109), devices=("/dev/kfd",))
    assert (amd["DeviceRequests"], amd["GroupAdd"]) == ([], ["44", "109"])
    (request,) = host_config((0, 2))["DeviceRequests"]
    assert request["DeviceIDs"] == ["0", "2"]


def test_podman_gets_gpus_by_their_cdi_names() -> None:
    (request,) = host_config((0, 2), PODMAN)["DeviceRequests"]
    assert (request["Driver"], request["DeviceIDs"]) == (
        "cdi",
        ["nvidia.com/gpu=0", "nvidia.com/gpu=2"],
    )
    (request,) = host_config("all", PODMAN)["DeviceRequests"]
    assert request["DeviceIDs"] == ["nvidia.com/gpu=all"]


def test_rootless_podman_keeps_the_groups_that_may_use_amd_gpus() -> None:
    assert host_config("all", PODMAN, gpu_vendor="amd", group_add=(44,))["GroupAdd"] == [
        "keep-groups"
    ]
    assert host_config((), PODMAN)["GroupAdd"] == []


def test_a_container_cannot_gain_privileges_and_keeps_few() -> None:
    config = host_config(cap_drop=("NET_RAW",), pids_limit=32768)
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert (config["CapDrop"], config["PidsLimit"]) == (["NET_RAW"], 32768)
    assert host_config(new_privileges=True)["SecurityOpt"] == []


def test_capabilities_come_from_the_engines_own_description() -> None:
    assert (PODMAN.product, PODMAN.version, PODMAN.rootless) == ("Podman", (5, 4), True)
    assert parse_capabilities({"BuildahVersion": "1", "ServerVersion": "5.3.9"}).gpus == "none"
    docker = parse_capabilities({"ServerVersion": "28.2.2", "SecurityOptions": ["name=selinux"]})
    assert docker == Capabilities(version=(28, 2), relabels=True)
    assert parse_capabilities({"ServerVersion": None, "SecurityOptions": 7}) == Capabilities()
