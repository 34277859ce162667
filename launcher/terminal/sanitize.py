"""Make log lines safe for a terminal: of all escape sequences, only colors are kept.

Other control characters go too, and so does text that a carriage return would overwrite. Escape
sequences can move a terminal's cursor, set its title and write to the clipboard, and hosts, images
and scripts control the text of logs. For messages, see `text.printable`.
"""

import codecs
import re

from ..logs.log_entry import LogEntry
from ..text import ESCAPE_BODY, ESCAPES

LONGEST = 4096  # maximum characters in an unfinished escape sequence

_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_UNFINISHED = re.compile(rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|{ESCAPE_BODY}\x1b?|\x1b[ -/]*|\r)\Z")
_OVERWRITTEN = re.compile(r"^[^\n]*\r(?=[^\r\n])", re.MULTILINE)  # as in progress bars


def colored(text: str) -> str:
    """Return the text without control characters and escape sequences other than colors (SGR)."""
    return ESCAPES.sub(lambda match: match[0] if _COLOR.fullmatch(match[0]) else "", text)


def cleaned(entry: LogEntry) -> LogEntry:
    """Return the entry without overwritten text. Once it is rendered, its label would go too."""
    lines = [_OVERWRITTEN.sub("", line.decode(errors="replace")).encode() for line in entry.lines]
    return entry._replace(lines=lines)


class Sanitizer:
    """Sanitizes log output that arrives in pieces, which may split an escape sequence."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""  # an unfinished escape sequence

    def feed(self, data: bytes) -> str:
        text = self._rest + self._decode(data)
        cut = _UNFINISHED.search(text)
        whole = text[: cut.start()] if cut and len(cut[0]) < LONGEST else text
        self._rest = text[len(whole) :]
        return colored(_OVERWRITTEN.sub("", whole))
