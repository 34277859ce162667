"""Turn argument lists into command lines that every login shell parses in the same way. PURE."""

import os
import re
import secrets
import shlex
from collections.abc import Sequence

from .script_files import load_script

# fish interprets backslashes in single quotes; csh interprets newlines and exclamation marks.
_DIFFERS = re.compile(rb"[\\\n!]")
_UNSAFE = re.compile(rb"[^A-Za-z0-9_@%+=:,./-]")

_WATCHED = load_script(__file__, "watched_command.sh")


def command_line(argv: Sequence[str]) -> bytes:
    """Quote `argv` as one line for the login shell. An argument with a NUL raises ValueError."""
    line = os.fsencode(shlex.join(argv))
    if b"\0" in line:
        raise ValueError("embedded null byte in an argument")
    if not _DIFFERS.search(line):
        return line
    escaped = _UNSAFE.sub(lambda match: b"\\0%03o" % match[0][0], line)
    return b"""exec sh -c 'eval "exec $(printf %b "$0")"' '""" + escaped + b"'"


def script(text: str, args: Sequence[str]) -> list[str]:
    """Return the arguments that run a POSIX `sh` script with `args` as $1, $2, and so on."""
    return ["sh", "-c", text, "sh", *args]


def framed(argv: Sequence[str], *, stdin: bool = True) -> tuple[list[str], bytes]:
    """Return a command that prints a random line before running `argv`, and that line.

    The reader drops everything before the line, such as output of a login shell's .bashrc. A shell
    that echoes its command does not print the token on a line of its own. The shell does not `exec`
    the command, because paramiko drops the signal that ends one; a shell exits with 128 + N.
    On a terminal, Ctrl-C is for the command only.
    Without `stdin`, it also stops the command when the stream to the reader closes.
    """
    token = secrets.token_hex(8)
    run = 'trap : INT QUIT; "$@"; exit "$?"' if stdin else _WATCHED
    return ["sh", "-c", f'echo; echo "$0"; {run}', token, *argv], f"\n{token}\n".encode()
