"""Record docs/pictures/: real terminals on the simulated cluster, and a report in a real browser.

python scripts/pictures.py       (takes minutes; needs tmux, chromium, an engine and scripts/test-images)

A terminal is a tmux session. Its screen is captured four times a second, with the colors that the programs
printed; nothing is added, left out or cut. Only pauses longer than PAUSE are shortened.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "integration"), str(ROOT / "tests" / "helpers")]

from browser import browser  # noqa: E402
from cluster import Cluster, Home  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
PAUSE = 1.5  # seconds between two frames, at most
HELD = 8.0  # seconds of the last frame
LETTER, LINE = 7.8, 17.0  # size of a cell in pixels, at 13 px
SCRIPT = """\
import os, time

rank = int(os.environ["RANK"])
for epoch in range(1, 4):
    for step in range(20, 101, 20):
        time.sleep(0.4)
        if (rank, epoch, step) == (3, 2, 60):
            raise ValueError("loss is NaN")
        if rank == 0:
            print(f"epoch {epoch}/3  step {step}/100  loss {2.3 / (epoch + step / 100):.3f}")
"""
TRAIN = "--model resnet8 --data synthetic --global-batch 96 --lr 0.02 --epochs 3 --save-every 1ep"
Frame = tuple[float, list[str]]  # seconds since the beginning, lines with escape sequences


class Terminal:
    """A terminal in which a shell runs."""

    def __init__(self, home: Home, folder: Path, rows: int, columns: int) -> None:
        self.socket = f"ddpctl-pictures-{os.getpid()}-{time.monotonic_ns()}"
        command = folder / "bin" / "ddpctl"
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m launcher "$@"\n')
        command.chmod(0o755)
        path = f"{command.parent}:{home.environment['PATH']}"
        environment = {**home.environment, "PATH": path, "PS1": "$ ", "COLORTERM": "truecolor"}
        size = ["-x", str(columns), "-y", str(rows)]
        shell = ["env", *(f"{name}={value}" for name, value in environment.items()), "sh"]
        self.tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *shell)
        self.tmux("set", "-g", "status", "off")
        self.type("PS1='$ '; clear")
        time.sleep(1)

    def tmux(self, *argv: str) -> str:
        done = subprocess.run(["tmux", "-L", self.socket, *argv], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, line: str) -> None:
        self.tmux("send-keys", "-l", line)
        self.tmux("send-keys", "Enter")

    def screen(self) -> list[str]:
        return self.tmux("capture-pane", "-e", "-p").rstrip("\n").split("\n")

    def record(self, line: str, look: Callable[[Frame], None] = lambda frame: None) -> list[Frame]:
        """Type the line and return the frames until the next prompt. `look` is called with each frame."""
        frames: list[Frame] = [(0.0, self.screen())]
        self.type(line)
        began = time.monotonic()
        while True:
            time.sleep(0.25)
            screen = self.screen()
            if screen != frames[-1][1]:
                frames.append((time.monotonic() - began, screen))
                look(frames[-1])
            if Text.from_ansi(screen[-1]).plain.strip() == "$" and len(frames) > 1:
                return frames
            assert time.monotonic() < began + 300, "\n".join(screen)


@contextlib.contextmanager
def terminal(home: Home, folder: Path, rows: int, columns: int = 124) -> Iterator[Terminal]:
    opened = Terminal(home, folder, rows, columns)
    try:
        yield opened
    finally:
        opened.tmux("kill-server")


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cluster = Cluster(folder)
        try:
            cluster.up()
            scenes(cluster, folder)
        finally:
            cluster.down()


def scenes(cluster: Cluster, folder: Path) -> None:
    project = folder / "project"
    (project / "code").mkdir(parents=True)
    (project / "code" / "train.py").write_text(SCRIPT)
    code = {"nproc_per_node": 2, "workdir": "code", "command": ["train.py"]}
    cluster.hosts_yaml(project / "hosts.yaml", **code, stop_timeout=5)
    home = cluster.home_at(folder / "state")
    with terminal(home, project, 26) as shell:
        too_much = cluster.hosts_yaml(project / "big.yaml", **code, shm_size="900g")
        write("check.svg", shell.record(f"ddpctl check {too_much.name}")[-1:])
    with terminal(home, project, 26) as shell:
        write("launch.svg", shell.record("ddpctl launch"))
    panel(cluster, home, project)
    report = folder / "report.html"
    home.ddpctl("report", "-o", report)
    with browser(folder / "profile") as tab:
        tab.open(report, 1100)
        (PICTURES / "report.png").write_bytes(tab.screenshot())


def panel(cluster: Cluster, home: Home, project: Path) -> None:
    """Capture the live panel of a training run. A rank is then killed, and the run restarts."""
    taken: list[Frame] = []

    def look(frame: Frame) -> None:
        text = "\n".join(frame[1])
        if not taken and "epoch 2/3" in text and "2 node2  running" in text:
            taken.append(frame)
            cluster.exec("node1", "pkill", "-9", "-o", "-f", "python3 -u -m trainer")

    with terminal(home, project, 30, columns=140) as shell:
        shell.record(f"ddpctl launch --max-restarts 1 -- -m trainer {TRAIN}", look)
        write("panel.svg", taken, columns=140)


def write(name: str, frames: list[Frame], columns: int = 124) -> None:
    """Draw the frames as an SVG that shows them one after the other in a loop."""
    starts, clock = [0.0], 0.0
    for (before, _), (at, _) in itertools.pairwise(frames):
        clock += min(at - before, PAUSE)
        starts.append(clock)
    total = clock + HELD
    rows = max(len(lines) for _, lines in frames)
    width, height = columns * LETTER + 20, rows * LINE + 20
    rules, drawn = "", ""
    for number, ((_, lines), start) in enumerate(zip(frames, starts, strict=True)):
        end = [*starts, total][number + 1]
        if len(frames) > 1:
            shown = (
                f"{start / total:.4%}{{visibility:visible}}{end / total:.4%}{{visibility:hidden}}"
            )
            rules += f"@keyframes f{number}{{0%{{visibility:hidden}}{shown}}}"
            rules += f"#f{number}{{visibility:hidden;animation:f{number} {total:.1f}s step-end infinite}}"
        drawn += f'<g id="f{number}">{"".join(map(draw, range(len(lines)), lines))}</g>'
    still = f"#f{len(frames) - 1}{{visibility:visible;animation:none}}"
    rules += f"@media (prefers-reduced-motion){{g{{animation:none!important}}{still}}}"
    style = f"text{{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}{rules}"
    (PICTURES / name).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">'
        f'<style>{style}</style><rect width="100%" height="100%" rx="6" fill="#0c0c0c"/>{drawn}</svg>\n'
    )


def draw(row: int, line: str) -> str:
    """Return a line of the screen as SVG text, each piece at its column and in its color."""
    console = Console(width=1000, color_system="truecolor", file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    column, drawn = 0, ""
    screen = Text.from_ansi(line, end="")
    for text, style, _ in Segment.simplify(console.render(screen, console.options)):
        cells = cell_len(text)
        if text.strip():
            at = f'x="{10 + column * LETTER:.1f}" y="{10 + (row + 0.75) * LINE:.1f}"'
            size = f'textLength="{cells * LETTER:.1f}" lengthAdjust="spacingAndGlyphs"'
            drawn += f"<text {at} {size} {looks(style)}>{escape(text)}</text>"
        column += cells
    return drawn


def looks(style: Style | None) -> str:
    style = style or Style()
    color = style.color and style.color.get_truecolor(MONOKAI).hex
    weight = ' font-weight="bold"' if style.bold else ""
    faint = ' opacity=".6"' if style.dim else ""
    return f'fill="{color or "#d4d4d4"}"{weight}{faint}'


if __name__ == "__main__":
    main()
