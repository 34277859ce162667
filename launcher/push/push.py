"""A push from start to end: scan local folders, ask hosts what they have, send what is missing."""

import contextlib
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from rich.filesize import decimal

from ..engines.choose import engine_traits, image_here, images_of
from ..engines.engine_info import ImageInfo
from ..errors import DdpctlError, HostUnreachable, PushFailed, lines
from ..hosts import Cluster, Job
from ..ssh import silent_hosts
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..ssh.many import one_per_account, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import duration
from .files.left_out import listed
from .files.manifest import Manifest
from .files.push_tree import TreePush
from .files.scan import Tree, path_text, scan_job
from .image.push_image import Images, differing, push_image
from .image.sif import image_file
from .packages.wheels import make_venv, wheels_of
from .push_progress import HostsNotReady, PushProgress, PushReport, without_spares
from .transfer.fanout import Fanout
from .transfer.payload import Failures, script_output, without
from .transfer.relay_client import TransferDamaged

Part = Literal["image", "dataset", "workdir"]
ALL: frozenset[Part] = frozenset(("image", "dataset", "workdir"))

LARGE = 100_000_000  # bytes; a file or folder of this size is hardly code
INSPECT = load_script(__file__, "inspect_host.sh")
PAUSES = (1.0, 4.0, 10.0)  # seconds before each retry after a lost connection or damaged transfer


@dataclass(frozen=True)
class PushResult:
    """The result of a push. images: the image's id on each node's engine; "" if none is needed."""

    images: tuple[str, ...]
    report: PushReport


@dataclass(frozen=True)
class KnownImages:
    """The copies of the job's image that the checks have just seen, on this machine and on hosts."""

    here: ImageInfo | None = None
    there: Mapping[HostConnection, ImageInfo] = field(default_factory=dict)


NO_IMAGES = KnownImages()


@dataclass(frozen=True)
class HostContents:
    """The parts and the image that a host has. address: "" if it cannot relay."""

    trees: frozenset[str]  # the parts whose current tree it has
    image: ImageInfo | None  # the image that has the name in job.image
    address: str  # where other hosts reach it


def push(
    connections: Sequence[HostConnection],
    cluster: Cluster,
    *,
    console: Console,
    parts: Set[Part] = ALL,
    only_verify: bool = False,
    known: KnownImages = NO_IMAGES,
    spares: Sequence[HostConnection] = (),
) -> PushResult:
    """Send `parts` of the job to the hosts that lack them.

    only_verify: send nothing; a host that lacks a part counts as failed.
    known: images that are not looked up again, except on a host whose push is retried.
    spares: they get the same parts, but the failure of a spare is only a warning.
    Raises HostsNotReady with the error of each failed host; the others are ready.
    Raises PushFailed if this machine cannot send a part at all.
    """
    machines = one_per_account([*connections, *spares])
    progress = PushProgress(machines, console)
    try:
        trees, failures = trees_of(cluster, machines, parts, progress)
        in_engine = "image" in parts and engine_traits(cluster.job.engine).keeps_containers
        here = (known.here or image_here(cluster.job.image)) if in_engine else None
        sender = Sender(
            cluster.job,
            trees,
            here,
            known.there,
            progress,
            in_engine=in_engine,
            only_verify=only_verify,
        )
        images, failed = sender.send_with_retries(without(machines, failures))
        failures |= failed
        if in_engine:
            failures |= differing(cluster.job.image, images)
            # run.json records the id on this machine, or else the id on the first host.
            ids = [image.id for image in (here, *images.values()) if image]
            progress.report.image_digest = next(iter(ids), None)
    except OSError as error:  # from a local file or a pipe; nothing here writes to stdout
        raise PushFailed(f"the push failed: {error}", "push again", host="this machine") from error
    finally:
        report = progress.close()
    for connection, failure in failures.items():
        progress.hosts[connection].error = str(failure)
    failures = without_spares(failures, spares, console)
    report.ok = not failures
    if failures:
        raise HostsNotReady(failures, report)
    by_account = {connection.host.account: image.id for connection, image in images.items()}
    return PushResult(
        tuple(by_account.get(connection.host.account, "") for connection in connections), report
    )


