"""What Tab offers in bash, zsh and fish, through the protocol that their scripts use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

MAIN = "import sys; sys.argv[0] = 'ddpctl'; from launcher.cli import main; main()"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    runs = tmp_path / "state" / "ddpctl" / "runs"
    for age, name in enumerate(("nightly-1", "nightly-2", "other")):
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text(json.dumps({"state": "RUNNING"}))
        (runs / name / "hosts.yaml").write_text("")
        os.utime(runs / name / "hosts.yaml", (age, age))
    (runs / "nightly-torn").mkdir()
    (runs / "nightly-torn" / "run.json").write_text('{"st')
    (tmp_path / "lab.yaml").write_text("hosts: [gpu1, gpu2, {host: gpu1, gpus: 0}]\n")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host bastion *.lab\n")
    return tmp_path


def offered(home: Path, shell: str, line: str) -> list[str]:
    """line: what stands before the cursor."""
    words = line.split(" ")
    env = {
        **os.environ,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "_DDPCTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-c", MAIN], env=env, cwd=home, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def test_bash_offers_commands_runs_and_hosts(home: Path) -> None:
    assert offered(home, "bash", "ddpctl la") == ["launch"]
    assert offered(home, "bash", "ddpctl logs night") == ["nightly-2", "nightly-1"]
    assert offered(home, "bash", "ddpctl launch la") == [""]  # then it offers files
    assert offered(home, "bash", "ddpctl kill o") == ["other"]
    assert offered(home, "bash", "ddpctl sanity lab.yaml --host gp") == ["gpu1", "gpu2"]
    assert offered(home, "bash", "ddpctl init --hosts b") == ["bastion"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_show_each_runs_state_too(home: Path, shell: str) -> None:
    text = "\n".join(offered(home, shell, "ddpctl attach night"))
    assert text.index("nightly-2") < text.index("nightly-1")
    assert "RUNNING" in text and "torn" not in text
    assert "launch" in "\n".join(offered(home, shell, "ddpctl lau"))
