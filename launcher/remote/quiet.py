"""Loading libraries without their warnings to whoever wrote the library below them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Older paramiko names ciphers that newer cryptography is about to drop, and says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
