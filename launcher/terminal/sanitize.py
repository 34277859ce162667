"""Make text safe for a terminal: of all escape sequences, only colors are kept.

Other control characters are removed too. Escape sequences can move a terminal's cursor, set its
title and write to the clipboard, and hosts, images and scripts control the text of logs.

All text for the terminal passes through `colored` (in ResultStream for stdout, in Live for the display
and in exec.Sanitizer) or `text.printable` (in `write_message` for stderr, in `confirm` and in
PushProgress.say). There are two exceptions: the output of `exec -t` and the output of hooks, because
the user asked for them.
"""

import re

from ..logs.log_entry import OutputLines
from ..text import ESCAPES

_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_OVERWRITTEN = re.compile(rb"^[^\n]*\r(?=[^\r\n])", re.MULTILINE)  # as in progress bars


def colored(text: str) -> str:
    """Return the text without control characters and escape sequences other than colors (SGR)."""
    return ESCAPES.sub(lambda match: match[0] if _COLOR.fullmatch(match[0]) else "", text)


def without_overwritten(text: bytes) -> bytes:
    """Return the text without what carriage returns would overwrite on a terminal."""
    return _OVERWRITTEN.sub(b"", text)


def visible(entry: OutputLines) -> OutputLines:
    """Return the lines without overwritten text. `render` then adds the label, which must stay."""
    return entry._replace(lines=[without_overwritten(line) for line in entry.lines])
