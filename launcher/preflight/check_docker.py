"""Check the container engine, the job's image, and leftovers of earlier runs."""

from collections.abc import Iterator
from statistics import mode

from ..engines.status import ContainerState
from ..hosts import Job
from .findings import Finding, failure, failure_of, warning
from .fleet import Fleet
from .machine import Machine

SLOW_STORAGE = ("vfs", "devicemapper")
GPUS_BY_CDI = (29, 0)  # earlier versions of Docker add GPUs without telling systemd
# `uname -m` and images use different names for the same processors.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


def check_engine(machine: Machine, _: Fleet) -> Iterator[Finding]:
    """Check that the engine answers and is recent enough, and that rootless Podman is set up."""
    engine, user = machine.engine, machine.facts.user
    if machine.engine_error:
        yield failure_of(machine.engine_error)
    if engine is None:
        return
    can = engine.can
    if can.version and can.version < can.oldest:
        what = f"{can.product} {engine.version} is too old"
        yield failure(what, f"install {can.upgrade} or newer on that host")
    if engine.storage in SLOW_STORAGE:
        what = f"{can.product} uses the {engine.storage} storage driver, which copies every layer"
        yield warning(what, f"set overlay2 or fuse-overlayfs in {can.storage_file} on that host")
    by_cdi = can.gpus == "cdi" or (machine.details.cdi and can.version >= GPUS_BY_CDI)
    if engine.cgroup_driver == "systemd" and machine.gpu_states and not by_cdi:
        what = "containers lose their GPUs when systemd reloads, for example during an update"
        remedy = (
            'on that host, set "exec-opts": ["native.cgroupdriver=cgroupfs"] in '
            "/etc/docker/daemon.json and restart Docker, or use Docker 29 or newer with a CDI specification"
        )
        yield warning(what, remedy)
    if can.needs_linger and not machine.details.subuids:
        what = f"{user} has no ids in /etc/subuid, so Podman cannot unpack images"
        ids = f"--add-subuids 100000-165535 --add-subgids 100000-165535 {user}"
        yield failure(what, f"on that host, run `sudo usermod {ids}`, then `podman system migrate`")
    if can.needs_linger and not machine.details.lingers:
        what = f"Podman's containers end when {user} logs out, and so would the run"
        yield failure(what, f"run `sudo loginctl enable-linger {user}` on that host")


def check_image(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that the image exists, is the same on all hosts, and is built for the host's CPU.

    It may exist only on the launching machine, which pushes it, or in a registry.
    """
    name, image = fleet.cluster.job.image, machine.engine.image if machine.engine else None
    engines = [m.engine for m in fleet.machines if m.engine]
    images = [engine.image for engine in engines if engine.image]
    if not images and fleet.image_here is None and engines and machine.engine is engines[0]:
        what = f"image {name} is neither on any host nor on this machine"
        if name == Job.image:  # it is in no registry
            yield failure(what, "run `ddpctl image build --trainer` on this machine")
        else:
            remedy = "test that with `ddpctl push HOSTS --image`"
            yield warning(f"{what}, so the hosts will pull it", remedy)
    cpu = machine.facts.kernel.rpartition(" ")[2]
    kind, built = _ARCHITECTURES.get(cpu, cpu), image or fleet.image_here
    if built and built.architecture and kind and built.architecture != kind:
        what = f"the image is built for {built.architecture}, but the host is {kind}"
        yield failure(what, f"build the image for linux/{kind}")
    if image is None or image.layers == mode(
        [(fleet.image_here or other).layers for other in images]
    ):
        return
    what = f"its {name} is a different image ({image.id.removeprefix('sha256:')[:12]})"
    if fleet.image_here:
        yield warning(what, "replace it with `ddpctl push HOSTS --image`")
    else:
        remedy = f"remove it from that host, or get the right {name} on this machine, "
        remedy += "then run `ddpctl push`"
        yield failure(what, remedy)


def check_leftovers(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Report nodes that are paused, or still running although another node of the run has ended."""
    nodes = [node for m in fleet.machines for node in m.run_nodes]
    ended = {(n.run_id, n.attempt) for n in nodes if n.has_ended}
    for node in machine.run_nodes:
        paused = node.state is ContainerState.PAUSED
        if paused or (node.alive and (node.run_id, node.attempt) in ended):
            state = "is paused" if paused else "is still running, but another node has ended"
            what = f"node {node.node_rank} of run {node.run_id} ({node.owner}) {state}"
            yield warning(what, f"run `ddpctl kill {node.run_id}`")
