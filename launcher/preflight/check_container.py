"""Check what the container test reported about a machine, its image and its engine."""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from .check_resources import LEAST_OPEN_FILES
from .findings import Finding, failure, failure_of, warning
from .fleet import Fleet, different
from .machine import Machine

VERSIONS = {"torch": failure, "nccl": failure, "cuda": warning, "python": warning}


def check_container(machine: Machine, _: Fleet) -> Iterator[Finding]:
    """Check that the container ran, and check its torch, GPU support, RDMA and open-file limit."""
    report = machine.report
    if report is None:
        return
    if report.error:
        yield failure_of(report.error)
    if report.torch_error:
        what = f"torch cannot be imported in the image: {report.torch_error}"
        yield failure(what, "use an image that has torch")
    if report.cuda_error:
        what = f"torch {report.torch} in the image cannot use the GPUs: {report.cuda_error}"
        remedy = "run the image by hand on that host, and check `nvidia-smi` and `dmesg`"
        yield failure(what, remedy)
    lacking = [arch for arch in report.architectures if not runs_on(arch, report.built_for)]
    if lacking:
        built = " ".join(report.built_for)
        what = f"torch {report.torch} in the image has no code for {lacking[0]}, only for {built}"
        yield failure(what, "use an image whose torch supports this GPU")
    rdma = machine.gpus and report.nccl and any(port.is_up for port in machine.facts.rdma_ports)
    if rdma and not report.verbs:
        what = "the image lacks libibverbs, so NCCL uses TCP instead of RDMA"
        yield warning(what, "install libibverbs1 and ibverbs-providers (rdma-core) in the image")
    if 0 <= report.open_files < LEAST_OPEN_FILES:
        what = f"a container may open only {report.open_files} files, but data loaders need more"
        yield warning(what, "set job.ulimits: {nofile: 65536}")


def check_versions(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that all hosts' images have the same versions of torch, NCCL, CUDA and Python.

    A difference in torch or NCCL is a failure, because ranks with different versions cannot
    communicate. In CUDA or Python, it is only a warning.
    """

    def version(label: str, m: Machine) -> str | None:
        tested = m.report is not None and m.report.torch
        return (getattr(m.report, label) or "none") if tested else None

    image = fleet.cluster.job.image
    remedy = f"put the same {image} on all hosts with `ddpctl push HOSTS --image`"
    for label, kind in VERSIONS.items():
        what = f"its image has {label} {{}}, while images on other hosts have {{}}"
        yield from different(machine, fleet, partial(version, label), what, remedy, kind)


def check_writing(machine: Machine, _: Fleet) -> Iterator[Finding]:
    if machine.report and machine.report.write_error:
        what = f"a container cannot write to ~/.ddpctl: {machine.report.write_error}"
        remedy = (
            "check `journalctl -k` on that host for denials (SELinux, AppArmor), or set job.user"
        )
        yield failure(what, remedy)


def check_seen_gpus(machine: Machine, _: Fleet) -> Iterator[Finding]:
    report = machine.report
    if machine.gpus and machine.has_driver and report and report.torch and report.gpus == 0:
        built = f"built for CUDA {report.cuda}" if report.cuda else "built without CUDA"
        what = f"torch {report.torch} in the image sees no GPU ({built})"
        remedy = "use an image whose torch is built for CUDA, or fix the container toolkit"
        if machine.facts.has_amd_gpus:
            remedy = "use an image whose torch is built for ROCm"
        yield failure(what, remedy)


def runs_on(architecture: str, built_for: Sequence[str]) -> bool:
    """Return whether torch has code for a GPU; True if that is unknown.

    Code for sm_80 runs on sm_86, but not on sm_90; code for compute_80 runs on all later GPUs.
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
