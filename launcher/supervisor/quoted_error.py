"""In a process's last lines, find the error that ended it and an excerpt to quote. Pure."""

from __future__ import annotations

import itertools
import re
from typing import Sequence

EXCERPT_LINES = 20
KEPT_LINES = 40
CRASH_FRAMES = 10  # of the Python stack where a process crashed
LAST_WORDS = 10  # last lines that may explain the end of a process that raised no exception

RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch's own excepthook prefixes each line
# Printed by Python, or by the library rich, which draws a box
TRACEBACK = re.compile(r"^(╭─+ )?Traceback \(most recent call last\)")
INDENTED = (" ", "\t", "│", "╭", "╰")
# The line before the traceback of an error that did not end the process
ASIDE = re.compile(r"^(Exception ignored |Exception in thread |Error in atexit|--- Logging error)")
DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
NOISE = re.compile(
    r"^(\[?[WIE]\d{4} \d\d:\d\d|\[rank\d+\]:\[|frame #|Exception raised from"
    r"|terminate called|Fatal Python error|$)"
)
# An uncaught C++ exception
THROWN = re.compile(r"^terminate called after throwing an instance of '(.+)'")
WHAT = re.compile(r"^  what\(\):  ?")
# Stacks from C++ and from Python's faulthandler, which are too long to quote
FRAME = re.compile(
    r"^(frame #\d+: |    @ |\*\*\* |Fatal Python error|(Current t|T)hread 0x|Extension modules|"
    r"  File .*, line \d+ in |$)"
)
# From faulthandler, whose output ends with the frames of the thread that crashed or of others
FATAL = re.compile(r"^Fatal Python error: ")
CRASHED_THREAD = re.compile(r"^Current thread 0x.*most recent call first")
WARNING = re.compile(r"warning", re.IGNORECASE)
LOGGED_WARNING = re.compile(r"^(\[rank\d+\]:)?\[?W\d{4} ")  # from torch's C++ code
# NCCL's own message, on the same line or on the next one
LAST_ERROR = re.compile(r"Last error:\s*(\S.*)?$", re.IGNORECASE)
NCCL_RESULT = re.compile(r"^nccl[A-Z]\w+: ")


def telling_end(lines: Sequence[str]) -> list[str]:
    """Return the end of a process's output that may explain why the process ended.

    It begins with the traceback of the last exception or, if that exception has a chain of direct
    causes, with the first traceback of the chain. Without a traceback, it begins with the last
    uncaught C++ exception, after which a crash may print a lot. Without either, it is the last
    KEPT_LINES lines; of the stacks that a crash prints, it has the one that `excerpt` quotes.
    """
    if chain := _chain(lines):
        return list(lines[-sum(map(len, chain)) :])
    starts = [index for index, line in enumerate(lines) if THROWN.match(line)]
    if starts:
        return list(lines[starts[-1] :])
    crash = _crash(lines)
    kept = [line for line in lines if not FRAME.match(line)] if crash else lines
    return [*kept[-KEPT_LINES:], *crash]


def telling_texts(lines: Sequence[str]) -> list[str]:
    """Return the texts that may reveal the cause, the most reliable first.

    They are NCCL's own message, the error that ended the process and the errors that caused it. If
    the process printed no error, they are its last lines, the newest first, without Python's
    warnings; warnings from torch's C++ code come last.
    """
    errors = [_message(traceback) for traceback in _chain(lines)] or [_thrown(lines)]
    if errors[0]:
        words = _last_error(errors[0])
        return [*([words] if words else []), *map("\n".join, errors)]
    last = [line for line in _last_lines(lines)[: -LAST_WORDS - 1 : -1] if not WARNING.search(line)]
    return sorted(last, key=lambda line: bool(LOGGED_WARNING.match(line)))


def error_line(lines: Sequence[str]) -> str:
    """Return the error that a process printed, such as `ValueError: boom`, or "" if there is none.

    The error names the DataLoader worker, if one failed. If NCCL failed, the error has NCCL's own
    message instead of a line of torch's source code.
    """
    error = _message((_chain(lines) or [[]])[0]) or _thrown(lines)
    if not error:
        return ""
    if ": Caught " in error[0] and len(error) > 1:
        return "%s (%s)" % (error[-1], error[0].partition(" in ")[2].rstrip("."))
    words = _last_error(error)
    if not words and "NCCL error in: " in error[0]:
        words = next((line for line in error if NCCL_RESULT.match(line)), "")
    return "%s: %s" % (error[0].partition(":")[0], words) if words else error[0]


