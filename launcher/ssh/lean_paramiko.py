"""paramiko, imported without invoke, which takes half of paramiko's import time.

Only paramiko's parser for ssh_config uses invoke, for `Match exec`. We do not use that parser: we
run `ssh -G`.
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
