"""The container test: run one short container on each machine, configured as for a launch.

It finds problems that facts cannot show: whether the image has torch, sees the GPUs and can write
to a run's folders.
"""

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..budget import parse_json
from ..engines.choose import engine_of
from ..errors import CommandFailed, DdpctlError
from ..hosts import Job
from ..logs.event_reader import parsed
from ..plan.container import container_of
from ..plan.labels import LABEL
from ..plan.plan import Container, Mount
from ..ssh.background import AT_ONCE
from ..ssh.node import Node
from .check_resources import LEAST_OPEN_FILES
from .findings import Finding, Problem, failure, failure_of, warning
from .fleet import Fleet, odd_one_out
from .machine import Machine

TIMEOUT = 25  # seconds; the first import of torch from a cold disk is slow
MARK = "ddpctl-check "
VERSIONS = {"torch": failure, "nccl": failure, "cuda": warning, "python": warning}
SCRIPT = r"""
import ctypes, json, os, platform, resource, sys
found = {"python": platform.python_version()}
found["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
try:
    found["verbs"] = bool(ctypes.CDLL("libibverbs.so.1"))
except OSError:
    found["verbs"] = False
try:
    path = "/output/.check"
    open(path, "w").close(); os.unlink(path)
except OSError as error:
    found["write_error"] = str(error)
try:
    if sys.argv[1:] != ["torch"]:
        raise SystemExit
    import torch, torch.distributed as dist
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda or ""
    found["gpus"] = torch.cuda.device_count()
    if getattr(dist, "is_nccl_available")():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    try:
        gpus = [torch.cuda.get_device_properties(i) for i in range(found["gpus"])]
        found["architectures"] = [
            gpu.gcnArchName.split(":")[0] if torch.version.hip else "sm_%d%d" % (gpu.major, gpu.minor)
            for gpu in gpus]
        found["built_for"] = [name.split(":")[0] for name in torch.cuda.get_arch_list()]
    except Exception as error:
        found["cuda_error"] = (str(error).splitlines() or [type(error).__name__])[0]
except SystemExit:
    pass
except Exception as error:
    found["torch_error"] = "%s: %s" % (type(error).__name__, error)
print("ddpctl-check " + json.dumps(found), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class ContainerReport:
    """The output of the container test. error: why the script did not finish."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    gpus: int = 0
    write_error: str = ""
    torch_error: str = ""
    cuda_error: str = ""
    error: DdpctlError | None = None
    architectures: tuple[str, ...] = ()  # of the GPUs: sm_90, gfx942
    built_for: tuple[str, ...] = ()  # the architectures for which torch has code
    verbs: bool = True  # the image has libibverbs
    open_files: int = -1  # the hard limit; -1: unlimited


def run_containers(fleet: Fleet, nodes: Mapping[int, Node]) -> dict[int, ContainerReport]:
    """Test each machine in `nodes` that has the image. Return reports by first node rank."""
    token, job = secrets.token_hex(4), fleet.cluster.job
    machines = [m for m in fleet.machines if m.rank in nodes and m.engine and m.engine.image]
    with_torch = needing_torch(machines)

    def run(machine: Machine) -> ContainerReport:
        node = nodes[machine.rank]
        engine = engine_of(node, job.engine)
        folder = f"{machine.facts.folder}/check-{token}"
        argument = "torch" if machine.rank in with_torch else ""
        container = container_for(machine, job, folder, token, argument)
        try:
            # like a run's folders, writable by users other than the SSH user
            node.run(["mkdir", "-p", "-m", "0777", folder])
            return parse_report(engine.run_to_end(container, TIMEOUT))
        except Exception as error:
            return ContainerReport(error=node.explain(error))
        finally:
            with contextlib.suppress(DdpctlError):
                node.run(["rm", "-rf", folder])

    with ThreadPoolExecutor(AT_ONCE) as pool:  # unlike try_each, waits for the tests on Ctrl-C
        reports = pool.map(run, machines)
        return {machine.rank: report for machine, report in zip(machines, reports, strict=True)}


def container_for(machine: Machine, job: Job, folder: str, token: str, argument: str) -> Container:
    """Return the test container, configured as for a launch, with the host's `folder` at /output."""
    return container_of(
        job,
        tuple(sorted(machine.gpus)) if machine.has_driver else (),
        machine.facts,
        name=f"ddpctl-check-{token}-{machine.rank}",
        image=job.image,
        env={"HOME": "/tmp"},
        labels={f"{LABEL}.check": token},
        mounts=(Mount(folder, "/output"),),
        stop_timeout=1,
        entrypoint=("python3", "-c", SCRIPT),
        command=(argument,),
        working_dir="/",
    )


