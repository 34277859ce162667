"""Format and read lists, times, durations and sizes, and make untrusted text safe to print. Pure."""

import datetime
import difflib
import re
from collections.abc import Iterable

LONGEST_LINE = 5000  # maximum characters in one line
LONGEST_VALUE = 60  # maximum characters of a value quoted in a message
LONGEST_PATH = 4096
DAY = 86400  # seconds
LATEST = 253402300799.0  # the end of the year 9999, in unix seconds

_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)", re.DOTALL | re.ASCII)  # split at the last number

_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # moves the cursor, erases, sets colors
# Window titles and the like. The body excludes start sequences, as matching many would be quadratic.
ESCAPE_BODY = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*"
_STRING = ESCAPE_BODY + r"(?:\x07|\x1b\\|\x9c)"
_OTHER = r"\x1b[ -/]*[0-~]"
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f]"
ESCAPES = re.compile("|".join([_CSI, _STRING, _OTHER, _CONTROL]))
_REPLACED: dict[int, str | None] = {
    # they reverse the direction of text, which can disguise a line
    **dict.fromkeys([0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]),
    # neither UTF-8 nor XML can hold them
    **dict.fromkeys([*range(0xD800, 0xE000), 0xFFFE, 0xFFFF], "\ufffd"),
    **dict.fromkeys([0x2028, 0x2029], "\n"),  # line separators
}

_DURATION = re.compile(
    r"(?=.)(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII
)
_CLOCK = re.compile(r"(\d{1,6}):([0-5]\d):([0-5]\d)", re.ASCII)
_SIZE = re.compile(r"(\d{1,30})\s*([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """Format 0, 1, 2, 3 and 5, in any order, as `0-3,5`. Zero-pad each number to `width` digits."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join("-".join(f"{end:0{width}}" for end in dict.fromkeys(span)) for span in spans)


def numbers_in(text: str, count: int) -> frozenset[int]:
    """Parse numbers such as `0-3,5`. Raises ValueError for other text, and for numbers >= `count`."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        try:
            first, last = int(low), int(high if dash else low)
        except ValueError:
            first = last = -1
        if not 0 <= first <= last < count:
            raise ValueError(f"{quoted(part)} is not a number or range within 0-{count - 1}")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def names(hosts: Iterable[str]) -> str:
    """Format gpu1, gpu2, gpu3 and login as `gpu[1-3],login`, as clush does.

    Names are folded at their last number: `gpu[1-2].lab`, `10.0.0.[7-9]`, `node[08-11]`. Groups are
    in the order of their first names.
    """
    split = {host: _NUMBERED.fullmatch(host) for host in hosts}
    padded = {(m[1], m[3]) for m in split.values() if m and m[2][0] == "0" and len(m[2]) > 1}
    groups: dict[tuple[str, str, int], list[int]] = {}
    for host, m in split.items():
        if m:
            width = len(m[2]) if (m[1], m[3]) in padded else 0
            groups.setdefault((m[1], m[3], width), []).append(int(m[2]))
        else:
            groups[host, "", 0] = []
    folded = []
    for (before, after, width), numbers in groups.items():
        listed = ranges(numbers, width)
        folded.append(before + (f"[{listed}]" if len(numbers) > 1 else listed) + after)
    return ",".join(folded)


def names_in(folded: str) -> list[str]:
    """Unfold names such as `gpu[1-8,10].lab`, as `names` folds them. Return other text as one name.

    Also reads Ansible's `[01:12]`. Stops soon after 1000 names.
    """
    match = re.fullmatch(
        r"([^\[]*)\[(\d{1,9}(?:[-:]\d{1,9})?(?:,\d{1,9}(?:[-:]\d{1,9})?)*)\](.*)", folded
    )
    if not match:
        return [folded]
    before, listed, after = match.groups()
    made: list[str] = []
    for low, _, high in (part.replace(":", "-").partition("-") for part in listed.split(",")):
        numbers = range(int(low), min(int(high or low), int(low) + 1000) + 1)
        heads = [f"{before}{number:0{len(low)}}" for number in numbers]
        made += [head + rest for head in heads for rest in names_in(after)]
        if len(made) > 1000:
            break
    return made or [folded]


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` is probably a typo of, or None."""
    plain = {each.lower().strip("-").replace("-", "_"): each for each in known}
    matches = difflib.get_close_matches(word.lower().strip("-").replace("-", "_"), plain, 1, 0.6)
    return plain[matches[0]] if matches else None


def counted(number: int, noun: str) -> str:
    """Format a count: `1 host`, `2 hosts`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def numbered(noun: str, numbers: Iterable[int]) -> str:
    """Format a noun with numbers: `GPU 3`, `GPUs 1-2,5`."""
    listed = sorted(set(numbers))
    return f"{noun}{'s' * (len(listed) > 1)} {ranges(listed)}"


def rfc3339(seconds: float) -> str:
    """Format unix seconds as RFC 3339, in UTC with milliseconds. Times out of range are clamped."""
    within = min(max(seconds, 0.0), LATEST)
    moment = datetime.datetime.fromtimestamp(within, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(seconds: float) -> str:
    """Format seconds as durations are written in flags: `90s`, `30m`, `2h30m`, `1d`."""
    if seconds != int(seconds):
        return f"{round(seconds, 2):g}s"
    rest, parts = int(seconds), ""
    for unit, size in {"d": DAY, "h": 3600, "m": 60, "s": 1}.items():
        number, rest = divmod(rest, size)
        parts += f"{number}{unit}" if number else ""
    return parts or "0s"


def seconds_in(text: str) -> int | None:
    """Convert `90s`, `30m`, `2h30m`, `1d` or `24:00:00` to seconds. Return None for any other text.

    A bare number other than 0 is not a duration, because tools disagree about its unit. For other
    text, `duration_remedy` returns what to write instead.
    """
    text = text.strip()
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = map(int, clock.groups())
        return 3600 * hours + 60 * minutes + seconds
    if text == "0":
        return 0
    if not (match := _DURATION.fullmatch(text)):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return DAY * days + 3600 * hours + 60 * minutes + seconds


def duration_remedy(text: str) -> str:
    """Return what to write in place of `text`, which is not a duration."""
    if number := re.fullmatch(r"\s*([0-9]{1,9})\s*", text):
        larger, smaller = "hm" if int(number[1]) < 100 else "ms"
        return f"write {number[1]}{larger} or {number[1]}{smaller}"
    return "write a duration such as 90s, 30m, 2h30m, 1d or 24:00:00"


def bytes_in(text: str) -> int | None:
    """Convert `16g`, `512m`, `16GiB` or a plain number to bytes. Return None for any other text."""
    match = _SIZE.fullmatch(text.strip())
    return int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else None


def printable(text: str) -> str:
    """Make text from a host, an image or a file safe to print and to store. Keeps newlines and tabs.

    Removes escape sequences and control characters, which a terminal would obey, and characters
    that reverse the direction of text. Replaces what UTF-8 or XML cannot hold with U+FFFD.
    """
    return text if text.isprintable() else ESCAPES.sub("", text).translate(_REPLACED)


def one_line(text: str, most: int = LONGEST_LINE) -> str:
    """Make text safe to print, as one line of at most `most` characters."""
    parts = (part.strip() for part in re.split(r"[\n\t]", printable(text)))
    line = " ".join(filter(None, parts))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def quoted(text: str, most: int = LONGEST_VALUE) -> str:
    """Return a value as written, cut to `most` characters; quoted and escaped if it could be misread."""
    short = text if len(text) <= most else text[:most] + "..."
    return short if short.isprintable() and short.strip() == short and short else repr(short)
