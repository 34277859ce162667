"""The `sanity` command: run the collectives in the user's image, as a run of its own."""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DdpctlError, UsageError
from ..facts.gather import gather
from ..follow.ctrl_c import Interrupts
from ..hosts import Cluster, override_job, user_env
from ..logs.log_entry import OutputLines
from ..outcomes import Exit
from ..own_folders import read_cache, state_home, write_cache
from ..plan.launch_options import LaunchOptions
from ..plan.node_gpus import gpu_ids
from ..run_id import new_run_id
from ..runs.attempt_lock import locks_released_at_end
from ..ssh.host_connection import connected
from ..start.request import Request
from ..start.run_attempt import run_attempt
from ..terminal.console import Console
from ..text import bytes_in, counted, names, quoted
from .verdict import Report, document, problems, text

SCRIPT = Path(__file__).with_name("collectives.py")
SOCKETS = {"NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"}
TWO_CONTAINERS = (
    "Each container has its own NCCL_HOSTID, so NCCL uses the network path between them. "
    "This tests containers, drivers and collectives, but not the network between hosts."
)


@dataclass(frozen=True)
class SanityOptions:
    """Options of the check. timeout: seconds per step. max_bytes: size of the largest all-reduce.

    pairwise: measure all pairs of nodes. min_busbw: GB/s; a lower bus bandwidth is a problem. plot:
    the file for the plot. step_seconds: the compute time of a training step. largest_only: measure
    only the largest all-reduce.
    """

    timeout: float
    max_bytes: int
    pairwise: bool
    min_busbw: float | None
    plot: str | None
    step_seconds: float | None
    largest_only: bool = False


def sanity(cluster: Cluster, options: SanityOptions, console: Console, *, as_json: bool) -> Exit:
    """Run the check and print the results. Return the run's exit code, or FAILED if it found problems."""
    report = Report([host.name for host in cluster.hosts])
    try:
        code = measure(cluster, options, report, console)
    except DdpctlError as error:
        if as_json:
            console.json(document(report, str(error).splitlines()))
        raise
    if "sockets" in report.transports and SOCKETS.isdisjoint(user_env(cluster.job)):
        console.say("measuring again, with four sockets per thread")
        report.four_sockets = with_four_sockets(cluster, options, report.hosts, console)
    # the last result for the same hosts, GPUs and sizes
    gpus = [(*host.machine, host.gpus) for host in cluster.hosts]
    key = repr((gpus, options.max_bytes)).encode()
    record = state_home() / "sanity" / f"{hashlib.sha256(key).hexdigest()[:16]}.json"
    last = read_cache(record).get("busbw")
    lines = problems(report, options.min_busbw, last, code)
    if report.is_complete:
        write_cache(record, json.dumps({"version": 1, "busbw": report.busbw}) + "\n")
    if as_json:
        console.json(document(report, lines, options.step_seconds))
    else:
        console.print(text(report, options.step_seconds))
    for problem in lines:
        console.error(problem)
    if options.plot and report.sizes:
        plot(report, Path(options.plot))
        console.say(f"wrote {options.plot}")
    return Exit.FAILED if lines and code is not Exit.INTERRUPTED else code


def measure(cluster: Cluster, options: SanityOptions, report: Report, console: Console) -> Exit:
    """Run the collectives on the cluster and add the results to `report`. Return the exit code."""
    with tempfile.TemporaryDirectory(prefix="ddpctl-sanity-") as folder:
        shutil.copy(SCRIPT, folder)
        names = ("timeout", "max_bytes", "pairwise", "largest_only")
        command = [SCRIPT.name, json.dumps({name: getattr(options, name) for name in names})]
        job = override_job(cluster, {"workdir": folder, "command": command})
        # a restart would hide the failure that the check is for
        alone = dataclasses.replace(job.job, dataset=None, max_restarts=0)
        job = dataclasses.replace(job, job=alone)
        launch = LaunchOptions(name="sanity", network_only=True)
        request = Request(job, launch, new_run_id("sanity"))
        report.run_id = request.run_id
        with locks_released_at_end(request.folder), Interrupts() as interrupts:
            return run_attempt(request, interrupts, console_for_run(report, console)).exit


