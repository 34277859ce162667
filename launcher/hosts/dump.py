"""A `Cluster` as the text of a hosts file that reads back to an equal one."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from .cluster import Cluster


def dump_cluster(cluster: Cluster) -> str:
    document: dict[str, Any] = {"hosts": [_said(host) for host in cluster.hosts]}
    if cluster.spares:
        document["spares"] = [_said(host) for host in cluster.spares]
    job = _said(cluster.job)
    if job:
        document["job"] = job
    # Escapes, not the characters: YAML would fold U+0085 and the like into a space. No folding of
    # long lines either: an argument may hold any run of spaces.
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=2**31 - 1)


def _said(part: Any) -> dict[str, Any]:
    """The fields that differ from what holds without them."""
    said: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if value != default:
            said[field.name] = _plain(value)
    return said


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if hasattr(value, "items") else value
