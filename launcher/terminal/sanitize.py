"""Make untrusted text safe for a terminal: log lines keep only colours, messages no sequences at all.

A terminal obeys escape sequences: they move its cursor, set its title and write to the clipboard.
Hosts, images and scripts control the text of logs, labels and error messages.
"""

import codecs
import re

LONGEST = 4096  # maximum characters of an unfinished escape sequence

_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # moves the cursor, erases, sets colours
# Titles and the like. They may not contain a start, because many starts would take quadratic time.
_BODY = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*"
_STRING = _BODY + r"(?:\x07|\x1b\\|\x9c)"
_OTHER = r"\x1b[ -/]*[0-~]"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_ACTIVE = re.compile("|".join([_CSI, _STRING, _OTHER, _CONTROL]))
_UNFINISHED = re.compile(rf"(?:(?:\x1b\[|\x9b)[0-?]*[ -/]*|{_BODY}\x1b?|\x1b[ -/]*|\r)\Z")
# Text that a carriage return would overwrite, as in progress bars; the prefix [host:rank] stays.
_OVERWRITTEN = re.compile(r"^(\[[^\]\n]*\] )?[^\n]*\r(?=[^\r\n])", re.MULTILINE)
_REORDERING = dict.fromkeys([0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])


def plain(text: str) -> str:
    """Remove escape sequences and control characters, except newlines and tabs.

    Also removes characters that reverse the direction of text, which can disguise a line.
    """
    return _ACTIVE.sub("", text).translate(_REORDERING)


def coloured(text: str) -> str:
    """Like `plain`, but keep colours and bold type (SGR sequences)."""
    return _ACTIVE.sub(lambda found: found[0] if _COLOUR.fullmatch(found[0]) else "", text)


class Sanitizer:
    """Sanitizes log output that arrives in pieces. These may split an escape sequence."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""  # an unfinished escape sequence

    def feed(self, data: bytes) -> str:
        text = self._rest + self._decode(data)
        cut = _UNFINISHED.search(text)
        whole = text[: cut.start()] if cut and len(cut[0]) < LONGEST else text
        self._rest = text[len(whole) :]
        return coloured(_OVERWRITTEN.sub(r"\1", whole))
