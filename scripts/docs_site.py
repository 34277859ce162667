"""A mkdocs hook: adds pages from outside docs/, and makes the repository's links work on the site."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "results.md": "benchmarks/RESULTS.md",
}
PAGES = {(ROOT / source).resolve(): page for page, source in OUTSIDE.items()}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
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
        else:
            return text  # the link leads to a folder or a file that is only in the repository
        return f"[{text}]({os.path.relpath(target, Path(name).parent)}{anchor})"

    return LINK.sub(on_site, markdown)
