"""Is it the machine we mean? The server's key against known_hosts, by the policy that `ssh` has."""

from __future__ import annotations

import logging
import threading

import paramiko

from launcher.errors import HostUnreachable
from launcher.ssh import known_hosts
from launcher.ssh.known_hosts import Finding, Key
from launcher.ssh.route import Route

log = logging.getLogger("ddpctl.remote")
_writing = threading.Lock()


def algorithms_first(route: Route, possible: tuple[str, ...]) -> tuple[str, ...]:
    """`possible` with those first that we can recognise the host by.

    A server has several keys and shows one: asked for another kind than we know, it would seem
    changed.
    """
    kinds = known_hosts.known_kinds(_lines(route), route.hostname, route.port, route.host_key_alias)
    wanted = [name for kind in kinds for name in _algorithms(kind) if name in possible]
    return (*wanted, *(name for name in possible if name not in wanted))


def verify(server_key: paramiko.PKey, route: Route) -> None:
    """Returns when the key is the host's; HostUnreachable names the key and what to do."""
    key = Key(server_key.get_name(), server_key.asbytes())
    finding = _judge(route, key)
    if finding.standing == "known":
        return
    if finding.standing == "revoked":
        raise HostUnreachable(
            f"{route.name}: its host key {_words(key)} is marked @revoked in "
            f"{finding.lines[0].place}; do not connect before the machine's owner explains it"
        )
    if route.host_keys == "no":
        log.warning(
            "%s: its host key %s is %s and goes unchecked: StrictHostKeyChecking is off in your "
            "ssh config",
            route.name,
            _words(key),
            finding.standing,
        )
    elif finding.standing == "changed":
        raise _changed(route, key, finding)
    elif route.host_keys == "accept-new":
        accept(route, key)
    else:
        raise _unknown(route, key, finding)


def _judge(route: Route, key: Key) -> Finding:
    return known_hosts.judge(_lines(route), key, route.hostname, route.port, route.host_key_alias)


def _lines(route: Route) -> list[known_hosts.Line]:
    return known_hosts.read((*route.known_hosts, *route.global_known_hosts))


def accept(route: Route, key: Key) -> None:
    """Remembers a new key, once however many connections see it at the same time."""
    name = known_hosts.host_name(route.hostname, route.port, route.host_key_alias)
    if not route.known_hosts:
        log.warning("%s: host key %s accepted, and kept nowhere", route.name, _words(key))
        return
    with _writing:
        if _judge(route, key).standing == "known":
            return
        file = route.known_hosts[0]
        try:
            known_hosts.append(file, name, key, hashed=route.hash_known_hosts)
        except OSError as error:
            raise HostUnreachable(
                f"{route.name}: its new host key cannot be kept in {file}: {error.strerror}; make "
                "the file writable"
            ) from None
    log.warning("%s: host key %s accepted and written to %s", route.name, _words(key), file)


def _changed(route: Route, key: Key, finding: Finding) -> HostUnreachable:
    name = known_hosts.host_name(route.hostname, route.port, route.host_key_alias)
    line = finding.lines[0]
    return HostUnreachable(
        f"{route.name}: its host key has CHANGED: it shows {_words(key)}, {line.place} has "
        f"{line.key.fingerprint}; if the machine was set up anew, `ssh-keygen -R '{name}' -f "
        f"{line.file}` and connect once with ssh; else somebody may be in between"
    )


def _unknown(route: Route, key: Key, finding: Finding) -> HostUnreachable:
    authorities = [line for line in finding.lines if line.marker == "@cert-authority"]
    others = [line for line in finding.lines if not line.marker]
    note = ""
    if authorities:
        note = (
            f" ({authorities[0].place} has a certificate authority for it, which ddpctl does not "
            "support: the key itself must be there)"
        )
    elif others:
        note = f" ({others[0].place} knows it by another kind of key, {others[0].key.kind})"
    port = f"-p {route.port} " if route.port != known_hosts.SSH_PORT else ""
    return HostUnreachable(
        f"{route.name}: its host key is unknown: {_words(key)}{note}; connect once with "
        f"`ssh {port}{route.name}`, or `ssh-keyscan {port}{route.hostname} >> "
        "~/.ssh/known_hosts` after comparing it, or set `host_keys: accept-new` under defaults in "
        "the hosts file"
    )


def _words(key: Key) -> str:
    return f"{key.kind} {key.fingerprint}"


def _algorithms(kind: str) -> tuple[str, ...]:
    return ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
