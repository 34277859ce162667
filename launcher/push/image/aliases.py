"""Images that are the same under different ids: what a host's engine called one that was pushed.

An engine with containerd's store may show an image without its layers if it had some of them with
another compression; then only its id identifies it. The id is stored here once the image has been
seen to start on that host. Losing the file costs one push of that image.
"""

from __future__ import annotations

import json
from pathlib import Path

from ...engines.engine_info import ImageInfo
from ...state import cache_home, write_cache


def same(one: ImageInfo, other: ImageInfo) -> bool:
    if one.same_as(other):
        return True
    known = _read()
    return known.get(one.id, one.id) == known.get(other.id, other.id) != ""


def remember(there: ImageInfo, here: ImageInfo) -> None:
    known = _read()
    if there.id == here.id or known.get(there.id) == here.id:
        return
    write_cache(_file(), json.dumps({**known, there.id: here.id}))


def _file() -> Path:
    return cache_home() / "images.json"


def _read() -> dict[str, str]:
    try:
        found = json.loads(_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
