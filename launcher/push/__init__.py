"""Send the image, dataset and code to every host; only what is missing there."""

from launcher.push.files.prune import PruneResult, prune
from launcher.push.host import Inspected
from launcher.push.progress import progress_for
from launcher.push.report import HostsNotReady
from launcher.push.run import Part, PushResult, push

__all__ = [
    "HostsNotReady",
    "Inspected",
    "Part",
    "PruneResult",
    "PushResult",
    "progress_for",
    "prune",
    "push",
]
