"""The scripts for hosts, as files and as the text that a host receives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import launcher
from launcher.ssh.script_files import load_script

SCRIPTS = sorted(Path(launcher.__file__).parent.rglob("*.sh"))


def test_a_host_receives_one_text_without_comments(tmp_path: Path) -> None:
    (tmp_path / "words.sh").write_text("#!/bin/sh\n# To be sourced.\nword='a # \\1 word'\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "say.sh").write_text(
        '#!/bin/sh\n# Says it.\n. ../words.sh\n  # twice\necho "$word" "$1"\n'
    )
    text = load_script(str(tmp_path / "own" / "module.py"), "say.sh")
    assert text == 'word=\'a # \\1 word\'\necho "$word" "$1"\n'


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_says_what_it_does_and_is_valid(path: Path) -> None:
    first, second, *_ = path.read_text().splitlines()
    assert first == "#!/bin/sh" and second.startswith("# ")
    text = load_script(str(path), path.name)
    assert "\n. " not in text
    done = subprocess.run(["sh", "-n"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_of_scripts_are_unique() -> None:
    assert len({path.name for path in SCRIPTS}) == len(SCRIPTS) > 0
