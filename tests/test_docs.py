"""The documentation: its links work and the commands it shows exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import COMMANDS
from launcher.outcomes import Exit

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"```.*?```|^    [^\n]*|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_commands_exist(page: Path) -> None:
    text = page.read_text()
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []
    code = "\n".join(each.strip("` ") for each in CODE.findall(text))
    shown = re.findall(r"(?m)^(?:\$ )?ddpctl ([a-z]+)", code)
    assert set(shown) - set(COMMANDS) == set()


def test_the_site_lists_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    outside = {"index.md", "contributing.md", "changelog.md", "results.md"}
    assert sorted(listed) == sorted(pages | outside)


def test_the_page_on_exit_codes_has_every_code() -> None:
    page = (ROOT / "docs" / "exit-codes.md").read_text()
    assert [int(code) for code in re.findall(r"(?m)^\| (\d+) \|", page)] == list(Exit)


def test_explained_messages_exist() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"(?m)^\| `([^`]+)` \|", page)
    files = [*(ROOT / "launcher").rglob("*.py"), *(ROOT / "launcher").rglob("*.txt")]
    source = "\n".join(path.read_text() for path in files)
    said = re.sub(r'"\s*\n\s*f?"', "", source)  # join a message that spans several lines
    assert len(messages) > 10
    assert [message for message in messages if message not in said] == []


def test_the_tests_that_the_security_page_names_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`(tests/[^`]+)`", page))
    assert len(named) > 15
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []
    rows = re.findall(r"(?m)^\| (?!They cannot|It cannot|---)(.+) \| (.+) \|$", page)
    assert len(rows) > 20 and all(test.startswith("`tests/") for _, test in rows)


@pytest.mark.real
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 'href="your-cluster/"' in (tmp_path / "index.html").read_text()
