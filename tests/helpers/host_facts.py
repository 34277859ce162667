"""Facts about a healthy host."""

from __future__ import annotations

import dataclasses

from launcher.facts.facts import Facts
from launcher.facts.gpus import Gpu
from launcher.facts.network import Address


def facts(**changes: object) -> Facts:
    one = Facts(
        user="ann",
        uid=1000,
        gid=1001,
        home="/home/ann",
        hostname="gpu1",
        kernel="Linux",
        cores=16,
        ssh_server_ip="10.0.0.1",
        ssh_client_ip="10.0.0.9",
        addresses=(Address("10.0.0.1", "ib0"), Address("172.17.0.1", "docker0")),
        listening=frozenset({22}),
        infiniband=(),
        gpus=(),
        gpu_error=None,
    )
    return dataclasses.replace(one, **changes)  # type: ignore[arg-type]


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{index}", "H100", 81559) for index in range(count))
