"""Draw docs/launch.svg from the output of two launches on the simulated cluster.

python scripts/picture.py        (needs a Docker Engine and scripts/test-images)
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "integration")]

from cluster import Cluster  # noqa: E402

FAILING = """
import os, time
if os.environ["RANK"] == "3":
    time.sleep(1)
    raise ValueError("loss is NaN at step 1200")
time.sleep(600)
"""
COMMAND = ["-m", "trainer", "--model", "resnet8", "--global-batch", "96", "--data", "synthetic"]
COMMAND += ["--epochs", "2"]
COLOURS = ("cyan", "green", "magenta")
WIDTH = 104


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(Path(scratch))
        try:
            cluster.up()
            shown = scenes(cluster, Path(scratch))
        finally:
            cluster.down()
    draw(shown, ROOT / "docs" / "launch.svg")


def scenes(cluster: Cluster, folder: Path) -> list[str]:
    """Return the output of a launch that trains, and of one whose rank 3 raises."""
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(FAILING)
    hosts = cluster.hosts_yaml(folder / "hosts.yaml", nproc_per_node=2, workdir=str(code))
    home = cluster.home_at(folder / "state")
    lines = ["$ ddpctl launch hosts.yaml -- " + " ".join(COMMAND)]
    lines += said(home.ddpctl("launch", hosts, "--", *COMMAND, timeout=600))
    lines += ["", "$ ddpctl launch hosts.yaml -- train.py"]
    lines += said(home.ddpctl("launch", hosts, "--", "train.py"))[-9:]
    return lines


def said(done: object) -> list[str]:
    err, out = done.stderr.splitlines(), done.stdout.splitlines()  # type: ignore[attr-defined]
    chosen = [line for line in out if re.search(r"epoch|steps|completed|:0\] resnet", line)]
    return [*err[:-1], *chosen, err[-1]] if chosen else err


def draw(lines: list[str], target: Path) -> None:
    console = Console(record=True, width=WIDTH, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    for line in lines:
        console.print(coloured(line[:WIDTH]))
    picture = console.export_svg(title="three hosts, six ranks")
    # a page with this picture must not load a font from another server
    target.write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL))


def coloured(line: str) -> Text:
    text = Text(line)
    if match := re.match(r"\[node(\d)[^\]]*\]", line):
        text.stylize(COLOURS[int(match[1])], 0, match.end())
    elif line.startswith("$"):
        text.stylize("bold")
    elif "error:" in line:
        text.stylize("red", 0, line.index("error:") + 6)
    return text


if __name__ == "__main__":
    main()
