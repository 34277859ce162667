"""Check a server's host key against known_hosts, following the policy in the ssh configuration.

Files are matched as in `ssh` (sshd(8)): hashed names, wildcards, negations, `[host]:port`, @revoked
and several files. paramiko's HostKeys supports only plain and hashed names. @cert-authority lines
are not supported, but are recognised for the error message.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import hashlib
import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paramiko
from paramiko import HostKeys

from ..errors import HostUnreachable
from .route import Route

SSH_PORT = 22

Verdict = Literal["known", "unknown", "changed", "revoked"]

log = logging.getLogger("ddpctl.ssh")
_writing = threading.Lock()


@dataclass(frozen=True)
class Key:
    kind: str  # ssh-ed25519
    blob: bytes

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"

    @property
    def fingerprint(self) -> str:
        """Format as `SHA256:...`, like `ssh-keygen -l`."""
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
    """A verdict on a host's key, and the lines that it is based on."""

    verdict: Verdict
    lines: tuple[Line, ...]


def names_of(hostname: str, port: int, alias: str | None) -> tuple[str, ...]:
    """Return the names to look up, the most specific first. PURE.

    A host on another port may be known by its name alone. An alias replaces both names.
    """
    if alias:
        return (alias.lower(),)
    name = hostname.lower()
    return (name,) if port == SSH_PORT else (f"[{name}]:{port}", name)


def read(files: Iterable[str]) -> list[Line]:
    """Return all lines of the readable files. Skips devices such as /dev/null."""
    lines: list[Line] = []
    for path in map(Path, files):
        with contextlib.suppress(OSError):
            if path.is_file():
                lines += parse(path.read_text(errors="replace"), str(path))
    return lines


def parse(text: str, file: str) -> list[Line]:
    """Return the key lines of one file. Like `ssh`, skips all other lines. PURE."""
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
    """Judge whether `key` belongs to the host with these names. PURE.

    As in `ssh`, a key of a type that no line has is unknown, not changed.
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
    """Return the types of the host's known keys. PURE."""
    about = (line for name in names for line in lines if line.matches(name) and not line.marker)
    return tuple(dict.fromkeys(line.key.kind for line in about))


def append(file: str, name: str, key: Key, *, hashed: bool) -> None:
    """Append one line to `file`, which is created with mode 0600. Raises OSError.

    A single write in append mode, so that concurrent processes never mix their lines.
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
    except (ValueError, AssertionError):  # not base64, or a salt of the wrong length
        return False


def preferred_algorithms(route: Route, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Sort the types of known keys first in `possible`.

    A server has several keys but shows only one. One of another type would be unknown.
    """
    kinds = known_kinds(_lines(route), _names(route))
    known = [name for kind in kinds for name in _algorithms(kind) if name in possible]
    return (*known, *(name for name in possible if name not in known))


def _algorithms(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)


def verify(server_key: paramiko.PKey, route: Route) -> None:
    """Accept the host key, or raise HostUnreachable with the key and the remedy."""
    key = Key(server_key.get_name(), server_key.asbytes())
    finding = judge(_lines(route), key, _names(route))
    if finding.verdict == "known":
        return
    if finding.verdict == "revoked":
        raise HostUnreachable(
            f"{route.name}: its host key {key} is marked @revoked in "
            f"{finding.lines[0].place}; do not connect until the machine's owner explains it"
        )
    if route.host_keys == "no":
        log.warning(
            "%s: the host key %s is %s, but your ssh config turns StrictHostKeyChecking off: "
            "connecting without checking it",
            route.name,
            key,
            finding.verdict,
        )
    elif finding.verdict == "changed":
        raise _changed(route, key, finding)
    elif route.host_keys == "accept-new":
        accept(route, key)
    else:
        raise _unknown(route, key, finding)


def _names(route: Route) -> tuple[str, ...]:
    return names_of(route.hostname, route.port, route.host_key_alias)


def _lines(route: Route) -> list[Line]:
    return read((*route.known_hosts, *route.global_known_hosts))


def accept(route: Route, key: Key) -> None:
    """Add a new key to known_hosts, once for all connections that see it at the same time."""
    if not route.known_hosts:
        log.warning("%s: accepted host key %s; no known_hosts to write", route.name, key)
        return
    with _writing:
        if judge(_lines(route), key, _names(route)).verdict == "known":
            return
        file = route.known_hosts[0]
        try:
            append(file, _names(route)[0], key, hashed=route.hash_known_hosts)
        except OSError as error:
            raise HostUnreachable(
                f"{route.name}: cannot write its new host key to {file}: {error.strerror}; make "
                "the file writable"
            ) from None
    log.warning("%s: accepted host key %s and wrote it to %s", route.name, key, file)


def _changed(route: Route, key: Key, finding: Finding) -> HostUnreachable:
    line = finding.lines[0]
    return HostUnreachable(
        f"{route.name}: its host key has CHANGED: the server shows {key}, {line.place} has "
        f"{line.key.fingerprint}; if the machine was reinstalled, run `ssh-keygen -R "
        f"'{_names(route)[0]}' -f {line.file}` and connect once with ssh; otherwise someone may be "
        "intercepting the connection"
    )


def _unknown(route: Route, key: Key, finding: Finding) -> HostUnreachable:
    authorities = [line for line in finding.lines if line.marker == "@cert-authority"]
    others = [line for line in finding.lines if not line.marker]
    note = ""
    if authorities:
        note = (
            f" ({authorities[0].place} names a certificate authority for it, which ddpctl does not "
            "support: add the host key itself)"
        )
    elif others:
        note = f" ({others[0].place} has another kind of key for it, {others[0].key.kind})"
    port = f"-p {route.port} " if route.port != SSH_PORT else ""
    return HostUnreachable(
        f"{route.name}: its host key is unknown: {key}{note}; connect once with "
        f"`ssh {port}{route.name}`, or run `ssh-keyscan {port}{route.hostname} >> "
        "~/.ssh/known_hosts` and compare the fingerprint, or set `host_keys: accept-new` under "
        "defaults in the hosts file"
    )
