"""Ask hosts what they already have, and send them what they lack."""

import contextlib
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from rich.filesize import decimal

from ..engines.choose import images_of
from ..engines.engine_info import ImageInfo
from ..errors import DdpctlError, HostUnreachable, PushFailed, lines
from ..hosts import Job
from ..ssh import recently_silent
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..ssh.many import try_each
from ..ssh.script_files import load_script
from ..text import duration
from .files.left_out import listed
from .files.manifest import Manifest
from .files.push_tree import TreePush
from .files.scan import Tree, path_text
from .image.push_image import Images, push_image
from .packages.wheels import make_venv
from .push_progress import PushProgress
from .transfer.fanout import Fanout
from .transfer.payload import Failures, script_output, without
from .transfer.relay_client import TransferDamaged

LARGE = 100_000_000  # bytes; a file or folder of this size is hardly code
INSPECT = load_script(__file__, "inspect_host.sh")
PAUSES = (1.0, 4.0, 10.0)  # seconds before each retry after a lost connection or damaged transfer


@dataclass(frozen=True)
class HostContents:
    """The parts and the image that a host has. address: "" if it cannot relay."""

    trees: frozenset[str]  # the parts whose current tree it has
    image: ImageInfo | None  # the image that has the name in job.image
    address: str  # where other hosts reach it


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
                if connection in self.answered
                and isinstance(error, HostUnreachable | TransferDamaged)
            }
            if not again:
                break
            resumes = f"the push resumes in {duration(pause)}"
            notices = [DdpctlError(e.what, resumes, host=c.name) for c, e in again.items()]
            for line in lines(notices):
                self.progress.say(line)
            time.sleep(pause)
            for connection in again:
                recently_silent.forget(connection.host)
            sent, failed = self._send([*again])
            images |= sent
            failures = {c: e for c, e in failures.items() if c not in again} | failed
        return images, failures

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
                    f"large items in the workdir: {large}; each run gets a copy on every host, {remedy}"
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
