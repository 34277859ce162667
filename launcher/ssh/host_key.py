"""Check the server's host key against known_hosts, by the policy in the ssh configuration."""

from __future__ import annotations

import logging
import threading

import paramiko

from ..errors import HostUnreachable
from . import known_hosts
from .known_hosts import Finding, Key
from .route import Route

log = logging.getLogger("ddpctl.ssh")
_writing = threading.Lock()


def preferred_algorithms(route: Route, possible: tuple[str, ...]) -> tuple[str, ...]:
    """`possible`, starting with the kinds of key that are known of the host.

    A server has several keys and shows one. A key of another kind would be unknown.
    """
    kinds = known_hosts.known_kinds(_lines(route), _names(route))
    known = [name for kind in kinds for name in _algorithms(kind) if name in possible]
    return (*known, *(name for name in possible if name not in known))


def _algorithms(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)


def verify(server_key: paramiko.PKey, route: Route) -> None:
    """Return if the host key is accepted; HostUnreachable names the key and the remedy."""
    key = Key(server_key.get_name(), server_key.asbytes())
    finding = _judge(route, key)
    if finding.verdict == "known":
        return
    if finding.verdict == "revoked":
        raise HostUnreachable(
            f"{route.name}: its host key {_show(key)} is marked @revoked in "
            f"{finding.lines[0].place}; do not connect until the machine's owner explains it"
        )
    if route.host_keys == "no":
        log.warning(
            "%s: the host key %s is %s, but your ssh config turns StrictHostKeyChecking off: "
            "connecting without checking it",
            route.name,
            _show(key),
            finding.verdict,
        )
    elif finding.verdict == "changed":
        raise _changed(route, key, finding)
    elif route.host_keys == "accept-new":
        accept(route, key)
    else:
        raise _unknown(route, key, finding)


def _judge(route: Route, key: Key) -> Finding:
    return known_hosts.judge(_lines(route), key, _names(route))


def _names(route: Route) -> tuple[str, ...]:
    return known_hosts.names_of(route.hostname, route.port, route.host_key_alias)


def _lines(route: Route) -> list[known_hosts.Line]:
    return known_hosts.read((*route.known_hosts, *route.global_known_hosts))


def accept(route: Route, key: Key) -> None:
    """Write a new key to known_hosts, once for all connections that see it at the same time."""
    if not route.known_hosts:
        log.warning("%s: accepted host key %s; no known_hosts to write", route.name, _show(key))
        return
    with _writing:
        if _judge(route, key).verdict == "known":
            return
        file = route.known_hosts[0]
        try:
            known_hosts.append(file, _names(route)[0], key, hashed=route.hash_known_hosts)
        except OSError as error:
            raise HostUnreachable(
                f"{route.name}: cannot write its new host key to {file}: {error.strerror}; make "
                "the file writable"
            ) from None
    log.warning("%s: accepted host key %s and wrote it to %s", route.name, _show(key), file)


def _changed(route: Route, key: Key, finding: Finding) -> HostUnreachable:
    line = finding.lines[0]
    return HostUnreachable(
        f"{route.name}: its host key has CHANGED: the server shows {_show(key)}, {line.place} has "
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
    port = f"-p {route.port} " if route.port != known_hosts.SSH_PORT else ""
    return HostUnreachable(
        f"{route.name}: its host key is unknown: {_show(key)}{note}; connect once with "
        f"`ssh {port}{route.name}`, or run `ssh-keyscan {port}{route.hostname} >> "
        "~/.ssh/known_hosts` and compare the fingerprint, or set `host_keys: accept-new` under "
        "defaults in the hosts file"
    )


def _show(key: Key) -> str:
    return f"{key.kind} {key.fingerprint}"
