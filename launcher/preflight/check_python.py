"""Check the Python environment of `engine: process`."""

import functools
from collections.abc import Iterator, Mapping

from ..budget import parse_json
from ..engines.status import host_text, mapping
from ..errors import CommandFailed, DdpctlError
from ..hosts import Job
from ..plan.supervisor_spec import NO_PYTHON, python_on
from ..ssh.host_connection import HostConnection
from ..ssh.script_files import load_script
from .findings import Finding, failure, failure_of, warning
from .fleet import Fleet, odd_one_out
from .machine import Machine

SCRIPT = load_script(__file__, "python.sh")


def versions_or_error(connection: HostConnection, job: Job) -> Mapping[str, str] | DdpctlError:
    """Return the versions of the job's Python and its packages by name, or why they are unknown."""
    python = python_on(job, connection.host)
    done = connection.script(SCRIPT, python)
    try:
        answer = mapping(parse_json(done.stdout)) if done.code == 0 else {}
    except ValueError:
        answer = {}
    versions = {name: host_text(version) for name, version in list(answer.items())[:9]}
    if not versions.get("python"):
        what = done.reason if done.code else f"{python} is not Python 3.8 or newer"
        return CommandFailed(what, NO_PYTHON, host=connection.name)
    return versions


def check_packages(machine: Machine, fleet: Fleet) -> Iterator[Finding]:
    """Check that torch is installed and supports GPUs, and that all hosts have the same versions.

    With job.requirements, only the version of Python itself is checked.
    """
    own = machine.python
    if isinstance(own, DdpctlError):
        yield failure_of(own)
    if not isinstance(own, Mapping):
        return
    torch = own.get("torch", "")
    if fleet.cluster.job.requirements:
        own = {"python": own["python"]}
    elif not torch:
        yield failure("its Python has no torch", f"install torch on that host, or {NO_PYTHON}")
    elif machine.wants_gpus and machine.has_driver and torch.endswith("+cpu"):
        yield failure(f"torch {torch} cannot use GPUs", "install a GPU build of torch on that host")
    for name in own:
        if different := odd_one_out(machine, fleet, functools.partial(version_on, name)):
            report = warning if name == "python" else failure
            what = f"{name} is {different[0]}, while other hosts have {different[1]}"
            yield report(what, "use the same versions on every host")


def version_on(name: str, machine: Machine) -> str | None:
    return machine.python.get(name) if isinstance(machine.python, Mapping) else None
