"""Write RESULTS.md. It has one section per benchmark, which each run of the benchmark replaces."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

PATH = Path(__file__).with_name("RESULTS.md")


def write_section(title: str, command: str, text: str) -> None:
    """Write `text` under `## title` with the date, the machine and the command."""
    today = datetime.date.today().isoformat()
    where = f"{os.cpu_count()} cores, {_processor()}, Linux {platform.release()}"
    section = f"## {title}\n\n{today}, {where}, Python {platform.python_version()}: `{command}`\n\n"
    section += text.rstrip() + "\n"
    head, *others = PATH.read_text().split("\n## ")
    parts = ["## " + part for part in others]
    kept = [part.rstrip() + "\n" for part in parts if not part.startswith(f"## {title}\n")]
    PATH.write_text(head + "\n" + "\n".join(sorted([*kept, section])))


def commit() -> str:
    """Return the short hash of the commit that is measured."""
    argv = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(argv, cwd=PATH.parent, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
