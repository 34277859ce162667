"""An mkdocs hook: adds pages from outside docs/ and makes the repository's links work on the site."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "results.md": "benchmarks/RESULTS.md",
}
PAGES = {(ROOT / source).resolve(): page for page, source in OUTSIDE.items()}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Set the repository's address to the checkout's origin, if that is on the web."""
    argv = ["git", "-C", str(ROOT), "config", "remote.origin.url"]
    origin = subprocess.run(argv, capture_output=True, text=True).stdout.strip()
    if found := re.fullmatch(r"(?:https://|git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?", origin):
        config.repo_url = f"https://{found[1]}/{found[2]}"
        config.repo_name = found[2]
        config.edit_uri = "edit/main/docs/"
    return config


def on_files(files: Any, config: Any) -> Any:
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_pre_page(page: Any, config: Any, **_: Any) -> Any:
    if config.repo_url and page.file.src_uri in OUTSIDE:
        page.edit_url = f"{config.repo_url}/edit/main/{OUTSIDE[page.file.src_uri]}"
    return page


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    name = page.file.src_uri
    folder = (ROOT / OUTSIDE.get(name, f"docs/{name}")).parent

    def on_site(link: re.Match[str]) -> str:
        text, path, anchor = link[1], (folder / link[2]).resolve(), link[3] or ""
        if not path.exists():
            return link[0]  # mkdocs reports the broken link
        if path in PAGES:
            target = PAGES[path]
        elif path.is_file() and path.is_relative_to(ROOT / "docs"):
            target = str(path.relative_to(ROOT / "docs"))
        elif config.repo_url:
            return f"[{text}]({config.repo_url}/tree/main/{path.relative_to(ROOT)}{anchor})"
        else:
            return text  # the target is only in the repository, whose address is unknown
        return f"[{text}]({os.path.relpath(target, Path(name).parent)}{anchor})"

    return LINK.sub(on_site, markdown)
