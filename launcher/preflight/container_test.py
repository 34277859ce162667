"""A trial: one short container on each host, of the kind that a launch starts. What it tells is what
no inventory can: that the image has torch, sees the GPUs, and may write where a run writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.facts.script import Facts
from launcher.hosts import Cluster, Job
from launcher.plan.build import container_user, fabric_access
from launcher.plan.plan import LABEL, Container, Mount
from launcher.plan.topology import gpu_ids
from launcher.preflight.check_docker import split
from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine, common

MARK = "ddpctl-check "
SCRIPT = r"""
import json, os, platform, sys
found = {"python": platform.python_version()}
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
    found["gpus"] = torch.cuda.device_count() if found["cuda"] else 0
    found["backends"] = [b for b in ("gloo", "nccl") if getattr(dist, "is_%s_available" % b)()]
    if "nccl" in found["backends"]:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except SystemExit:
    pass
except Exception as error:
    found["torch_error"] = "%s: %s" % (type(error).__name__, error)
print("ddpctl-check " + json.dumps(found), flush=True)
os._exit(0)
"""


@dataclass(frozen=True)
class Trial:
    """error: why the container did not even run to its end."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    gpus: int = 0
    write_error: str = ""
    torch_error: str = ""
    error: str = ""


def trial_container(machine: Machine, facts: Facts, job: Job, folder: str, token: str) -> Container:
    """The container that a launch would start there, with `folder` of the host at /output."""
    gpus = {index for host in machine.hosts for index in gpu_ids(host, facts)}
    used = tuple(sorted(gpus)) if has_driver(machine) else ()
    return Container(
        name=f"ddpctl-check-{token}-{machine.ranks[0]}",
        image=job.image,
        env={"HOME": "/tmp"},
        labels={f"{LABEL}.check": token},
        mounts=(Mount(folder, "/output"),),
        gpus=used,
        user=container_user(job, facts),
        shm_size=job.shm_size,
        stop_timeout=1,
        entrypoint=("python3", "-c", SCRIPT),
        working_dir="/",
        **fabric_access(bool(used), facts.infiniband),
    )


def has_driver(machine: Machine) -> bool:
    return machine.details is not None and machine.details.kernel_driver is not None


def needing_torch(machines: Sequence[Machine]) -> set[str]:
    """Names of the machines where torch is imported, which takes seconds: one for each content of
    the image, and those whose GPUs it must see."""
    found: dict[tuple[str, ...], str] = {}
    seeing = set()
    for machine in machines:
        if machine.docker and machine.docker.image:
            found.setdefault(machine.docker.image.layers, machine.name)
        if has_driver(machine) and machine.facts and machine.facts.gpus and machine.wants_gpus:
            seeing.add(machine.name)
    return seeing | set(found.values())


def parse_trial(output: str) -> Trial:
    """What the script printed, whatever else the image prints at its start."""
    for line in output.splitlines():
        if line.startswith(MARK):
            said = json.loads(line.removeprefix(MARK))
            texts = ("python", "torch", "cuda", "nccl", "write_error", "torch_error")
            return Trial(
                **{name: str(said.get(name, "")) for name in texts}, gpus=said.get("gpus", 0)
            )
    last = (output.strip().splitlines() or ["it printed nothing"])[-1]
    return Trial(error=f"the image's python3 did not run: {last}; the image needs python3")


def check_trial(machine: Machine, trial: Trial | None) -> list[Finding]:
    if trial is None:
        return []
    name = machine.name
    if trial.error:
        return [failure(name, "image", *split(trial.error, machine.hosts[0].name))]
    found = []
    if trial.torch_error:
        what = f"torch cannot be imported in the image: {trial.torch_error}"
        found.append(failure(name, "image", what, "take an image with torch in it"))
    if trial.write_error:
        what = f"a container may not write below ~/.ddpctl: {trial.write_error}"
        remedy = "look for denials in `journalctl -k` there (SELinux, AppArmor), or user: in job"
        found.append(failure(name, "disk", what, remedy))
    wanted = (
        sum(len(gpu_ids(host, machine.facts)) for host in machine.hosts) if machine.facts else 0
    )
    if wanted and has_driver(machine) and trial.torch and trial.gpus == 0:
        what = (
            f"torch {trial.torch} in the image sees no GPU (built for CUDA {trial.cuda or 'none'})"
        )
        remedy = "take an image whose torch is built for CUDA, or mend the container toolkit"
        found.append(failure(name, "gpus", what, remedy))
    return found


def check_versions(
    machines: Sequence[Machine], trials: Sequence[Trial | None], cluster: Cluster
) -> list[Finding]:
    """The ranks must agree on the wire: torch, NCCL and CUDA are the same on all nodes."""
    told = [(m, t) for m, t in zip(machines, trials, strict=True) if t is not None and t.torch]
    found = []
    for label, severity in (("torch", failure), ("nccl", failure), ("cuda", warning),
                            ("python", warning)):  # fmt: skip
        values = [getattr(trial, label) for _, trial in told]
        if len(set(values)) < 2:
            continue
        usual = common(values)
        for (machine, _), value in zip(told, values, strict=True):
            if value != usual:
                what = f"{label} {value or 'none'} in its image, and other hosts have {usual}"
                remedy = f"`ddpctl push HOSTS --image` puts the same {cluster.job.image} on all"
                found.append(severity(machine.name, "image", what, remedy))
    return found
