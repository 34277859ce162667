"""The Docker engine: each node of a run is a labeled container on its host."""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import docker.errors
from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from ..budget import Budget
from ..errors import CommandFailed, CommandTimeout, DdpctlError
from ..plan.labels import LABEL
from ..plan.plan import Container, EngineTraits, NodePlan, Place, container_name, name_prefix
from ..run_id import MADE
from ..ssh.script_files import load_script
from ..ssh.stream import Stream
from ..text import duration
from .base import Engine, NodeListing
from .command import engine_command
from .docker_client import Api, docker_of
from .engine_info import Capabilities, EngineInfo, parse_engine
from .image_store import ImageStore
from .status import (
    ContainerState,
    NodeStatus,
    array,
    inspected,
    mapping,
    read_status,
    seen_in_list,
    unix,
)

RUN_LABEL = f"{LABEL}.run-id"
NODE_NAME = re.compile(rf"{name_prefix(None)}({MADE.pattern})-\d{{1,6}}")  # see container_name
PYTHON_IN_IMAGE = (
    "run --pull=never --rm -i --network host --security-opt no-new-privileges --entrypoint python3"
).split()
REMOVE_AT_END = load_script(__file__, "remove_at_end.sh")
MISSING_PATHS = load_script(__file__, "missing_paths.sh")
CONFLICT = 409  # the Engine API's status if a container is running or being removed
PODMAN_CONFLICT = "container state improper"  # Podman's message in that case, with status 500
REMOVE_TIMEOUT = 30.0  # seconds to remove a test container
INSPECT_TIMEOUT = 300.0  # seconds for all containers of runs together
LONGEST_WAIT = 7 * 86400  # seconds; for longer runs, the wait is repeated
ENGINE_LOG = {"max-size": "1m", "max-file": "5"}  # for `docker logs`; ddpctl reads the journal


