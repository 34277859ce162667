"""Write a `Cluster` as a hosts file that reads back as an equal one."""

from __future__ import annotations

from typing import Any

import yaml

from .model import Cluster, Host, Job


def dump(cluster: Cluster) -> str:
    """Return the hosts file as used: defaults merged, paths absolute, default values omitted."""
    document = {
        "hosts": [_changed(host, Host("")) for host in cluster.hosts],
        "spares": [_changed(host, Host("")) for host in cluster.spares],
        "job": _changed(cluster.job, Job()),
    }
    document = {name: section for name, section in document.items() if section}
    # YAML would fold U+0085 and similar characters into a space, so they are escaped. Long lines
    # are not folded, because an argument may contain any number of spaces.
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False, width=2**31 - 1)


def _changed(part: Host | Job, default: Host | Job) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(part).items()
        if value != getattr(default, name)
    }
