"""Loading libraries without what they bring that nobody here asked for."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Older paramiko names ciphers that newer cryptography is about to drop, and says so. And half of
    its time to load is that of invoke, by which it would read ~/.ssh/config: here `ssh -G` does."""
    without = "invoke" not in sys.modules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if without:
            sys.modules["invoke"] = None  # type: ignore[assignment]  # an ImportError for who tries
        try:
            yield
        finally:
            if without:
                sys.modules.pop("invoke", None)
