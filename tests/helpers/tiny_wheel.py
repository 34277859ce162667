"""Build wheels here, so that tests need no package index."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def tiny_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    *,
    tag: str = "py3-none-any",
    scripts: str = "",
) -> Path:
    """Write a wheel of version 1. scripts: lines such as `torchrun = module:main`."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.dist-info"
    texts = dict(files)
    texts[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    texts[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
    if scripts:
        texts[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n"
    texts[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*texts, f"{info}/RECORD"])
    path = folder / f"{name}-1-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for at, text in texts.items():
            wheel.writestr(zipfile.ZipInfo(at), text)
    return path
