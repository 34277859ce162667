"""Hosts behind SSH, and this machine. Only this package imports `paramiko`."""

import sys
import warnings

# Older paramiko versions use cipher names that newer cryptography versions deprecate.
warnings.filterwarnings("ignore", module="paramiko")

# paramiko imports invoke for its own reader of `Match exec`. Here `ssh -G` reads that, and without
# invoke every command starts 50 ms earlier.
if "invoke" not in sys.modules:
    sys.modules["invoke"] = None  # type: ignore[assignment]  # import raises ImportError
    import paramiko  # noqa: F401

    del sys.modules["invoke"]
