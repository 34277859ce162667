"""Words to a command line that every login shell reads alike. PURE."""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence

# fish reads a backslash inside single quotes, csh a newline and an exclamation mark.
_DIFFERS = re.compile(rb"[\\\n!]")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_@%+=:,./-]")

# Ends the command when the reader goes away: without a terminal sshd sends no signal.
_WATCHED = """exec 3<&0
"$@" </dev/null 3<&- &
command=$!
{ cat <&3; kill "$command"; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$command"
code=$?
kill "$watch" 2>/dev/null
exit "$code"
"""


def command_line(argv: Sequence[str]) -> bytes:
    """`argv` as one line for sshd, which hands it to the user's login shell, whichever it is.

    Arguments may hold any byte but NUL (ValueError).
    """
    words = [os.fsencode(word) for word in argv]
    if any(b"\0" in word for word in words):
        raise ValueError("embedded null byte in an argument")
    line = b" ".join(_quote(word) for word in words)
    if not _DIFFERS.search(line):
        return line
    escaped = _UNSAFE.sub(lambda match: b"\\0%03o" % match[0][0], line)
    return b"""exec sh -c 'eval "exec $(printf %b "$0")"' '""" + escaped + b"'"


def with_environment(argv: Sequence[str], env: Mapping[str, str]) -> tuple[list[str], bytes]:
    """`argv` that reads its environment from the start of standard input, and that start.

    So no value is ever in a process list.
    """
    script = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
    preamble = os.fsencode(script)
    read = f'eval "$(dd bs=1 count={len(preamble)} 2>/dev/null)"; exec "$@"'
    return ["sh", "-c", read, "sh", *argv], preamble


def framed(argv: Sequence[str]) -> tuple[list[str], bytes]:
    """`argv` that first prints a random line, and that line.

    What a login shell's .bashrc prints comes before the line, so the reader can tell it from the
    command's own output. A shell that echoes its commands does not print the line alone.
    """
    token = secrets.token_hex(8)
    return ["sh", "-c", 'echo; echo "$0"; exec "$@"', token, *argv], f"\n{token}\n".encode()


def watched(argv: Sequence[str]) -> list[str]:
    """`argv` with an empty standard input, ended as soon as the stream that reads it is closed."""
    return ["sh", "-c", _WATCHED, "sh", *argv]


def _quote(word: bytes) -> bytes:
    if word and not _UNSAFE.search(word):
        return word
    return b"'" + word.replace(b"'", b"'\"'\"'") + b"'"
