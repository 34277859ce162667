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
class KnownImages:
    """The job's image on this machine and on each node; None: it is not there."""

    here: ImageInfo | None
    there: Mapping[Node, ImageInfo | None]


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
    known: KnownImages | None = None,
    spares: Sequence[Node] = (),
) -> PushResult:
    """Send `parts` of the job. Unless `only` is set, verify that hosts have the other parts.

    known: what the engines answered to the checks; None: ask them.
    spares: get everything too, but if that fails, it is only a warning.
    Raises HostsNotReady with each failed host; the others are ready.
    Raises PushFailed if this machine cannot send a part at all.
    """
    machines, needed = one_per_account([*nodes, *spares]), parts if only else ALL
    progress = PushProgress(machines, console)
    images: dict[Node, ImageInfo] = {}
    try:
        trees, failures = trees_of(cluster, machines, needed, progress)
        sender = Sender(cluster.job, trees, parts, needed, progress)
        hosts, silent = try_each([node for node in machines if node not in failures], sender.ask)
        failures |= silent
        answered = [*hosts]
        for part, tree in trees.items():
            missing = part in parts and any(part not in host.trees for host in hosts.values())
            if tree.left_out and (only or missing):
                progress.say(f"left out of the {part}: {listed(tree.left_out)}")
        for pause in (*PAUSES, None):
            sent, failed = sender.send(hosts, known)
            images |= sent
            failures |= failed
            dropped = [n for n in answered if isinstance(failures.get(n), HostUnreachable)]
            if not dropped or pause is None:
                break
            who = names(node.name for node in dropped)
            progress.say(f"{who}: the connection was lost; the push goes on in {duration(pause)}")
            time.sleep(pause)
            hosts, lost = try_each(dropped, sender.ask)
            failures = {node: each for node, each in failures.items() if node not in hosts} | lost
            known = None  # the engines have more by now
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


def trees_of(
    cluster: Cluster, machines: Sequence[Node], needed: Set[Part], progress: PushProgress
) -> tuple[dict[str, Tree], dict[Node, DdpctlError]]:
    """Return the trees to send, by part, and the hosts that cannot use them, with the reasons."""
    trees = scan_folders(cluster, needed, progress)
    unfit: dict[Node, DdpctlError] = {}
    if cluster.job.requirements and "image" in needed:
        wheels, unfit = wheels_of(cluster.job, machines, progress)
        trees |= {"image": wheels} if wheels else {}
    elif engine_traits(cluster.job.engine).image_files and "image" in needed:
        trees["image"] = image_file(cluster.job.image, progress)
    progress.report.image_digest = _digest(trees, "image") or None
    return trees, unfit


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


@dataclass(frozen=True)
class Sender:
    """Sends what hosts lack of `parts`, and verifies the rest of `needed`.

    trees: by part. With engine: process, wheels take the place of the image, and with engine:
    apptainer its file does.
    """

    job: Job
    trees: Mapping[str, Tree]
    parts: Set[Part]
    needed: Set[Part]
    progress: PushProgress

    def ask(self, node: Node) -> HostContents:
        """Ask a host which of the trees it has, and whether and where other hosts can read from it.

        Its address is the hosts file's internal_ip, or else the one at which this machine or the
        last jump host reached the host.
        """
        digests = [_digest(self.trees, part) for part in ("dataset", "workdir", "image")]
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

    def send(self, hosts: Mapping[Node, HostContents], known: KnownImages | None) -> ImageResult:
        """Return each host's image, and the failed hosts with their errors."""
        images: dict[Node, ImageInfo] = {}
        failures: dict[Node, DdpctlError] = {}
        relays = {node: host.address for node, host in hosts.items() if host.address}
        with closing(Fanout(relays, self.progress)) as fanout:
            if hosts and "image" in self.needed and engine_traits(self.job.engine).keeps_containers:
                images, failures = self._send_image([*hosts], known, fanout)
            for part in self.trees:
                ready = {node: host for node, host in hosts.items() if node not in failures}
                failures |= self._send_tree(part, ready, fanout)
        return images, failures

    def _send_image(
        self, nodes: Sequence[Node], known: KnownImages | None, fanout: Fanout
    ) -> ImageResult:
        """Send the job's image to the hosts that lack it or, if it is not one of `parts`, verify it."""
        failures: dict[Node, DdpctlError] = {}
        store_of = partial(images_of, name=self.job.engine)
        with connected([Host(host="local")]) as [local]:
            if known is None:
                here = None
                # if this machine has no engine, the hosts may still have the image
                with contextlib.suppress(DockerUnavailable, CommandFailed):
                    here = store_of(local).inspect(self.job.image)
                there, failures = try_each(
                    nodes, lambda node: store_of(node).inspect(self.job.image)
                )
            else:
                here = known.here
                there = {node: known.there[node] for node in nodes if node in known.there}
            if "image" in self.parts:
                images, failed = push_image(self.job.image, here, there, store_of, local, fanout)
            else:
                images, failed = check_image(self.job.image, there)
        # The id on this machine, or else on the first host. run.json records it.
        ids = (image.id for image in (here, *images.values()) if image)
        self.progress.report.image_digest = next(ids, None)
        return images, failures | failed

    def _send_tree(
        self, part: str, hosts: Mapping[Node, HostContents], fanout: Fanout
    ) -> dict[Node, DdpctlError]:
        """Send a tree to the hosts that lack it. Return the failed hosts: if it is not one of `parts`,
        those that lack it.
        """
        tree = self.trees[part]
        packages = part == "image" and self.job.requirements
        kind, what = ("wheel", "packages") if packages else (part, part)
        missing = [node for node, host in hosts.items() if part not in host.trees]
        lacks = PushFailed(f"does not have the current {what}", f"run `ddpctl push HOSTS --{part}`")
        failures: dict[Node, DdpctlError] = {node: lacks.on(node.name) for node in missing}
        if missing and part in self.parts:
            failures = TreePush(tree, kind, fanout).run(missing)
            if packages:
                ready = [node for node in missing if node not in failures]
                failures |= try_each(ready, partial(make_venv, self.job, tree.manifest.digest))[1]
        for node in hosts:
            report = self.progress.hosts[node]
            if node not in missing:
                report.files_skipped += tree.manifest.files
            if node not in failures:
                setattr(report, part, "sent" if node in missing else "present")
        return failures
