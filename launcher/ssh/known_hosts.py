"""Check a server's host key against known_hosts, following the policy in the ssh configuration.

Matches lines as `ssh` does (see sshd(8)): hashed names, wildcards, negations, `[host]:port`,
@revoked and several files. paramiko's HostKeys supports only plain and hashed names.
@cert-authority lines are not supported, but they are recognized for the error message.
"""

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

from ..errors import HostUnreachable, UnknownHostKey
from .lean_paramiko import paramiko
from .route import Route

log = logging.getLogger("ddpctl.ssh")
_writing = threading.Lock()


@dataclass(frozen=True)
class Key:
    kind: str  # the key's type, such as ssh-ed25519
    blob: bytes

    def __str__(self) -> str:
        return f"{self.kind} {self.fingerprint}"

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint as `ssh-keygen -l` prints it: `SHA256:...`."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"


@dataclass(frozen=True)
class KnownHostsLine:
    """One line of a known_hosts file."""

    place: str  # FILE:NUMBER
    marker: str  # "", "@revoked" or "@cert-authority"
    names: str
    key: Key

    def matches(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            try:
                return paramiko.HostKeys.hash_host(name, self.names) == self.names
            except (ValueError, AssertionError):  # not base64, or a salt of the wrong length
                return False
        matches = False
        for pattern in self.names.lower().split(","):
            # [ is a wildcard in fnmatch, but not in known_hosts
            if fnmatch.fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
                if pattern.startswith("!"):
                    return False
                matches = True
        return matches


def read(files: Iterable[str]) -> list[KnownHostsLine]:
    """Return the key lines of all readable files. Skips devices such as /dev/null."""
    lines: list[KnownHostsLine] = []
    for path in map(Path, files):
        with contextlib.suppress(OSError):
            if path.is_file():
                lines += parse(path.read_text(errors="replace"), str(path))
    return lines


def parse(text: str, file: str) -> list[KnownHostsLine]:
    """Return the key lines in the text of one file. Skips all other lines, as `ssh` does. Pure."""
    lines = []
    for number, row in enumerate(text.split("\n"), 1):
        words = row.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        with contextlib.suppress(ValueError):  # not base64
            blob = base64.b64decode(words[2], validate=True)
            lines.append(KnownHostsLine(f"{file}:{number}", marker, words[0], Key(words[1], blob)))
    return lines


def judge(
    lines: Sequence[KnownHostsLine], key: Key, names: Sequence[str]
) -> tuple[str, list[KnownHostsLine]]:
    """Return a verdict on a host's `key`, and the lines that led to it. Pure.

    The verdict is known, unknown, changed or revoked. As in `ssh`, the key is unknown rather than
    changed if all known keys are of other types. names: the host's names, most specific first.
    """
    about = [line for line in lines if line.matches(names[0])]
    plain = [line for line in about if not line.marker]
    if revoked := [line for line in about if line.marker == "@revoked" and line.key == key]:
        return "revoked", revoked
    if same := [line for line in plain if line.key == key]:
        return "known", same
    if other := [line for line in plain if line.key.kind == key.kind]:
        return "changed", other
    if names[1:]:
        verdict, basis = judge(lines, key, names[1:])
        if verdict in ("known", "revoked"):
            return verdict, basis
    return "unknown", [line for line in about if line.marker != "@revoked"]


def preferred_algorithms(route: Route, possible: Sequence[str]) -> tuple[str, ...]:
    """Return the algorithms in `possible`, with the types of the host's known keys first.

    A server with several keys presents the key whose type comes first, which should be a key that
    we know.
    """
    lines = [line for line in _lines(route) if not line.marker]
    kinds = [line.key.kind for name in route.known_names for line in lines if line.matches(name)]
    algorithms = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
    first = [name for kind in kinds for name in algorithms.get(kind, (kind,)) if name in possible]
    return tuple(dict.fromkeys((*first, *possible)))


def _lines(route: Route) -> list[KnownHostsLine]:
    return read((*route.known_hosts, *route.global_known_hosts))


def verify(server_key: paramiko.PKey, route: Route) -> None:
    """Check the host key. Raises HostUnreachable if the key is refused."""
    key = Key(server_key.get_name(), server_key.asbytes())
    verdict, lines = judge(_lines(route), key, route.known_names)
    if verdict == "known":
        return
    if verdict == "revoked":
        raise HostUnreachable(
            f"its host key {key} is marked @revoked in {lines[0].place}",
            "do not connect until the machine's owner explains why",
        )
    if route.host_keys == "no":
        log.warning(
            "%s: the host key %s is %s; connecting anyway, because your ssh config turns "
            "StrictHostKeyChecking off",
            *(route.host.name, key, verdict),
        )
    elif verdict == "changed":
        place = lines[0].place
        raise HostUnreachable(
            f"its host key has CHANGED: the server presents {key}, but {place} has "
            f"{lines[0].key.fingerprint}",
            f"if the machine was reinstalled, run `ssh-keygen -R '{route.known_names[0]}' -f "
            f"{place.rpartition(':')[0]}` and connect once with ssh; otherwise someone may be "
            "intercepting the connection",
        )
    elif route.host_keys == "accept-new":
        accept(route, key)
    else:
        raise _unknown(route, key, lines)


def accept(route: Route, key: Key) -> None:
    """Add a new key to known_hosts, but only once if several connections do so at the same time."""
    name, path = route.known_names[0], Path(next(iter(route.known_hosts), os.devnull))  # `none`
    written = paramiko.HostKeys.hash_host(name) if route.hash_known_hosts else name
    line = f"{written} {key.kind} {base64.b64encode(key.blob).decode()}\n"
    with _writing:
        if judge(_lines(route), key, route.known_names)[0] == "known":
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # in one write, so that concurrent processes never mix their lines
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "rb+", buffering=0) as file:
                ends_within_a_line = file.read()[-1:] not in (b"", b"\n")
                file.write(("\n" * ends_within_a_line + line).encode())
        except OSError as error:
            raise HostUnreachable(
                f"cannot write its new host key to {path}: {error.strerror}",
                "make the file writable",
            ) from None
    log.warning("%s: accepted host key %s and wrote it to %s", route.host.name, key, path)


def _unknown(route: Route, key: Key, lines: Sequence[KnownHostsLine]) -> UnknownHostKey:
    note = ""
    if authority := next((line for line in lines if line.marker), None):
        note = (
            f" ({authority.place} has a certificate authority for this host, which ddpctl does not "
            "support; add the host key itself)"
        )
    elif lines:
        note = f" ({lines[0].place} has another type of key for this host, {lines[0].key.kind})"
    return UnknownHostKey(
        f"its host key is unknown: {key}{note}",
        f"connect once with `ssh {route.port_option}{route.host.name}`, or run `ssh-keyscan "
        f"{route.port_option}{route.hostname} >> ~/.ssh/known_hosts` and compare the fingerprint, "
        "or set `host_keys: accept-new` under `defaults:` in the hosts file",
    )