def trees_of(
    cluster: Cluster, machines: Sequence[HostConnection], parts: Set[Part], progress: PushProgress
) -> tuple[dict[str, Tree], Failures]:
    """Return the trees to send, by part, and the errors of the hosts that cannot use them."""
    trees, report = scan_job(cluster, parts), progress.report
    for tree in trees.values():
        if tree.skipped:
            more = f" and {len(tree.skipped) - 1} more" if len(tree.skipped) > 1 else ""
            name = path_text(tree.skipped[0])
            progress.say(f"skipped {name}{more}: only files, folders and links are pushed")
    report.left_out = [each for tree in trees.values() for each in tree.left_out]
    unfit: Failures = {}
    if cluster.job.requirements and "image" in parts:
        wheels, unfit = wheels_of(cluster.job, machines, progress)
        trees |= {"image": wheels} if wheels else {}
    elif engine_traits(cluster.job.engine).image_files and "image" in parts:
        trees["image"] = image_file(cluster.job.image, progress)
    digests = {part: tree.manifest.digest for part, tree in trees.items()}
    report.image_digest = digests.get("image")
    report.dataset_digest, report.workdir_digest = digests.get("dataset"), digests.get("workdir")
    return trees, unfit


@dataclass
class Sender:
    """Sends hosts the parts that they lack, or only verifies that they have every part.

    trees: the trees by part. With `engine: process`, wheels take the place of the image; with
    `engine: apptainer`, the image's file does. here: the image on this machine. known_there: the
    image on hosts where the checks have seen it. in_engine: whether hosts' engines need the image.
    answered: hosts that have answered at least once. relay_failed: hosts whose relay has failed;
    they now get everything from this machine.
    """

    job: Job
    trees: Mapping[str, Tree]
    here: ImageInfo | None
    known_there: Mapping[HostConnection, ImageInfo]
    progress: PushProgress
    in_engine: bool
    only_verify: bool
    answered: set[HostConnection] = field(default_factory=set)
    relay_failed: set[HostConnection] = field(default_factory=set)

    def send_with_retries(self, connections: Sequence[HostConnection]) -> tuple[Images, Failures]:
        """Send the hosts what they lack, and retry after a pause where that may help.

        Return their images, and the errors of failed hosts.
        """
        images, failures = self._send(connections)
        for pause in PAUSES:
            again = {
                connection: error
                for connection, error in failures.items()
                if self._may_retry(connection, error)
            }
            if not again:
                break
            resumes = f"the push resumes in {duration(pause)}"
            notices = [DdpctlError(e.what, resumes, host=c.name) for c, e in again.items()]
            for line in lines(notices):
                self.progress.say(line)
            time.sleep(pause)
            for connection in again:
                silent_hosts.forget(connection.host)
            sent, failed = self._send([*again])
            images |= sent
            failures = {c: e for c, e in failures.items() if c not in again} | failed
        return images, failures

    def _may_retry(self, connection: HostConnection, error: DdpctlError) -> bool:
        return connection in self.answered and isinstance(error, HostUnreachable | TransferDamaged)

    def _ask(self, connection: HostConnection) -> HostContents:
        """Return which trees and image a host has, and the address at which other hosts reach it.

        The address is internal_ip from the hosts file, or else the one at which this machine or the
        last jump host reached it; "" if the host cannot relay.
        """
        digests = [
            self.trees[part].manifest.digest if part in self.trees else ""
            for part in ("dataset", "workdir", "image")
        ]
        what = "cannot list what the host already has"
        connection.connect()  # once, even if the host refuses the login
        image = in_background(self._image_on, connection)  # while the script runs
        text = script_output(connection, what, INSPECT, *digests, timeout=60.0)
        has = frozenset(re.findall(r"^have (\w+)$", text, re.MULTILINE))
        reached = re.search(r"^ssh \S+ \S+ (\S+) \S+$", text, re.MULTILINE)
        address = connection.host.internal_ip or ""
        if reached and not address:
            with contextlib.suppress(ValueError):
                address = str(ipaddress.ip_address(reached[1]))
        can_relay = (
            "python3" in has
            and not connection.host.is_local
            and connection not in self.relay_failed
        )
        return HostContents(has - {"python3"}, image.result(), address if can_relay else "")

    def _image_on(self, connection: HostConnection) -> ImageInfo | None:
        if not self.in_engine:
            return None
        if connection in self.known_there and connection not in self.answered:
            return self.known_there[connection]
        return images_of(connection).inspect(self.job.image)

    def _send(self, connections: Sequence[HostConnection]) -> tuple[Images, Failures]:
        """Try once to send the hosts what they lack. Return the same values as `send_with_retries`."""
        hosts, failures = try_each(connections, self._ask)
        self.answered |= hosts.keys()
        images: Images = {}
        relays = {connection: host.address for connection, host in hosts.items() if host.address}
        with closing(Fanout(relays, self.progress)) as fanout:
            if self.in_engine:
                images, failed = push_image(
                    self.job.image,
                    self.here,
                    {connection: host.image for connection, host in hosts.items()},
                    fanout,
                    only_verify=self.only_verify,
                )
                failures |= failed
            for part in self.trees:
                ready = {connection: hosts[connection] for connection in without(hosts, failures)}
                failures |= self._send_tree(part, ready, fanout)
        self.relay_failed |= {c for c, e in failures.items() if isinstance(e, TransferDamaged)}
        return images, failures

    def _send_tree(
        self, part: str, hosts: Mapping[HostConnection, HostContents], fanout: Fanout
    ) -> Failures:
        """Send a tree to the hosts that lack it. Return the errors of failed hosts.

        With `only_verify`, sends nothing and counts every host that lacks the tree as failed.
        """
        tree = self.trees[part]
        packages = part == "image" and self.job.requirements
        kind, what = ("wheel", "packages") if packages else (part, part)
        missing = [connection for connection, host in hosts.items() if part not in host.trees]
        lacks = PushFailed(f"does not have the current {what}", f"run `ddpctl push HOSTS --{part}`")
        failures: Failures = {connection: lacks.on(connection.name) for connection in missing}
        tree_push = TreePush(tree, kind, fanout)
        if missing and not self.only_verify:
            if tree.left_out:
                self.progress.say(f"left out of the {part}: {listed(tree.left_out)}")
            if part == "workdir" and (large := large_parts(tree.manifest)):
                remedy = "so move data to job.dataset, or name it in .ddpctlignore"
                self.progress.say(
                    f"large in the workdir: {large}; each run gets a copy on every host, {remedy}"
                )
            failures = tree_push.run(missing)
            if packages:
                ready = without(missing, failures)
                failures |= try_each(ready, partial(make_venv, self.job, tree.manifest.digest))[1]
        for connection in hosts:
            report, sent = self.progress.hosts[connection], tree_push.files_sent.get(connection, 0)
            report.files_sent += sent
            # otherwise, the push to it failed now, or an earlier try has sent the part
            if connection not in failures and getattr(report, part) is None:
                report.files_skipped += tree.manifest.files - sent
                setattr(report, part, "sent" if connection in missing else "present")
        return failures


def large_parts(manifest: Manifest) -> str:
    """Return the names and sizes of the largest files and folders at the top, if any is large."""
    sizes: Counter[str] = Counter()
    for entry in manifest.entries:
        sizes[path_text(entry.path.split(b"/")[0])] += entry.size
    large = [(name, size) for name, size in sizes.most_common(3) if size > LARGE]
    return ", ".join(f"{name} ({decimal(size)})" for name, size in large)
