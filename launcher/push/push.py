"""A push from start to end: scan local folders, ask hosts what they have, send the rest, report."""

import contextlib
import ipaddress
import re
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ..engines.choose import engine_traits, images_of
from ..engines.engine_info import ImageInfo
from ..errors import (
    CommandFailed,
    DdpctlError,
    DockerUnavailable,
    HostUnreachable,
    PushFailed,
    lines,
)
from ..hosts import Cluster, Host, Job
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import duration, names
from .files.left_out import listed
from .files.push_tree import TreePush
from .files.scan import Tree, path_text, scan_job
from .image.push_image import ImageResult, check_image, push_image
from .image.sif import image_file
from .packages.wheels import make_venv, wheels_of
from .push_progress import HostsNotReady, PushProgress, PushReport
from .transfer.fanout import Fanout
from .transfer.payload import script_output

Part = Literal["image", "dataset", "workdir"]
ALL: frozenset[Part] = frozenset(("image", "dataset", "workdir"))

INSPECT = load_script(__file__, "inspect_host.sh")
PAUSES = (1.0, 4.0, 10.0)  # seconds until a lost connection is tried again


@dataclass(frozen=True)
class PushResult:
    """The result. images: the image's id on each node's engine; "" if no image is needed."""

    images: tuple[str, ...]
    report: PushReport


@dataclass(frozen=True)
class HostContents:
    """What a host has. trees: which of the parts that are trees. address: "" if it cannot relay."""

    trees: frozenset[str]
    address: str  # for other hosts


def push(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    parts: Set[Part],
    console: Console,
    only: bool = False,
    here: ImageInfo | None = None,
    there: Mapping[Node, ImageInfo | None] | None = None,
    spares: Sequence[Node] = (),
) -> PushResult:
    """Send `parts` of the job. Unless `only` is set, verify that hosts have the other parts.

    here, there: the image on this machine and on each node; there=None: ask the engines for both.
    spares: get everything too, but if that fails, it is only a warning.
    Raises HostsNotReady with each failed host; the others are ready.
    Raises PushFailed if this machine cannot send a part at all.
    """
    machines, needed = one_per_account([*nodes, *spares]), parts if only else ALL
    progress = PushProgress(machines, console)
    images: dict[Node, ImageInfo] = {}
    try:
        trees = scan_folders(cluster, needed, progress)
        unfit: dict[Node, DdpctlError] = {}
        if cluster.job.requirements and "image" in needed:
            wheels, unfit = wheels_of(cluster.job, machines, progress)
            trees |= {"image": wheels} if wheels else {}
        elif engine_traits(cluster.job.engine).image_files and "image" in needed:
            trees["image"] = image_file(cluster.job.image, progress)
        progress.report.image_digest = _digest(trees, "image") or None
        fit = [node for node in machines if node not in unfit]
        hosts, failures = try_each(fit, partial(ask_host, trees))
        failures |= unfit
        answered = [*hosts]
        for part, tree in trees.items():
            missing = part in parts and any(part not in host.trees for host in hosts.values())
            if tree.left_out and (only or missing):
                progress.say(f"left out of the {part}: {listed(tree.left_out)}")
        for pause in (*PAUSES, None):
            sent, failed = send_parts(
                cluster.job, trees, hosts, parts, needed, here, there, progress
            )
            images |= sent
            failures |= failed
            dropped = [n for n in answered if isinstance(failures.get(n), HostUnreachable)]
            if not dropped or pause is None:
                break
            who = names(node.name for node in dropped)
            progress.say(f"{who}: the connection was lost; the push goes on in {duration(pause)}")
            time.sleep(pause)
            hosts, lost = try_each(dropped, partial(ask_host, trees))
            failures = {node: each for node, each in failures.items() if node not in hosts} | lost
            here, there = None, None  # what the engines have by now
    except OSError as error:  # of a file or pipe, but not of stdout
        raise PushFailed(f"the push failed: {error}", "push again", host="this machine") from error
    finally:
        report = progress.close()
    for node, failure in failures.items():
        progress.hosts[node].error = str(failure)
    optional = {node: failures.pop(node) for node in spares if node in failures}
    for line in lines(optional.values()):
        console.say(f"warning: spare {line}")
    if failures:
        raise HostsNotReady(failures, report)
    ids = {node.host.account: image.id for node, image in images.items()}
    return PushResult(tuple(ids.get(node.host.account, "") for node in nodes), report)


