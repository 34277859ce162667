"""The Docker engine: each node of a run is one labelled container of its host's Docker Engine."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import docker.errors
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from launcher.engines.base import NodeStatus
from launcher.engines.docker_client import docker_of
from launcher.errors import CommandFailed, DockerUnavailable
from launcher.plan.plan import CONTROL_DIR, LABEL, Container, NodePlan, Place
from launcher.plan.supervisor_spec import BUNDLE, ISOLATED
from launcher.ssh.node import Node

ENGINE_LOG = {"max-size": "1m", "max-file": "5"}  # for people: what is followed is the journal
STACK_BYTES = 67108864  # what NVIDIA's own images ask for
SUPERVISOR = ("python3", *ISOLATED, f"{CONTROL_DIR}/{BUNDLE}", f"{CONTROL_DIR}/spec.json")


class Containers:
    """Satisfies launcher.engines.base.Engine."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def create(self, node: NodePlan, secrets: Mapping[str, str]) -> None:
        client = docker_of(self.node)
        security = client.about.get("SecurityOptions") or []
        spec = _create_arguments(node.container, secrets, security)
        try:
            client.api.create_container(**spec)
        except docker.errors.APIError as error:
            raise _failed(self.node.name, "create the container", error) from None

    def start(self, node: NodePlan) -> None:
        try:
            docker_of(self.node).api.start(node.container.name)
        except docker.errors.APIError as error:
            raise _failed(self.node.name, "start the container", error) from None

    def wait(self, place: Place) -> NodeStatus:
        name = place.container
        try:
            docker_of(self.node).api.wait(name, timeout=None)
            return self._status(docker_of(self.node).api.inspect_container(name))
        except docker.errors.NotFound:
            return NodeStatus(
                run_id="",
                name="",
                attempt=0,
                node_rank=place.node_rank,
                nnodes=0,
                owner="",
                host=self.node.name,
                handle=name,
                state="dead",
                exit_code=None,
                error="the container was removed",
            )
        except docker.errors.APIError as error:
            raise DockerUnavailable(f"{self.node.name}: {error.explanation or error}") from None

    def list(self, run_id: str | None = None) -> list[NodeStatus]:
        label = f"{LABEL}.run-id" + (f"={run_id}" if run_id else "")
        api = docker_of(self.node).api
        found = []
        for row in api.containers(all=True, filters={"label": [label]}):
            try:
                found.append(self._status(api.inspect_container(row["Id"])))
            except docker.errors.NotFound:
                continue  # removed since it was listed
        return found

    def mounting(self, folder: str) -> tuple[NodeStatus, ...]:
        """Containers of ours, of runs and of checks, that mount something below `folder`."""
        api = docker_of(self.node).api
        found = []
        for label in (f"{LABEL}.run-id", f"{LABEL}.check"):
            for row in api.containers(all=True, filters={"label": [label]}):
                sources = [str(mount.get("Source", "")) for mount in row.get("Mounts", ())]
                if not any(source.startswith(f"{folder}/") for source in sources):
                    continue
                try:
                    found.append(self._status(api.inspect_container(row["Id"])))
                except docker.errors.NotFound:
                    continue  # removed since it was listed
        return tuple(found)

    def stop(self, status: NodeStatus, timeout: float) -> None:
        api = docker_of(self.node).api
        try:
            if status.state == "paused":
                api.unpause(status.handle)  # a paused process cannot answer SIGTERM
            api.stop(status.handle, timeout=int(timeout))
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            raise _failed(self.node.name, "stop the container", error) from None

    def remove(self, status: NodeStatus) -> None:
        try:
            docker_of(self.node).api.remove_container(status.handle, force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if error.status_code != 409:  # another client is removing it
                raise _failed(self.node.name, "remove the container", error) from None

    def _status(self, inspected: dict[str, Any]) -> NodeStatus:
        labels = inspected["Config"]["Labels"]
        state = inspected["State"]
        gone = state["Status"] in ("exited", "dead")
        return NodeStatus(
            run_id=labels.get(f"{LABEL}.run-id", ""),
            name=labels.get(f"{LABEL}.name", ""),
            attempt=int(labels.get(f"{LABEL}.attempt", 1)),
            node_rank=int(labels.get(f"{LABEL}.node-rank", 0)),
            nnodes=int(labels.get(f"{LABEL}.nnodes", 0)),
            owner=labels.get(f"{LABEL}.owner", ""),
            host=self.node.name,
            handle=inspected["Name"].lstrip("/"),
            state=state["Status"],
            exit_code=state["ExitCode"] if gone else None,
            oom_killed=bool(state.get("OOMKilled")),
            started=_unix(state.get("StartedAt")),
            ended=_unix(state.get("FinishedAt")) if gone else None,
            error=state.get("Error", ""),
            image=inspected["Config"]["Image"],
            master_port=labels.get(f"{LABEL}.master-port", ""),
        )


def _create_arguments(
    container: Container, secrets: Mapping[str, str], security: list[str]
) -> dict[str, Any]:
    """The Engine API's own words for a Container."""
    rootless = any("rootless" in option for option in security)
    label = ",z" if any("selinux" in option for option in security) else ""
    ours = {CONTROL_DIR, "/data", "/workspace", "/checkpoints", "/output"}
    binds = [
        f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}{label}"
        for mount in container.mounts
        if mount.target in ours
    ]
    theirs = [
        Mount(mount.target, mount.source, type="bind", read_only=mount.read_only)
        for mount in container.mounts
        if mount.target not in ours
    ]
    code = any(mount.target == "/workspace" for mount in container.mounts)
    return {
        "name": container.name,
        "image": container.image,
        "command": [],
        "entrypoint": list(SUPERVISOR),
        "environment": {**container.env, **secrets},
        "labels": dict(container.labels),
        # inside a rootless engine root is the SSH user, and its own uid is somebody else
        "user": "0:0" if rootless else container.user,
        "working_dir": "/workspace" if code else None,
        "stop_timeout": container.stop_timeout,
        "host_config": {
            "Binds": binds,
            "Mounts": theirs,
            "NetworkMode": "host",
            "Init": True,
            "ShmSize": container.shm_size,
            "LogConfig": LogConfig(type="json-file", config=ENGINE_LOG),
            "Ulimits": [
                Ulimit(name="memlock", soft=-1, hard=-1),
                Ulimit(name="stack", soft=STACK_BYTES, hard=STACK_BYTES),
            ]
            if container.infiniband or container.gpus
            else [],
            "Devices": _infiniband() if container.infiniband else [],
            "CapAdd": ["IPC_LOCK"] if container.infiniband else [],
            "DeviceRequests": _gpu_request(container.gpus),
        },
    }


