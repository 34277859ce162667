"""Send the image, dataset and code to hosts that lack them."""

from .files.prune import PruneResult, prune
from .progress import HostsNotReady
from .run import Part, PushResult, push

__all__ = ["HostsNotReady", "Part", "PruneResult", "PushResult", "prune", "push"]
