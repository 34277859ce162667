"""A push from start to end: scan this machine, query each host once, send, report."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from ..engines import images
from ..engines.choose import engine_traits
from ..engines.engine_info import ImageInfo
from ..errors import DdpctlError, PushFailed
from ..hosts import Cluster, Host, Job
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node, connected
from ..terminal.console import Console
from .files.scan import Tree, scan_job, shown
from .files.tree import TreePush
from .image.push_image import Outcome, check_image, push_image
from .progress import Progress
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
    address: str  # where this machine or the last jump host reached it; "" if unknown


def push(
    nodes: Sequence[Node],
    cluster: Cluster,
    *,
    parts: Set[Part],
    console: Console,
    only: bool = False,
    inspected: Inspected | None = None,
) -> PushResult:
    """Send `parts` of the job, and verify that hosts have the other parts, unless `only` is set.

    inspected: the image as the engines just reported it, if known. Raises HostsNotReady (a
    PushFailed) with each failed host; the others are ready and stay so. Raises PushFailed if this
    machine cannot send a part at all.
    """
    machines = one_per_account(nodes)
    progress = Progress(machines, console)
    try:
        with connected([Host(host="local")]) as [local]:
            run = _Push(cluster.job, parts, parts if only else ALL, local, progress, inspected)
            found, failures = run.run(machines)
    except OSError as error:  # not stdout: that must not end the command like a closed stdout
        raise PushFailed(f"this machine: the push failed: {error}; push again") from error
    finally:
        report = progress.close()
    # The id on this machine, else on the first host; run.json records it.
    report.image_digest = next((image.id for image in (run.here, *found.values()) if image), None)
    for node, failure in failures.items():
        progress.hosts[node].error = str(failure)
    if failures:
        raise HostsNotReady(failures, report)
    by_account = {node.host.account: found[node].id if run.image else "" for node in machines}
    return PushResult(tuple(by_account[node.host.account] for node in nodes), report)


class _Push:
    """The parts on this machine that hosts should have; sends them one by one."""

    def __init__(
        self,
        job: Job,
        parts: Set[Part],
        needed: Set[Part],
        local: Node,
        progress: Progress,
        inspected: Inspected | None,
    ) -> None:
        """Scan the folders. needed: `parts` to send, and those that must exist on the hosts."""
        self.parts, self.local, self.progress, self.inspected = parts, local, progress, inspected
        needs_image = "image" in needed and engine_traits(job.engine).in_container
        self.image = job.image if needs_image else ""
        self.trees = scan_job(job, needed)
        for tree in self.trees.values():
            if tree.skipped:
                more = f" and {len(tree.skipped) - 1} more" if len(tree.skipped) > 1 else ""
                notice = f"{shown(tree.skipped[0])}{more}: not a file, folder or link; skipped"
                progress.say(notice)
        self.here = inspected.here if inspected else None
        if self.image and not inspected:
            try:
                self.here = images.inspect(local, self.image)
            except DdpctlError:
                pass  # no engine here; the hosts may have the image or pull it
        progress.report.dataset_digest = self._digest("dataset")
        progress.report.workdir_digest = self._digest("workdir")

    def _digest(self, part: str) -> str | None:
        return self.trees[part].manifest.digest if part in self.trees else None

    def run(self, nodes: Sequence[Node]) -> Outcome:
        """Push all parts. Return each host's image, and the failed hosts with their errors."""
        states, failures = try_each(nodes, self._inspect)
        relays = {
            node: node.host.internal_ip or state.address
            for node, state in states.items()
            if "python3" in state.has and not node.host.is_local
        }
        found: dict[Node, ImageInfo] = {}
        with closing(Fanout({n: ip for n, ip in relays.items() if ip}, self.progress)) as fanout:
            if self.image:
                found, failed = self._push_image(list(states), fanout)
                failures |= failed
            for part, tree in self.trees.items():
                there = {node: state.has for node, state in states.items() if node not in failures}
                failures |= self._push_tree(part, tree, there, fanout)
        return found, failures

    def _inspect(self, node: Node) -> HostState:
        digests = self._digest("dataset") or "", self._digest("workdir") or ""
        what = "its shell did not run a plain script"
        text = script_output(node, what, INSPECT, *digests, timeout=60.0)
        has = frozenset(re.findall(r"^have (\w+)$", text, re.MULTILINE))
        connection = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
        try:
            return HostState(has, str(ipaddress.ip_address(connection[1])) if connection else "")
        except ValueError:
            return HostState(has, "")

    def _push_image(self, nodes: Sequence[Node], fanout: Fanout) -> Outcome:
        there: Mapping[Node, ImageInfo | None]
        failures: dict[Node, DdpctlError] = {}
        if self.inspected:
            there = {node: self.inspected.there[node] for node in nodes}
        else:
            there, failures = try_each(nodes, lambda node: images.inspect(node, self.image))
        if "image" in self.parts:
            found, failed = push_image(
                self.image, self.here, there, self.local, fanout, self.progress
            )
        else:
            found, failed = check_image(self.image, there)
        return found, {**failures, **failed}

    def _push_tree(
        self, part: str, tree: Tree, there: Mapping[Node, Collection[str]], fanout: Fanout
    ) -> dict[Node, DdpctlError]:
        missing = [node for node, has in there.items() if part not in has]
        remedy = f"does not have the current {part}; run `ddpctl push HOSTS --{part}`"
        failures: dict[Node, DdpctlError]
        failures = {node: PushFailed(f"{node.name}: {remedy}") for node in missing}
        if missing and part in self.parts:
            failures = TreePush(tree, part, fanout, self.progress).run(missing)
        for node in there:
            if node not in missing:
                self.progress.hosts[node].files_skipped += tree.manifest.files
            if node not in failures:
                setattr(self.progress.hosts[node], part, "sent" if node in missing else "present")
        return failures