def needing_torch(machines: Sequence[Machine]) -> set[int]:
    """Return the machines whose test imports torch (seconds): one per image, and all with GPUs."""
    images = {
        m.engine.image.layers: m.rank for m in reversed(machines) if m.engine and m.engine.image
    }
    return {*images.values(), *(m.rank for m in machines if m.has_driver and m.gpus)}


def parse_report(output: str) -> ContainerReport:
    """Parse the script's output, ignoring anything that the image prints at its start."""
    lines = output.strip().splitlines() or ["it printed nothing"]
    reports = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    with contextlib.suppress(ValueError):
        if reports:
            return parsed(ContainerReport, parse_json(reports[-1].encode()))
    what = f"python3 did not run in the image: {lines[-1]}"
    return ContainerReport(error=CommandFailed(what, "use an image with python3"))


def runs_on(architecture: str, built_for: Sequence[str]) -> bool:
    """Return whether torch has code for a GPU. Unknown counts as yes.

    Code for sm_80 runs on sm_86, but not on sm_90; code for compute_80 runs on every later one.
    """
    own = re.fullmatch(r"sm_([0-9]+)([0-9])", architecture)
    if not own or not built_for:
        return architecture in built_for or not (architecture and built_for)
    versions = [
        (m[1], (int(m[2]), int(m[3])))
        for each in built_for
        if (m := re.fullmatch("(sm|compute)_([0-9]+)([0-9])[af]?", each))
    ]
    capability = int(own[1]), int(own[2])
    return any(
        version <= capability and (kind == "compute" or version[0] == capability[0])
        for kind, version in versions
    )


def _limits(machine: Machine, report: ContainerReport) -> Iterator[Problem]:
    """Check what the image and the container allow: GPU architectures, RDMA, open files."""
    lacking = [arch for arch in report.architectures if not runs_on(arch, report.built_for)]
    if report.cuda_error:
        what = f"torch {report.torch} in the image cannot use the GPUs: {report.cuda_error}"
        yield failure(what, "run the image there, and look at `nvidia-smi` and `dmesg`")
    if lacking:
        built = " ".join(report.built_for)
        what = f"torch {report.torch} in the image has no code for {lacking[0]}, only for {built}"
        yield failure(what, "use an image with a newer torch that supports this GPU")
    rdma = machine.gpus and report.nccl and any(port.is_up for port in machine.facts.rdma_ports)
    if rdma and not report.verbs:
        what = "the image lacks libibverbs, so NCCL uses TCP instead of RDMA"
        yield warning(what, "install libibverbs1 and ibverbs-providers (rdma-core) in the image")
    if 0 <= report.open_files < LEAST_OPEN_FILES:
        what = f"a container may open only {report.open_files} files, and data loaders need more"
        yield warning(what, "set job.ulimits: {nofile: 65536}")


def judge(fleet: Fleet, reports: Mapping[int, ContainerReport]) -> Iterator[Finding]:
    """Check that each container ran, imported torch, wrote its file and saw the GPUs.

    Ranks cannot communicate with different versions of torch or NCCL, so that is a failure. For
    CUDA and Python, it is a warning.
    """
    tested = [machine for machine in fleet.machines if machine.rank in reports]
    for machine in tested:
        name, report = machine.name, reports[machine.rank]
        if report.error:
            yield failure_of(report.error).at(name, "image")
        if report.torch_error:
            what = f"torch cannot be imported in the image: {report.torch_error}"
            yield failure(what, "use an image with torch in it").at(name, "image")
        if report.write_error:
            what = f"a container cannot write to ~/.ddpctl: {report.write_error}"
            remedy = (
                "look for denials in `journalctl -k` there (SELinux, AppArmor), or set job.user"
            )
            yield failure(what, remedy).at(name, "disk")
        if machine.gpus and machine.has_driver and report.torch and report.gpus == 0:
            built = f"built for CUDA {report.cuda}" if report.cuda else "built without CUDA"
            what = f"torch {report.torch} in the image sees no GPU ({built})"
            remedy = "use an image whose torch is built for CUDA, or fix the container toolkit"
            if machine.facts.has_amd_gpus:
                remedy = "use an image whose torch is built for ROCm"
            yield failure(what, remedy).at(name, "gpus")
        for problem in _limits(machine, report):
            yield problem.at(name, "image")
        for label, severity in VERSIONS.items():

            def version(m: Machine, label: str = label) -> str | None:
                report = reports[m.rank]
                return (getattr(report, label) or "none") if report.torch else None

            if odd := odd_one_out(machine, tested, version):
                what = f"{label} {odd[0]} in its image, while other hosts have {odd[1]}"
                image = fleet.cluster.job.image
                remedy = f"put the same {image} on all hosts with `ddpctl push HOSTS --image`"
                yield severity(what, remedy).at(name, "image")
