"""A push from start to end: scan local folders, ask hosts what they have, send the rest, report."""

import contextlib
import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from ..engines.base import ImageStore
from ..engines.choose import engine_traits, images_of
from ..engines.engine_info import ImageInfo
from ..errors import CommandFailed, DdpctlError, DockerUnavailable, PushFailed
from ..hosts import Cluster, Host, Job
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node, connected
from ..ssh.script_files import load_script
from ..terminal.console import Console
from .files.push_tree import TreePush
from .files.scan import Tree, path_text, scan_job
from .image.push_image import Outcome, check_image, push_image
from .push_progress import HostsNotReady, PushProgress, PushReport
from .transfer.fanout import Fanout
from .transfer.payload import script_output

Part = Literal["image", "dataset", "workdir"]
ALL: frozenset[Part] = frozenset(("image", "dataset", "workdir"))

INSPECT = load_script(__file__, "inspect_host.sh")


@dataclass(frozen=True)
class PushResult:
    """The result. images: the image's id on each node's engine; "" if no image is needed."""

    images: tuple[str, ...]
    report: PushReport


def push(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    parts: Set[Part],
    console: Console,
    only: bool = False,
    here: ImageInfo | None = None,
    there: Mapping[Node, ImageInfo | None] | None = None,
) -> PushResult:
    """Send `parts` of the job. Unless `only` is set, verify that hosts have the other parts.

    here, there: the image on this machine and on each node; there=None: ask the engines for both.
    Raises HostsNotReady with each failed host; the others are ready.
    Raises PushFailed if this machine cannot send a part at all.
    """
    machines = one_per_account(nodes)
    progress = PushProgress(machines, console)
    try:
        with connected([Host(host="local")]) as [local]:
            run = _Push(cluster.job, parts, parts if only else ALL, local, progress)
            found, failures = run.run(machines, here, there)
    except OSError as error:  # of a file or pipe, but not of stdout
        raise PushFailed(f"the push failed: {error}", "push again", host="this machine") from error
    finally:
        report = progress.close()
    for node, failure in failures.items():
        progress.hosts[node].error = str(failure)
    if failures:
        raise HostsNotReady(failures, report)
    ids = {node.host.account: image.id for node, image in found.items()}
    return PushResult(tuple(ids.get(node.host.account, "") for node in nodes), report)


class _Push:
    """One push. Sends the job's parts from this machine one after the other."""

    def __init__(
        self, job: Job, parts: Set[Part], needed: Set[Part], local: Node, progress: PushProgress
    ) -> None:
        """Scan the folders. needed: `parts`, and the parts that hosts must already have."""
        self.parts, self.progress = parts, progress
        self.engine, self.local = job.engine, local
        needs_image = "image" in needed and engine_traits(job.engine).in_container
        self.image = job.image if needs_image else ""
        self.trees = scan_job(job, needed)
        for tree in self.trees.values():
            if tree.skipped:
                more = f" and {len(tree.skipped) - 1} more" if len(tree.skipped) > 1 else ""
                notice = f"{path_text(tree.skipped[0])}{more}: not a file, folder or link; skipped"
                progress.say(notice)
        self.digests = {part: tree.manifest.digest for part, tree in self.trees.items()}
        progress.report.dataset_digest = self.digests.get("dataset")
        progress.report.workdir_digest = self.digests.get("workdir")

    def run(
        self,
        nodes: Sequence[Node],
        here: ImageInfo | None,
        there: Mapping[Node, ImageInfo | None] | None,
    ) -> Outcome:
        """Push all parts. Return each host's image, and the failed hosts with their errors."""
        states, failures = try_each(nodes, self._inspect)
        relays = {node: address for node, (_, address) in states.items() if address}
        found: dict[Node, ImageInfo] = {}
        with closing(Fanout(relays, self.progress)) as fanout:
            if self.image:
                if there is None:
                    # if this machine has no engine, the hosts may still have the image
                    with contextlib.suppress(DockerUnavailable, CommandFailed):
                        here = self._images(self.local).inspect(self.image)
                    there, failed = try_each(
                        list(states), lambda node: self._images(node).inspect(self.image)
                    )
                    failures |= failed
                asked = {node: there[node] for node in states if node in there}
                if "image" in self.parts:
                    found, failed = push_image(
                        self.image, here, asked, self._images, self.local, fanout
                    )
                else:
                    found, failed = check_image(self.image, asked)
                failures |= failed
            for part, tree in self.trees.items():
                has = {node: has for node, (has, _) in states.items() if node not in failures}
                failures |= self._push_tree(part, tree, has, fanout)
        # The id on this machine, or else on the first host. run.json records it.
        known = next((image.id for image in (here, *found.values()) if image), None)
        self.progress.report.image_digest = known
        return found, failures

    def _images(self, node: Node) -> ImageStore:
        return images_of(node, self.engine)

    def _inspect(self, node: Node) -> tuple[Collection[str], str]:
        """Return which of dataset, workdir and python3 the host has, and its address for other hosts.

        The address is the hosts file's internal_ip, or else the one at which this machine or the
        last jump host reached the host. It is "" if the host cannot relay.
        """
        digests = self.digests.get("dataset", ""), self.digests.get("workdir", "")
        what = "a simple shell script failed"
        text = script_output(node, what, INSPECT, *digests, timeout=60.0)
        has = re.findall(r"^have (\w+)$", text, re.MULTILINE)
        connection = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
        address = node.host.internal_ip or ""
        if connection and not address:
            with contextlib.suppress(ValueError):
                address = str(ipaddress.ip_address(connection[1]))
        return has, address if "python3" in has and not node.host.is_local else ""

    def _push_tree(
        self, part: str, tree: Tree, there: Mapping[Node, Collection[str]], fanout: Fanout
    ) -> dict[Node, DdpctlError]:
        missing = [node for node, has in there.items() if part not in has]
        lacks = PushFailed(f"does not have the current {part}", f"run `ddpctl push HOSTS --{part}`")
        failures: dict[Node, DdpctlError] = {node: lacks.on(node.name) for node in missing}
        if missing and part in self.parts:
            failures = TreePush(tree, part, fanout).run(missing)
        for node in there:
            if node not in missing:
                self.progress.hosts[node].files_skipped += tree.manifest.files
            if node not in failures:
                setattr(self.progress.hosts[node], part, "sent" if node in missing else "present")
        return failures