class Docker(Engine):
    traits: ClassVar[EngineTraits] = EngineTraits("docker", in_container=True)

    def is_installed(self) -> bool:
        return self.connection.run(engine_command("--version")).code == 0

    @property
    def _api(self) -> Api:
        """The host's Engine API. The first use connects to it over SSH."""
        return docker_of(self.connection)

    # Nodes of runs

    def create(self, node: NodePlan, user_env: Mapping[str, str]) -> None:
        self._create(node.container, user_env, "create the container")

    def start(self, node: NodePlan, user_env: Mapping[str, str]) -> None:
        with self._api.explained("start the container"):
            self._api.start(node.container.name)

    def wait(self, place: Place) -> NodeStatus:
        with self._api.explained("wait for the container"):
            try:
                self._api.wait(place.container, timeout=LONGEST_WAIT)
                return inspected(self._api.inspect_container(place.container))
            except docker.errors.NotFound:
                return NodeStatus(state=ContainerState.DEAD, error="the container was removed")

    def listing(self, run_id: str | None = None) -> NodeListing:
        unreadable = []
        for row in self._containers(name=name_prefix(run_id)):
            name = _name(row)
            match = NODE_NAME.fullmatch(name)
            if match and run_id in (None, match[1]):
                status = self._read(name, row, seen_in_list(row))
                if not status or container_name(status.run_id, status.node_rank) != name:
                    unreadable.append(name)
        return NodeListing(self.nodes(run_id), unreadable)

    def nodes(self, run_id: str | None = None) -> Sequence[NodeStatus]:
        label = RUN_LABEL + (f"={run_id}" if run_id else "")
        listed = self._listed(self._containers(label=label))
        return [*(self.details(listed) if run_id else listed), *self._tickets(label)]

    def details(self, statuses: Sequence[NodeStatus]) -> Sequence[NodeStatus]:
        budget = Budget("`docker inspect`", self.connection.name, sys.maxsize, INSPECT_TIMEOUT)
        detailed = []
        for status in statuses:
            budget.take(0)
            if not status.container:
                detailed.append(status)
                continue
            with contextlib.suppress(docker.errors.NotFound):  # removed since it was listed
                answer = mapping(self._api.inspect_container(status.container))
                detailed.append(inspected(answer, status))
        return detailed

    def create_ticket(self, name: str, labels: Mapping[str, str]) -> None:
        with self._api.explained("wait in line"):
            self._api.create_volume(name, labels=dict(labels))

    def _tickets(self, label: str) -> Iterator[NodeStatus]:
        """Yield the tickets: volumes, which have labels and a creation time but need no image."""
        answer = mapping(self._api.volumes(filters={"label": [label]}))
        for row in filter(mapping, array(answer.get("Volumes"))):
            about = NodeStatus(state=ContainerState.WAITING, created=unix(row.get("CreatedAt")))
            if status := self._read(str(row.get("Name")), row, about):
                yield status

    def withdraw(self, status: NodeStatus) -> bool:
        try:  # without `force`: if a start and a removal coincide, the engine must refuse one
            if status.is_ticket:
                self._api.remove_volume(status.handle)
            else:
                self._api.remove_container(status.handle, v=True)
        except docker.errors.NotFound:
            return True
        except docker.errors.APIError as error:
            if error.status_code != CONFLICT and PODMAN_CONFLICT not in str(error.explanation):
                raise
            return False
        return True

    def using(self, folder: str) -> Sequence[NodeStatus]:
        rows = self._containers(label=RUN_LABEL)
        below = (r for r in rows if any(p.startswith(f"{folder}/") for p in _mounted(r)))
        return [*self._listed(below), *self._tickets(RUN_LABEL)]

    def exec(self, status: NodeStatus, command: Sequence[str], *, stdin: bool, tty: bool) -> Stream:
        flags = ["-i"] * stdin + ["-t"] * tty
        # without Podman's warnings about the host, which are not output of the command
        words = ("--log-level=error", "exec", *flags, status.handle, *command)
        return self.connection.open(engine_command(*words), stdin=stdin, tty=tty)

    def stop(self, status: NodeStatus, timeout: float) -> None:
        if status.is_ticket:
            return
        with (
            self._api.explained("stop the container"),
            contextlib.suppress(docker.errors.NotFound),
        ):
            if status.state is ContainerState.PAUSED:
                self._api.unpause(status.handle)  # a paused process cannot handle SIGTERM
            self._api.stop(status.handle, timeout=int(timeout))

    def remove(self, status: NodeStatus) -> None:
        if status.is_ticket:
            self.withdraw(status)
            return
        with self._api.explained("remove the container"):
            try:
                self._api.remove_container(status.handle, force=True, v=True)
            except docker.errors.APIError as error:
                if error.status_code not in (404, CONFLICT):  # gone, or being removed elsewhere
                    raise

    def _containers(self, **filter: str) -> Sequence[dict[str, Any]]:
        filters = {key: [value] for key, value in filter.items()}
        rows = self._api.containers(all=True, filters=filters) or []
        if not all(isinstance(mapping(row).get("Id"), str) for row in rows):
            raise ValueError("the engine lists something other than containers")
        return cast(Sequence[dict[str, Any]], rows)

    def _listed(self, rows: Iterable[Mapping[str, Any]]) -> list[NodeStatus]:
        read = (self._read(_name(row), row, seen_in_list(row)) for row in rows)
        return [*filter(None, read)]

    def _read(self, name: str, row: Mapping[str, Any], about: NodeStatus) -> NodeStatus | None:
        return read_status(self.connection.name, name, row.get("Labels"), about, self._api.clock)

    # Containers and images

    def mounted(self) -> frozenset[str]:
        rows = self._containers(label=RUN_LABEL)
        return frozenset(path for row in rows for path in _mounted(row))

    def engine_info(self, image: str) -> EngineInfo:
        with self._api.explained("inspect the engine"):
            about = self._api.about
        return parse_engine(about, ImageStore(self.connection).inspect(image))

    def python_in_image(self, image: str) -> Sequence[str]:
        return engine_command(*PYTHON_IN_IMAGE, image)

    def run_to_end(self, container: Container, folder: str, timeout: int) -> str:
        with (
            self._removed_at_end(container.name, folder),
            self._api.explained("run a test container"),
        ):
            # like a run's folders, writable by users other than the SSH user
            self.connection.run(["mkdir", "-p", "-m", "0777", folder])
            self._create(container, {}, "run a test container")
            self._api.start(container.name)
            try:
                self._api.wait(container.name, timeout=timeout)
            except CommandTimeout:
                raise CommandTimeout(
                    f"a test container did not end within {duration(timeout)}",
                    "check the output of `docker ps` and the load on that host",
                    host=self.connection.name,
                ) from None
            output = bytes(self._api.logs(container.name, stdout=True, stderr=True))
        return output.decode(errors="replace")

    @contextlib.contextmanager
    def _removed_at_end(self, name: str, folder: str) -> Iterator[None]:
        """Context manager: the host itself removes a container and a folder at the end.

        It does so even if this machine or the connection dies, so Ctrl-C need not wait.
        """
        with self.connection.open_script(REMOVE_AT_END, name, folder) as remover:
            try:
                yield
            finally:
                with contextlib.suppress(OSError, DdpctlError):
                    remover.write(b"ended\n", REMOVE_TIMEOUT)
                    remover.wait(REMOVE_TIMEOUT)

    def _create(self, container: Container, user_env: Mapping[str, str], action: str) -> None:
        can = self._api.can
        sources = [mount.source for mount in container.mounts if mount.from_job]
        if can.creates_missing_sources and sources:
            missing = self.connection.script(MISSING_PATHS, *sources).stdout.splitlines()
            if missing:
                first = missing[0].decode(errors="replace")
                raise CommandFailed(
                    f"could not {action}: {first} does not exist",
                    "create it on that host, or fix job.mounts",
                    host=self.connection.name,
                )
        with self._api.explained(action):
            self._api.create_container(**create_arguments(container, user_env, can))


