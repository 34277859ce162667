"""A push from start to end: scan local folders, then send hosts what they lack."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from ..engines.choose import engine_traits, image_here
from ..engines.engine_info import ImageInfo
from ..errors import PushFailed
from ..hosts import Cluster
from ..ssh.host_connection import HostConnection
from ..ssh.many import one_per_account
from ..terminal.console import Console
from .files.scan import Tree, path_text, scan_job
from .image.push_image import differing
from .image.sif import image_file
from .packages.wheels import wheels_of
from .push_progress import PushProgress
from .push_report import HostsNotReady, PushReport, without_spares
from .sender import Sender
from .transfer.payload import Failures, without

Part = Literal["image", "dataset", "workdir"]
ALL: frozenset[Part] = frozenset(("image", "dataset", "workdir"))


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
    """Send `parts` of the job to the hosts that lack them. Return what was done.

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
