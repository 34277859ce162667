"""Send the image, dataset and code to hosts that lack them."""

from .files.prune import PruneResult, prune
from .report import HostsNotReady
from .run import Inspected, Part, PushResult, push

__all__ = ["HostsNotReady", "Inspected", "Part", "PruneResult", "PushResult", "prune", "push"]
