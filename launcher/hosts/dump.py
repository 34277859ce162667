"""A `Cluster` as the text of a hosts file that reads back to an equal one."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import yaml

from .model import Cluster


def dump(cluster: Cluster) -> str:
    """The hosts file as used: defaults merged, paths absolute, only what differs from a default."""
    document = {
        "hosts": [_fields(host) for host in cluster.hosts],
        "spares": [_fields(host) for host in cluster.spares],
        "job": _fields(cluster.job),
    }
    document = {name: section for name, section in document.items() if section}
    # YAML would fold U+0085 and similar characters into a space, so they are escaped. Long lines
    # are not folded either: an argument may contain any number of spaces.
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=2**31 - 1)


def _fields(part: Any) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    written: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        factory = field.default_factory
        if value != (field.default if factory is MISSING else factory()):
            written[field.name] = list(value) if isinstance(value, tuple) else value
    return written
