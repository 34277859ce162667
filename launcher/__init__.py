"""ddpctl: launch PyTorch DistributedDataParallel training in containers on several hosts over SSH.

import ddpctl

run = ddpctl.launch("hosts.yaml", ["train.py"])  # a ddpctl.Run
results = ddpctl.run(function, args, hosts="hosts.yaml")  # one per rank
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

# In a checkout, `ddpctl` is a link to `launcher`. If both names were imported, every class would exist
# twice, and `except DdpctlError` would miss the errors of the other copy.
_OTHER_NAME = "ddpctl" if __name__ == "launcher" else "launcher"
_other_file = getattr(sys.modules.get(_OTHER_NAME), "__file__", None)
if _other_file and Path(_other_file).resolve() == Path(__file__).resolve():
    raise ImportError(f"this package is already imported as {_OTHER_NAME}; use only that name")

__version__ = "0.1.0"
__all__ = ["DdpctlError", "RemoteError", "Run", "RunFailed", "find_run", "launch", "run"]

if TYPE_CHECKING:
    from .api import DdpctlError, RemoteError, Run, RunFailed, find_run, launch, run
else:

    def __getattr__(name: str) -> object:
        """Import the API on first use, so that `ddpctl --help` stays fast."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import api

        return getattr(api, name)

    def __dir__() -> list[str]:
        return [*globals(), *__all__]