def console_for_run(report: Report, console: Console) -> Console:
    """Return a console that adds rank 0's results to `report`, and shows other lines only with -v."""

    def take_lines(output: Sequence[OutputLines]) -> None:
        for each in output:
            # only node 0 runs rank 0, but a host may report any rank
            has_results = each.node_rank == 0 and each.rank == 0
            for line in each.lines:
                if not (has_results and report.take(line)):
                    console.detail((each.label + line).decode(errors="replace"))

    return Console(quiet=console.quiet, verbose=console.verbose, plain=True, take_lines=take_lines)


def with_four_sockets(
    cluster: Cluster, options: SanityOptions, hosts: Sequence[str], console: Console
) -> float | None:
    """Measure with four sockets per thread. Return the bus bandwidth; None if that fails."""
    report = Report(hosts)
    again = override_job(cluster, {"env": {"NCCL_NSOCKS_PERTHREAD": "4"}})
    options = dataclasses.replace(options, pairwise=False, largest_only=True)
    with contextlib.suppress(DdpctlError):
        measure(again, options, report, console)
    return report.busbw or None


def size_of(text: str) -> int:
    """Convert a size such as 64m or 1g to bytes. Raises UsageError for any other text."""
    size = bytes_in(text)
    if not size:
        raise UsageError(f"--max-size {quoted(text)}: not a size", "write, for example, 64m or 1g")
    return size


def two_containers(cluster: Cluster, name: str | None, containers: int) -> Cluster:
    """Return a cluster of `containers` nodes on the host `name`, which share its GPUs evenly.

    name: None for the only host. Raises UsageError if the cluster has no such host or its GPUs
    cannot be split evenly.
    """
    listed = names(host.name for host in cluster.hosts)
    if name is None and len({host.machine for host in cluster.hosts}) > 1:
        what = f"--containers {containers}: {cluster.source} has several hosts"
        raise UsageError(what, f"add --host with one of {listed}")
    entries = [host for host in cluster.hosts if name in (None, host.name)]
    if not entries:
        what = f"--host {quoted(name or '')}: not in {cluster.source}, which has {listed}"
        raise UsageError(what, "name one of these hosts")
    host = entries[0]
    with connected([host]) as connections:
        [facts] = gather(connections)
    ids = tuple(gpu for entry in entries for gpu in gpu_ids(entry, facts))
    if len(ids) % containers:
        uneven = f"cannot split {counted(len(ids), 'GPU')} evenly between {containers} containers"
        raise UsageError(uneven, "pass another number with --containers", host=host.name)
    share = len(ids) // containers
    parts = [ids[n * share : (n + 1) * share] for n in range(containers)]
    hosts = tuple(dataclasses.replace(host, gpus=part or 0, nproc_per_node=None) for part in parts)
    job = dataclasses.replace(cluster.job, nproc_per_node=share or 1)
    return dataclasses.replace(cluster, hosts=hosts, job=job, spares=())


def plot(report: Report, to: Path) -> None:
    """Plot bus bandwidth against message size. The suffix of `to` selects the file format."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        remedy = "install it where ddpctl is: `pipx inject ddpctl matplotlib`, or `pip install matplotlib`"
        raise UsageError("--plot needs matplotlib", remedy) from None
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    points = [(size["bytes"], size["busbw"]) for size in report.sizes]
    panel.plot(*zip(*points, strict=True), marker="o", color="#b3446c")
    panel.set(xscale="log", xlabel="bytes", ylabel="bus bandwidth, GB/s", title="all-reduce")
    panel.grid(alpha=0.25)
    try:
        figure.savefig(to, dpi=120)
    except (OSError, ValueError) as error:  # a ValueError means an unknown suffix
        what = f"--plot {quoted(str(to))}: cannot be written: {getattr(error, 'strerror', error)}"
        raise UsageError(what, "pass a file such as busbw.png in a folder that exists") from None
