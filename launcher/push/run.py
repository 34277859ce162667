"""A push from start to end: scan this machine, query each host once, send, report."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from ..engines import images
from ..engines.choose import engine_traits
from ..engines.engine_info import ImageInfo
from ..errors import DdpctlError, PushFailed
from ..hosts import Cluster, Host
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node, connected
from .files.scan import Tree, scan_job, shown
from .files.tree import TreePush
from .image.push_image import Outcome, different_images, push_image
from .progress import Progress, Tracker
from .report import HostsNotReady, PushReport
from .transfer.fanout import Fanout
from .transfer.payload import script_output

Part = Literal["image", "dataset", "workdir"]
ALL: frozenset[Part] = frozenset(("image", "dataset", "workdir"))

# Needs a POSIX shell and coreutils. Hosts with python3 can also relay.
# $1: dataset digest or "", $2: workdir digest or ""
INSPECT = r"""
cd "$HOME" || exit
mkdir -p -m 700 .ddpctl && chmod 700 .ddpctl
have() { [ -n "$2" ] && [ -d "$3/$2" ] && touch "$3/$2" && echo "have $1"; }
have dataset "$1" .ddpctl/datasets
have workdir "$2" .ddpctl/workdirs
command -v python3 >/dev/null 2>&1 && echo 'have python3'
printf 'ssh %s\n' "$SSH_CONNECTION"
exit 0
"""


@dataclass(frozen=True)
class Inspected:
    """The job's image on this machine and on the nodes, as their engines just reported it."""

    here: ImageInfo | None
    there: Mapping[Node, ImageInfo | None]


@dataclass(frozen=True)
class PushResult:
    """The result. images: the name or id of the image on each node's engine; "" without an image."""

    images: tuple[str, ...]
    report: PushReport


@dataclass(frozen=True)
class HostState:
    has: frozenset[str]  # any of dataset, workdir, python3
    relay_address: str  # address at which other hosts can fetch from it; "" if they cannot


def push(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    parts: Set[Part],
    progress: Progress,
    only: bool = False,
    inspected: Inspected | None = None,
) -> PushResult:
    """Send `parts` of the job, and verify that hosts have the other parts, unless `only` is set.

    inspected: the image as the engines just reported it, if known. Raises HostsNotReady (a
    PushFailed) with each failed host; the others are ready and stay so. Raises PushFailed if this
    machine cannot send a part at all.
    """
    machines = one_per_account(nodes)
    tracker = Tracker(machines, progress)
    with connected([Host(host="local")]) as [local]:
        try:
            run = _Push(cluster, parts, parts if only else ALL, local, tracker, inspected)
            reached, failures = try_each(machines, Node.connect)
            with progress:
                found, failed = run.run(list(reached))
        except OSError as error:  # not stdout: that must not end the command like a closed stdout
            raise PushFailed(f"this machine: the push failed: {error}; push again") from error
    report = tracker.finish()
    # The id on this machine, else on the first host; run.json records it.
    report.image_digest = next((image.id for image in (run.here, *found.values()) if image), None)
    failures |= failed
    for node, failure in failures.items():
        tracker.hosts[node].error = str(failure)
    if failures:
        raise HostsNotReady(failures, report)
    by_account = {node.host.account: found[node].id if run.image else "" for node in machines}
    return PushResult(tuple(by_account[node.host.account] for node in nodes), report)


class _Push:
    """The parts on this machine that hosts should have; sends them one by one."""

    def __init__(
        self,
        cluster: Cluster,
        parts: Set[Part],
        needed: Set[Part],
        local: Node,
        tracker: Tracker,
        inspected: Inspected | None,
    ) -> None:
        """Scan the folders. needed: `parts` to send, and those that must exist on the hosts."""
        job = cluster.job
        self.parts, self.local, self.tracker, self.inspected = parts, local, tracker, inspected
        needs_image = "image" in needed and engine_traits(job.engine).in_container
        self.image = job.image if needs_image else ""
        self.trees = scan_job(job, needed)
        for tree in self.trees.values():
            if tree.skipped:
                more = f" and {len(tree.skipped) - 1} more" if len(tree.skipped) > 1 else ""
                tracker.say(f"{shown(tree.skipped[0])}{more}: not a file, folder or link; skipped")
        self.here = inspected.here if inspected else self._image_here()
        tracker.report.dataset_digest = self._digest("dataset") or None
        tracker.report.workdir_digest = self._digest("workdir") or None

    def _image_here(self) -> ImageInfo | None:
        try:
            return images.inspect(self.local, self.image) if self.image else None
        except DdpctlError:
            return None  # no engine here; the hosts may have the image or pull it

    def _digest(self, part: str) -> str:
        return self.trees[part].manifest.digest if part in self.trees else ""

    def run(self, nodes: Sequence[Node]) -> Outcome:
        """Push all parts. Return each host's image, and the failed hosts with their errors."""
        states, failures = try_each(nodes, self._inspect)
        found: dict[Node, ImageInfo] = {}
        relays = {node: state.relay_address for node, state in states.items()}
        fanout = Fanout({node: ip for node, ip in relays.items() if ip}, self.tracker)
        try:
            if self.image:
                found, failed = self._image(list(states), fanout)
                failures |= failed
            for part, tree in self.trees.items():
                ready = {node: state for node, state in states.items() if node not in failures}
                failures |= self._tree(part, tree, ready, fanout)
        finally:
            fanout.close()
        return found, failures

    def _inspect(self, node: Node) -> HostState:
        digests = self._digest("dataset"), self._digest("workdir")
        what = "its shell did not run a plain script"
        text = script_output(node, what, INSPECT, *digests, timeout=60.0)
        has = frozenset(re.findall(r"^have (\w+)$", text, re.MULTILINE))
        can_relay = "python3" in has and not node.host.is_local
        return HostState(has, (node.host.internal_ip or _address(text)) if can_relay else "")

    def _image(self, nodes: Sequence[Node], fanout: Fanout) -> Outcome:
        there: Mapping[Node, ImageInfo | None]
        failures: dict[Node, DdpctlError] = {}
        if self.inspected:
            there = {node: self.inspected.there[node] for node in nodes}
        else:
            there, failures = try_each(nodes, lambda node: images.inspect(node, self.image))
        if "image" in self.parts:
            found, failed = push_image(
                self.image, self.here, there, self.local, fanout, self.tracker
            )
            return found, {**failures, **failed}
        found = {node: image for node, image in there.items() if image is not None}
        for node in there:
            if node not in found:
                failures[node] = PushFailed(
                    f"{node.name}: does not have {self.image}; run `ddpctl push HOSTS --image`"
                )
        remedy = "`ddpctl push HOSTS --image` makes them the same"
        return found, {**failures, **different_images(self.image, found, remedy)}

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
                    f"{node.name}: does not have the current {part}; run `ddpctl push HOSTS --{part}`"
                )
                for node in missing
            }
        failures = TreePush(tree, part, fanout, self.tracker).run(missing)
        for node in missing:
            if node not in failures:
                setattr(self.tracker.hosts[node], part, "sent")
        return failures


def _address(text: str) -> str:
    """Return the address at which this machine or the last jump host reached the host; "" if unknown."""
    connection = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
    try:
        return str(ipaddress.ip_address(connection[1])) if connection else ""
    except ValueError:
        return ""
