"""Image, dataset and code to every host, only what is missing there."""

from launcher.push.host import Image, Inspected, parse_image
from launcher.push.progress import Progress, progress_for
from launcher.push.pushing import Pruned, Pushed, What, prune, push
from launcher.push.report import HostsNotReady, PushReport

__all__ = [
    "HostsNotReady",
    "Image",
    "Inspected",
    "Progress",
    "Pruned",
    "PushReport",
    "Pushed",
    "What",
    "parse_image",
    "progress_for",
    "prune",
    "push",
]
