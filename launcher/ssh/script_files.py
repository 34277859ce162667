"""Shell scripts for hosts: `.sh` files in the same folder as the module that runs them."""

import functools
import re
from pathlib import Path

_COMMENT_LINE = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)
_SOURCED = re.compile(r"^\. (\S+\.sh)$", re.MULTILINE)


@functools.cache
def load_script(module: str, name: str) -> str:
    """Return the text of a script for HostConnection.script. module: the caller's `__file__`.

    The script `name` is in the folder of that module. A host receives a single text, so a line
    `. ./other.sh` is replaced with the text of that file. Comments are removed, because the host
    does not need them.
    """
    path = Path(module).parent / name
    text = _COMMENT_LINE.sub("", path.read_text(encoding="utf-8"))
    return _SOURCED.sub(lambda match: load_script(str(path), match[1]).rstrip("\n"), text)
