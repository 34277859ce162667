"""paramiko without invoke, which takes half of its time to load.

paramiko needs invoke only for `Match exec` in its own reader of ssh_config; we ask `ssh -G` instead.
"""

import sys

__all__ = ["paramiko"]

if "paramiko" in sys.modules or "invoke" in sys.modules:
    import paramiko
else:
    sys.modules["invoke"] = None  # type: ignore[assignment]  # importing it fails
    try:
        import paramiko
    finally:
        del sys.modules["invoke"]
