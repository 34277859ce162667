"""A push, start to end: scan here, ask every host once, send what is missing, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from ..engines import images
from ..engines.choose import engine_traits
from ..engines.engine_info import ImageInfo
from ..errors import DdpctlError, DockerUnavailable, PushFailed
from ..hosts import Cluster, Host
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node, connected
from .files.scan import Tree, scan, shown
from .files.tree import TreePush
from .host import HostState, Inspected, inspect_host
from .image.push_image import ImagePush, Outcome, different_images
from .progress import Progress
from .report import HostsNotReady, PushReport
from .tracker import Tracker
from .transfer.fanout import Fanout

Part = Literal["image", "dataset", "workdir"]
ALL: frozenset[Part] = frozenset(("image", "dataset", "workdir"))


@dataclass(frozen=True)
class PushResult:
    """What every node has now. Digests are None for parts that the job does not have.

    images: the name or id that each node's engine starts the image by, in the order of the nodes; ""
    without an image.
    """

    images: tuple[str, ...]
    image_digest: str | None
    dataset_digest: str | None
    workdir_digest: str | None
    report: PushReport


@dataclass(frozen=True)
class Sources:
    """What the hosts are to have, as it is on this machine."""

    image: str  # "" for none
    here: ImageInfo | None  # the image, if this machine has it
    trees: Mapping[str, Tree]  # by part

    def digest(self, part: str) -> str:
        return self.trees[part].manifest.digest if part in self.trees else ""


def push(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    parts: Set[Part],
    progress: Progress,
    only: bool = False,
    inspected: Inspected | None = None,
) -> PushResult:
    """Send `parts` of the job and verify that the others are on the hosts; with `only`, ignore those.

    inspected: the image as the engines have just reported it, if known.

    HostsNotReady (a PushFailed) names each host that failed; the others are ready and stay so.
    PushFailed if something on this machine cannot be sent at all.
    """
    machines = one_per_account(nodes)
    tracker = Tracker(machines, progress)
    with connected([Host(host="local")]) as [local]:
        try:
            with ThreadPoolExecutor(1) as pool:  # connect while the disk is read
                connecting = pool.submit(try_each, machines, Node.connect)
                sources = _sources(cluster, parts if only else ALL, local, tracker, inspected)
                reached, failures = connecting.result()
            with progress:
                run = _Push(sources, parts, local, tracker)
                found, failed = run.run(list(reached), inspected)
        except OSError as error:  # not stdout: it must not end the command as if that were closed
            raise PushFailed(f"this machine: the push broke: {error}; push again") from error
    report = tracker.finish()
    report.dataset_digest = sources.digest("dataset") or None
    report.workdir_digest = sources.digest("workdir") or None
    report.image_digest = _image_id(sources, found)
    failures |= failed
    for node, failure in failures.items():
        tracker.hosts[node].error = str(failure)
    if failures:
        raise HostsNotReady({node.name: error for node, error in failures.items()}, report)
    by_account = {node.host.account: found[node].id if sources.image else "" for node in machines}
    return PushResult(
        images=tuple(by_account[node.host.account] for node in nodes),
        image_digest=report.image_digest,
        dataset_digest=report.dataset_digest,
        workdir_digest=report.workdir_digest,
        report=report,
    )


def _sources(
    cluster: Cluster, parts: Set[Part], local: Node, tracker: Tracker, inspected: Inspected | None
) -> Sources:
    job = cluster.job
    needs_image = engine_traits(job.engine).in_container
    image = job.image if needs_image and "image" in parts else ""
    folders = {"dataset": job.dataset, "workdir": job.workdir}
    trees = {
        part: scan(folder, ignore=part == "workdir")
        for part, folder in folders.items()
        if folder and part in parts
    }
    for tree in trees.values():
        if tree.skipped:
            others = f" and {len(tree.skipped) - 1} more" if len(tree.skipped) > 1 else ""
            tracker.say(f"{shown(tree.skipped[0])}{others}: not a file, folder or link; skipped")
    here = None
    if inspected:
        here = inspected.here
    elif image:
        try:
            here = images.inspect(local, image)
        except DockerUnavailable:
            pass  # no engine here; the hosts may have the image, or pull it
    return Sources(image, here, trees)


def _image_id(sources: Sources, found: Mapping[Node, ImageInfo]) -> str | None:
    """The id on this machine, else on the first host: what run.json records."""
    if sources.here is not None:
        return sources.here.id
    return next((image.id for image in found.values()), None)


class _Push:
    """Sending what is missing, part by part."""

    def __init__(self, sources: Sources, parts: Set[Part], local: Node, tracker: Tracker) -> None:
        self.sources, self.parts = sources, parts
        self.local, self.tracker = local, tracker

    def run(self, nodes: Sequence[Node], inspected: Inspected | None) -> Outcome:
        """The image of each host, and the hosts that failed with the reason."""
        digests = self.sources.digest("dataset"), self.sources.digest("workdir")
        states, failures = try_each(nodes, lambda node: inspect_host(node, *digests))
        found: dict[Node, ImageInfo] = {}
        fanout = Fanout(states, self.tracker)
        try:
            if self.sources.image:
                found, failed = self._image(list(states), fanout, inspected)
                failures |= failed
            for part, tree in self.sources.trees.items():
                ready = {node: state for node, state in states.items() if node not in failures}
                failures |= self._tree(part, tree, ready, fanout)
        finally:
            fanout.close()
        return found, failures

    def _image(self, nodes: Sequence[Node], fanout: Fanout, inspected: Inspected | None) -> Outcome:
        name = self.sources.image
        there: Mapping[Node, ImageInfo | None]
        failures: dict[Node, DdpctlError] = {}
        if inspected:
            there = {node: inspected.there[node] for node in nodes}
        else:
            there, failures = try_each(nodes, lambda node: images.inspect(node, name))
        if "image" in self.parts:
            push = ImagePush(name, self.sources.here, self.local, fanout, self.tracker)
            found, failed = push.run(there)
            return found, {**failures, **failed}
        found = {node: image for node, image in there.items() if image is not None}
        for node in there:
            if node not in found:
                failures[node] = PushFailed(
                    f"{node.name}: {name} is not there; `ddpctl push HOSTS --image`"
                )
        remedy = "`ddpctl push HOSTS --image` makes them the same"
        return found, {**failures, **different_images(name, found, remedy)}

    def _tree(
        self, part: str, tree: Tree, states: Mapping[Node, HostState], fanout: Fanout
    ) -> dict[Node, DdpctlError]:
        missing = [node for node, state in states.items() if part not in state.has]
        for node in states:
            if node not in missing:
                setattr(self.tracker.hosts[node], part, "present")
                self.tracker.hosts[node].files_skipped += tree.manifest.files
        if not missing:
            return {}
        if part not in self.parts:
            return {
                node: PushFailed(
                    f"{node.name}: does not have the current {part}; `ddpctl push HOSTS --{part}`"
                )
                for node in missing
            }
        failures = TreePush(tree, part, fanout, self.tracker).run(missing)
        for node in missing:
            if node not in failures:
                setattr(self.tracker.hosts[node], part, "sent")
        return failures
