"""The story of a push: look here, ask every host once, send what is missing, say what was done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from launcher.engines.choose import engine_traits
from launcher.errors import DdpctlError, PushFailed
from launcher.hosts import Cluster
from launcher.push.files.prune import Unused, remove, unused
from launcher.push.files.scan import Tree, scan, shown
from launcher.push.files.tree import push_tree
from launcher.push.host import HostState, Image, Inspected, ask
from launcher.push.image.alias import same
from launcher.push.image.image import Launcher, push_image
from launcher.push.progress import Progress
from launcher.push.report import HostReport, HostsNotReady, PushReport, in_words
from launcher.push.transfer.send import Journey
from launcher.push.transfer.sender import Sender
from launcher.ssh.many import one_per_account, try_each
from launcher.ssh.node import Node

What = Literal["image", "dataset", "workdir"]
ALL: frozenset[What] = frozenset(("image", "dataset", "workdir"))


@dataclass(frozen=True)
class Pushed:
    """What every node has now. `images` has one entry a node, in the order that they were given:
    what its engine starts the image by ("" without one). Digests are None where nothing is."""

    images: tuple[str, ...]
    image_digest: str | None
    dataset_digest: str | None
    workdir_digest: str | None
    report: PushReport


@dataclass(frozen=True)
class Pruned:
    """What no run uses, by host name; `removed` is False when nobody was sure."""

    trees: list[tuple[str, Unused]]
    removed: bool

    def document(self) -> dict[str, Any]:
        rows = [
            {"host": host, "folder": f"~/.ddpctl/{tree.folder}", "bytes": tree.size}
            for host, tree in self.trees
        ]
        return {"version": 1, "removed": self.removed, "unused": rows}


@dataclass(frozen=True)
class Goods:
    """What the hosts shall have, as it is on this machine."""

    image: str  # "" for none
    here: Image | None  # the image on this machine
    dataset: Tree | None
    workdir: Tree | None

    def digest(self, what: str) -> str:
        tree = self.tree(what)
        return tree.manifest.digest if tree else ""

    def tree(self, what: str) -> Tree | None:
        return self.dataset if what == "dataset" else self.workdir


def push(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    what: Set[What],
    progress: Progress,
    only: bool = False,
    inspected: Inspected | None = None,
) -> Pushed:
    """Sends `what` of the job. Of the rest it sees that it is there, or, with `only`, nothing.

    inspected: what is known of the image already, so that nobody is asked for it again.

    HostsNotReady (a PushFailed) names each host that failed; the others are ready and stay so.
    PushFailed when something on this machine cannot be sent at all.
    """
    machines = one_per_account(nodes)
    journey = Journey(progress, PushReport([]), {node: HostReport(node.name) for node in machines})
    journey.report.hosts = list(journey.hosts.values())
    with ThreadPoolExecutor(1) as beside:  # the hosts are dialled while the disk is read
        dialled = beside.submit(try_each, machines, Node.connect)
        goods = _goods(cluster, what if only else ALL, journey, inspected)
        there, unreached = dialled.result()
    with progress:
        images, failures = _push(goods, list(there), what, journey, inspected)
    failures |= unreached
    report = journey.report
    report.seconds = time.monotonic() - journey.began
    for host in report.hosts:
        host.seconds = host.seconds or report.seconds
    report.dataset_digest = goods.digest("dataset") or None
    report.workdir_digest = goods.digest("workdir") or None
    report.image_digest = _identity(goods, images)
    for node, error in failures.items():
        journey.hosts[node].error = str(error)
    if failures:
        raise HostsNotReady({node.name: error for node, error in failures.items()}, report)
    by_account = {node.host.account: node for node in machines}
    by_node = [by_account[node.host.account] for node in nodes]
    return Pushed(
        images=tuple(images[node].id if goods.image else "" for node in by_node),
        image_digest=report.image_digest,
        dataset_digest=report.dataset_digest,
        workdir_digest=report.workdir_digest,
        report=report,
    )


def prune(
    nodes: Sequence[Node], cluster: Cluster, progress: Progress, *, sure: Callable[[str], bool]
) -> Pruned:
    """Removes trees that neither a run nor this hosts file uses. `sure` is shown the list first.

    HostsNotReady names each host that could not be asked, or where something is left.
    """
    machines = one_per_account(nodes)
    journey = Journey(progress, PushReport([]), {})
    asked: frozenset[What] = frozenset(("dataset", "workdir"))
    goods = _goods(cluster, asked, journey)
    found, failures = unused(machines, [goods.digest(kind) for kind in asked if goods.tree(kind)])
    rows = [(node.name, tree) for node, trees in found.items() for tree in trees]
    removed = bool(rows) and sure("\n".join(_row(name, tree) for name, tree in rows))
    if removed:
        failures |= remove(found)
    if failures:
        errors = {node.name: error for node, error in failures.items()}
        raise HostsNotReady(errors, journey.report)
    return Pruned(rows, removed)


def _row(host: str, tree: Unused) -> str:
    return f"{host}: ~/.ddpctl/{tree.folder}  {in_words(tree.size)}"


def _push(
    goods: Goods,
    nodes: list[Node],
    what: Set[What],
    journey: Journey,
    inspected: Inspected | None,
) -> tuple[dict[Node, Image], dict[Node, DdpctlError]]:
    image = "" if inspected else goods.image
    question = partial(
        ask, image=image, dataset=goods.digest("dataset"), workdir=goods.digest("workdir")
    )
    states, failures = try_each(nodes, question)
    if inspected:
        states = {n: replace(state, image=inspected.there[n]) for n, state in states.items()}
    images: dict[Node, Image] = {}
    sender = Sender(states, journey)
    try:
        if goods.image:
            if "image" in what:
                images, failed = push_image(goods.image, goods.here, states, sender, journey)
            else:
                images, failed = _images_there(goods.image, states)
            failures |= failed
        for kind in ("dataset", "workdir"):
            ready = {node: state for node, state in states.items() if node not in failures}
            failures |= _push_tree(goods.tree(kind), kind, ready, kind in what, sender, journey)
    finally:
        sender.close()
    return images, failures


def _goods(
    cluster: Cluster, asked: Set[What], journey: Journey, inspected: Inspected | None = None
) -> Goods:
    job = cluster.job
    needs_image = engine_traits(job.engine).in_container
    image = job.image if needs_image and "image" in asked else ""
    dataset = scan(job.dataset, ignore=False) if job.dataset and "dataset" in asked else None
    workdir = scan(job.workdir, ignore=True) if job.workdir and "workdir" in asked else None
    for tree in (dataset, workdir):
        if tree is not None and tree.skipped:
            first, more = shown(tree.skipped[0]), len(tree.skipped) - 1
            others = f" and {more} more" if more else ""
            journey.say(f"{first}{others}: neither file, folder nor link: left out")
    here = inspected.here if inspected else Launcher().image(image) if image else None
    return Goods(image, here, dataset, workdir)


def _push_tree(
    tree: Tree | None,
    what: str,
    states: dict[Node, HostState],
    wanted: bool,
    sender: Sender,
    journey: Journey,
) -> dict[Node, DdpctlError]:
    if tree is None:
        return {}
    missing = []
    for node, state in states.items():
        if what in state.has:
            setattr(journey.hosts[node], what, "present")
            journey.hosts[node].files_skipped += tree.manifest.files
        else:
            missing.append(node)
    if not missing:
        return {}
    if not wanted:
        return {
            node: PushFailed(
                f"{node.name}: the {what} as it is now is not there; `ddpctl push HOSTS --{what}`"
            )
            for node in missing
        }
    failures = push_tree(tree, what, missing, sender, journey)
    for node in missing:
        if node not in failures:
            setattr(journey.hosts[node], what, "sent")
    return failures


def _images_there(
    name: str, states: dict[Node, HostState]
) -> tuple[dict[Node, Image], dict[Node, DdpctlError]]:
    """Nothing is to be sent, so what is there has to be there, and the same everywhere."""
    images = {node: state.image for node, state in states.items() if state.image is not None}
    failures: dict[Node, DdpctlError] = {
        node: PushFailed(f"{node.name}: {name} is not there; `ddpctl push HOSTS --image`")
        for node in states
        if node not in images
    }
    first = next(iter(images.items()), None)
    for node, image in images.items():
        if first is not None and not same(image, first[1]):
            failures[node] = PushFailed(
                f"{node.name}: {name} is another image there than on {first[0].name}; "
                "`ddpctl push HOSTS --image` makes them the same"
            )
    return images, failures


def _identity(goods: Goods, images: dict[Node, Image]) -> str | None:
    """The image's id on this machine, else on the first host: what run.json remembers."""
    if goods.here is not None:
        return goods.here.id
    return next((image.id for image in images.values()), None)