def is_thrown(lines: Sequence[str]) -> bool:
    """Return whether a C++ exception, not a Python exception, ended the process."""
    return not _chain(lines) and bool(_thrown(lines))


def excerpt(lines: Sequence[str]) -> list[str]:
    """Return the lines to quote: the last traceback, else a C++ exception, else the last lines.

    After the latter two, the Python stack follows, if a crash printed it.
    """
    if block := _without_noise((_chain(lines) or [[]])[0]):
        return _both_ends(block, EXCERPT_LINES)  # the entry point and the message
    crash = _crash(lines)
    crash[2:] = _both_ends(crash[2:], CRASH_FRAMES)
    return [*(_thrown(lines) or _last_lines(lines)[len(crash) - EXCERPT_LINES :]), *crash]


def _both_ends(block: Sequence[str], most: int) -> list[str]:
    if len(block) <= most:
        return list(block)
    return [*block[: most // 2], f"... {len(block) - most} lines ...", *block[-(most // 2) :]]


def _crash(lines: Sequence[str]) -> list[str]:
    """Return the last `Fatal Python error` and the stack of the thread it was in, or []."""
    starts = [index for index, line in enumerate(lines) if FATAL.match(line)]
    dump = lines[starts[-1] :] if starts else []
    stack = next((i for i, line in enumerate(dump) if CRASHED_THREAD.match(line)), len(dump))
    frames = list(itertools.takewhile(lambda line: line.startswith("  "), dump[stack + 1 :]))
    return [dump[0], dump[stack], *frames] if frames else []


def _unprefixed(lines: Sequence[str]) -> list[str]:
    return [RANK_PREFIX.sub("", line) for line in lines]


def _last_lines(lines: Sequence[str]) -> list[str]:
    return [line for line in _unprefixed(lines) if not FRAME.match(line)][-EXCERPT_LINES:]


def _chain(lines: Sequence[str]) -> list[list[str]]:
    """Return the last traceback, followed by those of the exceptions that directly caused it."""
    clean = _unprefixed(lines)
    starts = [
        index
        for index, line in enumerate(clean)
        if TRACEBACK.match(line) and not (index and ASIDE.match(clean[index - 1]))
    ]
    chain: list[list[str]] = []
    end = len(clean)
    for start in reversed(starts):
        if chain and DIRECT_CAUSE not in clean[end - 3 : end]:
            break
        chain.append(clean[start:end])
        end = start
    return chain


def _message(traceback: Sequence[str]) -> list[str]:
    """Return the lines of a traceback's error, such as `ValueError: boom`; [] if it has none."""
    for index, line in enumerate(traceback):
        if index and line and not line.startswith(INDENTED):
            message = _without_noise(traceback[index:])
            if ": Caught " in line:  # in a DataLoader worker, whose own traceback follows
                return [line, *(text for text in message[2:] if not text.startswith(INDENTED))]
            return message
    return []


def _thrown(lines: Sequence[str]) -> list[str]:
    """Return the lines of the last C++ exception's message, with its type first, or []."""
    clean = _unprefixed(lines)
    starts = [index for index, line in enumerate(clean) if WHAT.match(line)]
    if not starts:
        return []
    thrown = THROWN.match(clean[starts[-1] - 1]) if starts[-1] else None
    what = WHAT.sub("%s: " % thrown[1] if thrown else "", clean[starts[-1]])
    return _without_noise([what, *clean[starts[-1] + 1 :]])


def _last_error(error: Sequence[str]) -> str:
    """Return NCCL's own message about its error, or "" if there is none."""
    for index, line in enumerate(error):
        if match := LAST_ERROR.search(line):
            return (match[1] or "".join(error[index + 1 : index + 2])).strip()
    return ""


def _without_noise(block: Sequence[str]) -> list[str]:
    """Return the block up to its first empty line, log line or C++ frame."""
    end = next((i for i, line in enumerate(block) if i and NOISE.match(line)), len(block))
    return list(block[:end])
