"""Turn argument lists into command lines that all login shells parse in the same way. Pure."""

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
    """Quote `argv` as one line for the login shell. Raises ValueError if an argument has a NUL."""
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

    The reader drops everything before that line, such as the output of a login shell's .bashrc. A
    shell that echoes its command does not print the random token on its own line. `sh` does not
    `exec` the command, because if signal N ends the command, paramiko does not report N, but `sh` exits
    with 128 + N. On a terminal, Ctrl-C reaches the command only.
    Without `stdin`, the command is stopped when the stream to the reader closes.
    """
    token = secrets.token_hex(8)
    run = 'trap : INT QUIT; "$@"; exit "$?"' if stdin else _WATCHED
    return ["sh", "-c", f'echo; echo "$0"; {run}', token, *argv], f"\n{token}\n".encode()
