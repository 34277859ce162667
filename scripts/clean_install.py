"""Install the wheel of ddpctl as `pip install` does, where nothing else from this checkout is found.

Its dependencies are links to those of the environment that runs this, so that nothing is downloaded.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = ("ddpctl", "_editable_impl", "__editable__")
TORCH = ("torch", "nvidia", "numpy", "triton")
TORCHRUN = "from torch.distributed.run import main\nmain()\n"


def build(target: str, out: Path, source: Path = ROOT) -> Path:
    """Build the `wheel` or `sdist` of a source tree into the folder `out`. Return the file."""
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.iterdir())
    argv = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = set(out.iterdir()) - before
    return made


def install(wheel: Path, folder: Path, *, without: Collection[str] = ()) -> Path:
    """Install the wheel in a new environment. Return the environment's folder of programs.

    without: prefixes of the packages that the environment does not get.
    """
    venv, lent = folder / "venv", folder / "lent"
    lent.mkdir(parents=True)
    sites = [Path(site) for site in sys.path if site.endswith("-packages")]
    for path in [path for site in sites for path in site.iterdir()]:  # the first one wins
        absent = path.name.startswith((*OURS, *without)) or path.suffix == ".pth"
        if not absent and not (lent / path.name).exists():
            (lent / path.name).symlink_to(path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [site] = (venv / "lib").glob("python*/site-packages")
    (site / "lent.pth").write_text(f"{lent}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    torchrun = venv / "bin" / "torchrun"
    torchrun.write_text(f"#!{venv}/bin/python\n{TORCHRUN}")
    torchrun.chmod(0o755)
    return venv / "bin"