def create_arguments(
    container: Container, user_env: Mapping[str, str], can: Capabilities
) -> dict[str, Any]:
    """Translate a Container of the plan into arguments for the Engine API."""
    relabel = ",z" if can.relabels else ""
    groups = [str(group) for group in container.group_add]
    return {
        "name": container.name,
        "image": container.image,
        "command": list(container.command),
        "entrypoint": list(container.entrypoint),
        "environment": {**container.env, **user_env},
        "labels": dict(container.labels),
        "user": "0:0" if can.rootless else container.user,
        "working_dir": container.working_dir,
        "stop_timeout": container.stop_timeout,
        "host_config": {
            "Binds": [
                f"{m.source}:{m.target}:{'ro' if m.read_only else 'rw'}{relabel}"
                for m in container.mounts
                if not m.from_job
            ],
            "Mounts": [
                Mount(m.target, m.source, type="bind", read_only=m.read_only)
                for m in container.mounts
                if m.from_job  # with a bind, Docker would create a missing folder, owned by root
            ],
            "NetworkMode": container.network,
            "Init": container.init,
            "ShmSize": container.shm_size,
            "LogConfig": LogConfig(type="json-file", config=ENGINE_LOG),
            "Ulimits": [Ulimit(name=n, soft=v, hard=v) for n, v in container.ulimits.items()],
            "Tmpfs": {folder: f"size={size}" for folder, size in container.tmpfs.items()},
            "Devices": [_device(device) for device in container.devices],
            "CapAdd": list(container.cap_add),
            "GroupAdd": ["keep-groups"] if groups and can.keeps_groups else groups,
            "CapDrop": list(container.cap_drop),
            "SecurityOpt": [] if container.new_privileges else ["no-new-privileges"],
            "PidsLimit": container.pids_limit,
            "DeviceRequests": _gpu_request(container, can),
        },
    }


def _device(text: str) -> dict[str, str]:
    """Parse a device, `/dev/a[:/dev/b][:rwm]`, in the same way as `docker run --device`."""
    host, *rest = text.split(":")
    inside = next((part for part in rest if part.startswith("/")), host)
    permissions = next((part for part in rest if not part.startswith("/")), "rwm")
    return {"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": permissions}


def _gpu_request(container: Container, can: Capabilities) -> list[DeviceRequest]:
    gpus = container.gpus
    if not gpus or container.gpu_vendor != "nvidia":
        return []
    ids = [gpus] if gpus == "all" else [str(gpu) for gpu in gpus]
    if can.gpus == "cdi":
        return [DeviceRequest(driver="cdi", device_ids=[f"nvidia.com/gpu={gpu}" for gpu in ids])]
    if gpus == "all":
        return [DeviceRequest(driver="", count=-1, capabilities=[["gpu"]])]
    return [DeviceRequest(driver="", device_ids=ids, capabilities=[["gpu"]])]


def _name(row: Mapping[str, Any]) -> str:
    """Return a container's own name. Links from other containers add names such as /other/alias."""
    own = [name for name in array(row.get("Names")) if isinstance(name, str)]
    return min(own, key=len).lstrip("/") if own else str(row["Id"])


def _mounted(row: Mapping[str, Any]) -> list[str]:
    return [str(mapping(mount).get("Source", "")) for mount in array(row.get("Mounts"))]
