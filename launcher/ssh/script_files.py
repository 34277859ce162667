"""Shell scripts for hosts: `.sh` files beside the module that runs them."""

import functools
import re
from pathlib import Path

_COMMENT_LINE = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)
_SOURCED = re.compile(r"^\. (\S+\.sh)$", re.MULTILINE)


@functools.cache
def load_script(module: str, name: str) -> str:
    """Return the text of `name`, a script beside `module` (a `__file__`), for HostConnection.script.

    A host receives one text, so a line `. ./other.sh` is replaced by that file. Comments are
    removed: the host does not need them.
    """
    path = Path(module).parent / name
    text = _COMMENT_LINE.sub("", path.read_text(encoding="utf-8"))
    return _SOURCED.sub(lambda match: load_script(str(path), match[1]).rstrip("\n"), text)