def _infiniband() -> list[dict[str, str]]:
    path = "/dev/infiniband"
    return [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}]


def _gpu_request(gpus: str | tuple[int, ...]) -> list[DeviceRequest]:
    if not gpus:
        return []
    if gpus == "all":
        return [DeviceRequest(driver="", count=-1, capabilities=[["gpu"]])]
    ids = [str(gpu) for gpu in gpus]
    return [DeviceRequest(driver="", device_ids=ids, capabilities=[["gpu"]])]


def _unix(text: str | None) -> float | None:
    """Docker's RFC 3339 with nanoseconds; year 1 stands for never."""
    if not text or text.startswith("0001"):
        return None
    seconds, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.datetime.fromisoformat(seconds).replace(tzinfo=datetime.UTC)
    digits = "".join(ch for ch in fraction.split("+")[0].split("-")[0] if ch.isdigit())[:6]
    return moment.timestamp() + (float(f"0.{digits}") if digits else 0.0)


REMEDIES = (
    ("could not select device driver", "install the NVIDIA container toolkit on that host"),
    ("No such image", "push it: `ddpctl push HOSTS --image`"),
    ("is already in use", "another start of the same run is under way, or `ddpctl kill` it first"),
    ("bind source path does not exist", "make the folder on that host or mend job.mounts"),
    ("no space left on device", "free space under Docker's data root on that host"),
    ("executable file not found", "the image needs python3 on its PATH"),
)


def _failed(host: str, act: str, error: docker.errors.APIError) -> CommandFailed:
    said = " ".join(str(error.explanation or error).split())
    remedy = next((text for sign, text in REMEDIES if sign in said), "")
    return CommandFailed(f"{host}: could not {act}: {said}" + (f"; {remedy}" if remedy else ""))
