"""Images that are the same under different ids: what a host's engine called one that was sent to it.

An engine with containerd's store may show an image without its layers when it had some of them
compressed in another way; then nothing but its id tells what it is. It is remembered here once the
image has been seen to start there. Losing the file costs a push of that image.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from launcher.push.host import Image
from launcher.state import cache_home


def same(one: Image, other: Image) -> bool:
    if one.same_as(other):
        return True
    known = _read()
    return known.get(one.id, one.id) == known.get(other.id, other.id)


def remember(there: Image, here: Image) -> None:
    known = _read()
    if there.id == here.id or known.get(there.id) == here.id:
        return
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**known, there.id: here.id}))
        draft.replace(file)
    except OSError:
        pass


def _file() -> Path:
    return cache_home() / "images.json"


def _read() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(_file().read_bytes())
    except (OSError, ValueError):
        return {}
    return found
