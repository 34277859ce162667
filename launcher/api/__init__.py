"""ddpctl from Python: start runs, follow them, and call a function on every rank."""

from ..errors import DdpctlError, RemoteError, RunFailed
from .call import run
from .handle import Run, find_run, launch

__all__ = ["DdpctlError", "RemoteError", "Run", "RunFailed", "find_run", "launch", "run"]
