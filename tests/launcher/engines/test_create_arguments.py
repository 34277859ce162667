"""A Container of the plan in the words of the Docker Engine API."""

from __future__ import annotations

from typing import Any

from launcher.engines.docker import create_arguments
from launcher.plan.plan import Container


def host_config(gpus: str | tuple[int, ...] = (), **fields: Any) -> dict[str, Any]:
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
    config: dict[str, Any] = create_arguments(container, {}, [])["host_config"]
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
