"""Is this the machine it was last time? known_hosts, read as `ssh` reads it (sshd(8)).

Hashed names, wildcards and negations, `[host]:port`, @revoked and several files are understood;
of @cert-authority it is only said that it is not.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SSH_PORT = 22

Standing = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Key:
    """A host key as it travels."""

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
        patterns = self.names.lower().split(",")
        return not any(p[0] == "!" and _fits(p[1:], name) for p in patterns if p) and any(
            _fits(p, name) for p in patterns if p and p[0] != "!"
        )


@dataclass(frozen=True)
class Finding:
    """What is known of a host's key, and the lines that say so."""

    standing: Standing
    lines: tuple[Line, ...]


def host_name(hostname: str, port: int, alias: str | None) -> str:
    """The name a host goes by in the files. An alias stands alone, without the port."""
    if alias:
        return alias.lower()
    return hostname.lower() if port == SSH_PORT else f"[{hostname.lower()}]:{port}"


def read(files: Iterable[str]) -> list[Line]:
    """All lines of all files that exist and can be read. A device has none, /dev/null or not."""
    lines: list[Line] = []
    for path in map(Path, files):
        with contextlib.suppress(OSError):
            if path.is_file():
                lines += parse(path.read_text(errors="replace"), str(path))
    return lines


def parse(text: str, file: str) -> list[Line]:
    """The lines of one file; what is no key line is passed over, as `ssh` does. PURE."""
    lines = []
    for number, row in enumerate(text.split("\n"), 1):
        words = row.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except ValueError:  # not base64, not even ASCII
            continue
        lines.append(Line(file, number, marker, words[0], Key(words[1], blob)))
    return lines


def look_up(lines: Sequence[Line], hostname: str, port: int, alias: str | None) -> list[Line]:
    """The lines about this host."""
    name = host_name(hostname, port, alias)
    return [line for line in lines if line.matches(name)]


def judge(lines: Sequence[Line], key: Key, hostname: str, port: int, alias: str | None) -> Finding:
    """Whether `key` is the host's. PURE.

    A key of a kind that no line about the host has is unknown, not changed; a host on another port
    may be known by its name alone. Both as `ssh` sees it.
    """
    about = look_up(lines, hostname, port, alias)
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
    if port != SSH_PORT and not alias:
        portless = judge(lines, key, hostname, SSH_PORT, None)
        if portless.standing in ("known", "revoked"):
            return portless
    return Finding("unknown", tuple(line for line in about if line.marker != "@revoked"))


def known_kinds(
    lines: Sequence[Line], hostname: str, port: int, alias: str | None
) -> tuple[str, ...]:
    """The kinds of key that we could recognise this host by, to be asked for first. PURE."""
    about = look_up(lines, hostname, port, alias) or look_up(lines, hostname, SSH_PORT, alias)
    return tuple(dict.fromkeys(line.key.kind for line in about if not line.marker))


def append(file: str, name: str, key: Key, *, hashed: bool) -> None:
    """Writes one line at the end of `file`, which is made, readable to its owner only, if need be.

    One write in append mode: two ddpctl at once never tear each other's lines. OSError as usual.
    """
    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    blob = base64.b64encode(key.blob).decode()
    line = f"{_hash(name) if hashed else name} {key.kind} {blob}\n".encode()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        os.write(handle, line)
    finally:
        os.close(handle)


def _fits(pattern: str, name: str) -> bool:
    # brackets stand for themselves here, only * and ? are wild
    return fnmatch.fnmatchcase(name, re.sub(r"\[", "[[]", pattern))


def _hash(name: str, salt: bytes | None = None) -> str:
    salt = salt or secrets.token_bytes(20)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _hash_matches(hashed: str, name: str) -> bool:
    try:
        salt = base64.b64decode(hashed.split("|")[2])
    except (ValueError, IndexError):
        return False
    return bool(salt) and hmac.compare_digest(_hash(name, salt), hashed)
