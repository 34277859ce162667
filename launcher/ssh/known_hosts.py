"""known_hosts files, matched as `ssh` matches them (sshd(8)).

Supports hashed names, wildcards, negations, `[host]:port`, @revoked and several files.
paramiko's HostKeys supports only plain and hashed names. @cert-authority lines are recognised, so
that an error can say that they are not supported.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paramiko import HostKeys

SSH_PORT = 22

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Key:
    """A host key."""

    kind: str  # ssh-ed25519
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """SHA256:..., as `ssh-keygen -l` prints it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"


@dataclass(frozen=True)
class Line:
    """One line of a known_hosts file."""

    file: str
    number: int
    marker: str  # "", "@revoked" or "@cert-authority"
    names: str
    key: Key

    @property
    def place(self) -> str:
        return f"{self.file}:{self.number}"

    def matches(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        patterns = [pattern for pattern in self.names.lower().split(",") if pattern]
        excluded = any(_matches(p[1:], name) for p in patterns if p[0] == "!")
        return not excluded and any(_matches(p, name) for p in patterns if p[0] != "!")


@dataclass(frozen=True)
class Finding:
    """What the files say about a host's key, and the lines that say it."""

    verdict: Verdict
    lines: tuple[Line, ...]


def names_of(hostname: str, port: int, alias: str | None) -> tuple[str, ...]:
    """The names that a host may have in the files, its own first. PURE.

    A host on another port may be known by its name alone. An alias replaces both.
    """
    if alias:
        return (alias.lower(),)
    name = hostname.lower()
    return (name,) if port == SSH_PORT else (f"[{name}]:{port}", name)


def read(files: Iterable[str]) -> list[Line]:
    """All lines of those files that can be read. Devices such as /dev/null have none."""
    lines: list[Line] = []
    for path in map(Path, files):
        with contextlib.suppress(OSError):
            if path.is_file():
                lines += parse(path.read_text(errors="replace"), str(path))
    return lines


def parse(text: str, file: str) -> list[Line]:
    """The key lines of one file; like `ssh`, skips all others. PURE."""
    lines = []
    for number, row in enumerate(text.split("\n"), 1):
        words = row.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        with contextlib.suppress(ValueError):  # not base64
            blob = base64.b64decode(words[2], validate=True)
            lines.append(Line(file, number, marker, words[0], Key(words[1], blob)))
    return lines


def judge(lines: Sequence[Line], key: Key, names: Sequence[str]) -> Finding:
    """Whether `key` belongs to the host with these names. PURE.

    As with `ssh`, a key of a kind that no line has is unknown, not changed.
    """
    about = [line for line in lines if line.matches(names[0])]
    revoked = [line for line in about if line.marker == "@revoked" and line.key == key]
    if revoked:
        return Finding("revoked", tuple(revoked))
    plain = [line for line in about if not line.marker]
    same = [line for line in plain if line.key == key]
    if same:
        return Finding("known", tuple(same))
    other = [line for line in plain if line.key.kind == key.kind]
    if other:
        return Finding("changed", tuple(other))
    if names[1:]:
        by_name = judge(lines, key, names[1:])
        if by_name.verdict in ("known", "revoked"):
            return by_name
    return Finding("unknown", tuple(line for line in about if line.marker != "@revoked"))


def known_kinds(lines: Sequence[Line], names: Sequence[str]) -> tuple[str, ...]:
    """The kinds of key that are known of this host. PURE."""
    about = (line for name in names for line in lines if line.matches(name) and not line.marker)
    return tuple(dict.fromkeys(line.key.kind for line in about))


def append(file: str, name: str, key: Key, *, hashed: bool) -> None:
    """Append one line to `file`, creating it for its owner only. OSError if that fails.

    A single write in append mode: two processes at once never mix their lines.
    """
    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    blob = base64.b64encode(key.blob).decode()
    line = f"{HostKeys.hash_host(name) if hashed else name} {key.kind} {blob}\n".encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(handle, line)
    finally:
        os.close(handle)


def _matches(pattern: str, name: str) -> bool:
    # only * and ? are wildcards, unlike fnmatch's [
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        return HostKeys.hash_host(name, hashed) == hashed
    except (ValueError, AssertionError):  # not base64, or a salt of another length
        return False