def send_parts(
    job: Job,
    trees: Mapping[str, Tree],
    hosts: Mapping[Node, HostContents],
    parts: Set[Part],
    needed: Set[Part],
    here: ImageInfo | None,
    there: Mapping[Node, ImageInfo | None] | None,
    progress: PushProgress,
) -> ImageResult:
    """Send what these hosts lack of `parts`, and verify the rest of `needed`.

    Return each host's image, and the failed hosts with their errors.
    """
    images: dict[Node, ImageInfo] = {}
    failures: dict[Node, DdpctlError] = {}
    with closing(Fanout(relays(hosts), progress)) as fanout:
        if hosts and "image" in needed and engine_traits(job.engine).keeps_containers:
            send = "image" in parts
            images, failures = send_image(job, [*hosts], here, there, fanout, send=send)
        for part, tree in trees.items():
            ready = {node: host for node, host in hosts.items() if node not in failures}
            failures |= send_tree(part, tree, ready, job, fanout, send=part in parts)
    return images, failures


def scan_folders(cluster: Cluster, needed: Set[Part], progress: PushProgress) -> dict[str, Tree]:
    """Scan the job's folders on this machine. Return their trees by part."""
    trees = scan_job(cluster, needed)
    for tree in trees.values():
        if tree.skipped:
            more = f" and {len(tree.skipped) - 1} more" if len(tree.skipped) > 1 else ""
            name = path_text(tree.skipped[0])
            progress.say(f"{name}{more}: not a file, folder or link; skipped")
    progress.report.left_out = [each for tree in trees.values() for each in tree.left_out]
    progress.report.dataset_digest = _digest(trees, "dataset") or None
    progress.report.workdir_digest = _digest(trees, "workdir") or None
    return trees


def _digest(trees: Mapping[str, Tree], part: str) -> str:
    return trees[part].manifest.digest if part in trees else ""


def ask_host(trees: Mapping[str, Tree], node: Node) -> HostContents:
    """Ask a host which of the trees it has, and whether and where other hosts can read from it.

    Its address is the hosts file's internal_ip, or else the one at which this machine or the last
    jump host reached the host.
    """
    digests = [_digest(trees, part) for part in ("dataset", "workdir", "image")]
    what = "a simple shell script failed"
    text = script_output(node, what, INSPECT, *digests, timeout=60.0)
    names = frozenset(re.findall(r"^have (\w+)$", text, re.MULTILINE))
    connection = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
    address = node.host.internal_ip or ""
    if connection and not address:
        with contextlib.suppress(ValueError):
            address = str(ipaddress.ip_address(connection[1]))
    can_relay = "python3" in names and not node.host.is_local
    return HostContents(names, address if can_relay else "")


def relays(hosts: Mapping[Node, HostContents]) -> dict[Node, str]:
    """Return the address of each host that can relay."""
    return {node: host.address for node, host in hosts.items() if host.address}


def send_image(
    job: Job,
    nodes: Sequence[Node],
    here: ImageInfo | None,
    there: Mapping[Node, ImageInfo | None] | None,
    fanout: Fanout,
    *,
    send: bool,
) -> ImageResult:
    """Send the job's image to the hosts that lack it or, without `send`, check that none does.

    Return each host's image, and the failed hosts with their errors.
    """
    failures: dict[Node, DdpctlError] = {}
    store_of = partial(images_of, name=job.engine)
    with connected([Host(host="local")]) as [local]:
        if there is None:
            # if this machine has no engine, the hosts may still have the image
            with contextlib.suppress(DockerUnavailable, CommandFailed):
                here = store_of(local).inspect(job.image)
            there, failures = try_each(nodes, lambda node: store_of(node).inspect(job.image))
        asked = {node: there[node] for node in nodes if node in there}
        if send:
            images, failed = push_image(job.image, here, asked, store_of, local, fanout)
        else:
            images, failed = check_image(job.image, asked)
    # The id on this machine, or else on the first host. run.json records it.
    known = next((image.id for image in (here, *images.values()) if image), None)
    fanout.progress.report.image_digest = known
    return images, failures | failed


def send_tree(
    part: str,
    tree: Tree,
    hosts: Mapping[Node, HostContents],
    job: Job,
    fanout: Fanout,
    *,
    send: bool,
) -> dict[Node, DdpctlError]:
    """Send a tree to the hosts that lack it. Return the failed hosts: without `send`, those hosts.

    With engine: process, wheels take the place of the image, and hosts make an environment of them.
    """
    packages = part == "image" and job.requirements
    kind, what = ("wheel", "packages") if packages else (part, part)
    missing = [node for node, host in hosts.items() if part not in host.trees]
    lacks = PushFailed(f"does not have the current {what}", f"run `ddpctl push HOSTS --{part}`")
    failures: dict[Node, DdpctlError] = {node: lacks.on(node.name) for node in missing}
    if missing and send:
        failures = TreePush(tree, kind, fanout).run(missing)
        if packages:
            ready = [node for node in missing if node not in failures]
            failures |= try_each(ready, partial(make_venv, job, tree.manifest.digest))[1]
    for node in hosts:
        report = fanout.progress.hosts[node]
        if node not in missing:
            report.files_skipped += tree.manifest.files
        if node not in failures:
            setattr(report, part, "sent" if node in missing else "present")
    return failures
