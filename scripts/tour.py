"""Write docs/tour.md: run the commands of the tour and record what they print.

python scripts/tour.py        (takes a minute; tests/test_tour.py does the same and compares)

The commands run with ddpctl installed from its wheel, where nothing else from this checkout is found.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from clean_install import ROOT, build, install

from launcher.terminal.table import table

PAGE = ROOT / "docs" / "tour.md"
HOSTS = """\
hosts:
  - {host: local, gpus: 0}    # this machine, twice: two nodes
  - {host: local, gpus: 0}
job:
  engine: process             # torchrun itself, no containers
  master_port: auto
  command: [-m, trainer, --data, synthetic, --model, resnet8, --epochs, "2"]
  env: {PYTHONWARNINGS: ignore}
"""
SCRIPT = """\
import os, time

if os.environ["RANK"] == "1":
    raise ValueError("no such class: 1000")
time.sleep(600)
"""
FILES = {"hosts.yaml": HOSTS, "code/broken.py": SCRIPT}
STEPS = (
    ("A hosts file", ("cat hosts.yaml",)),
    ("Train", ("ddpctl launch hosts.yaml --name tour",)),
    ("See it again", ("ddpctl ps hosts.yaml --all", "ddpctl logs --rank 0 --grep test:")),
    ("Take it home", ("ddpctl fetch tour --to results", "ls results", "ddpctl report tour")),
    (
        "What a failure looks like",
        (
            "cat code/broken.py",
            "ddpctl launch hosts.yaml --workdir code -- broken.py >all.log; echo exit code $?",
        ),
    ),
)
BEGIN, END = "<!-- made by scripts/tour.py -->\n", "<!-- end of the tour -->\n"


def tour(folder: Path) -> str:
    """Run the commands in `folder` and return the tour as Markdown."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    home = folder / "home"
    home.mkdir()
    programs = install(build("wheel", home / "dist"), home / "installed")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DDPCTL_", "PET_", "PYTHON"))}
    environment = {
        **kept,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / ".local" / "state"),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LOGNAME": "you",
        "LC_ALL": "C.UTF-8",
    }
    parts = []
    for title, commands in STEPS:
        shown = []
        for line in commands:
            done = subprocess.run(
                ["sh", "-c", line],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
            assert done.returncode == 0, f"$ {line}\n{done.stdout}"
            shown.append(f"$ {line}\n{anonymised(done.stdout, home)}")
        parts.append(f"**{title}**\n\n```console\n" + "\n".join(shown) + "```\n")
    return "\n".join(parts)


def anonymised(output: str, home: Path) -> str:
    """Replace this machine's folders, host name and user name with neutral ones."""
    text = output.replace(str(home), "~")
    text = re.sub(r"(?m)^ddpctl: .*\.\.\.\n", "", text)  # a slow machine announces its steps
    text = re.sub(r"(?m)^.*entered uninterruptible sleep.*\n", "", text)  # a slow disk
    text = re.sub(r"\S+@\S+", "you@laptop", text)
    text = re.sub(r"host \S+, pid", "host laptop, pid", text)
    if text.startswith("RUN "):
        head, *rows = (re.split(r"  +", line.rstrip()) for line in text.splitlines())
        text = table(rows, head)
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = tour(Path(folder))
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
