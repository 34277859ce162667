"""Route: how to reach one host, parsed from `ssh -G`, with all paths and numbers resolved."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..hosts import Host
from ..state import expanded
from .account import account_name

HostKeys = Literal["yes", "ask", "accept-new", "no"]
Options = Mapping[str, tuple[str, ...]]
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


@dataclass(frozen=True)
class Route:
    """How to reach one host. Paths are absolute, times in seconds."""

    name: str  # as in the hosts file
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    certificate_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None  # a socket
    known_hosts: tuple[str, ...]  # the user's; accept-new writes to the first
    global_known_hosts: tuple[str, ...]
    host_key_alias: str | None
    host_keys: HostKeys
    hash_known_hosts: bool
    connect_timeout: float | None
    alive_interval: float
    alive_count: int
    proxy_command: str | None
    proxy_jump: str | None
    address_family: socket.AddressFamily
    bind_address: str | None
    own_identity: str | None  # from the hosts file
    asked_host_keys: Literal["ask", "accept-new"]  # from the hosts file, for jump hosts
    depth: int = 0  # how many jumps lie beyond this host


def parse(output: str) -> dict[str, tuple[str, ...]]:
    """The output of `ssh -G`: keyword -> its values, in order. PURE."""
    options: dict[str, tuple[str, ...]] = {}
    for line in output.splitlines():
        keyword, _, value = line.partition(" ")
        options[keyword] = (*options.get(keyword, ()), value)
    return options


def from_options(host: Host, options: Options, *, home: str) -> Route:
    """The route that the parsed `ssh -G` output describes."""

    def one(keyword: str, default: str = "") -> str:
        return options.get(keyword, (default,))[0]

    def unless_none(keyword: str) -> str | None:
        value = one(keyword)
        return None if value.lower() in ("", "none") else value

    def yes(keyword: str) -> bool:
        return one(keyword) in ("yes", "true")

    def paths(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(_expand(value, tokens, home) for value in values if value.lower() != "none")

    hostname = one("hostname", host.host)
    tokens = _tokens(host, hostname, one("user"), one("port", "22"), one("hostkeyalias"), home)
    return Route(
        name=host.host,
        hostname=hostname,
        user=one("user"),
        port=int(one("port", "22")),
        identity_files=paths(options.get("identityfile", ())),
        certificate_files=paths(options.get("certificatefile", ())),
        identities_only=yes("identitiesonly"),
        identity_agent=_agent(options.get("identityagent", ("SSH_AUTH_SOCK",))[0], tokens, home),
        known_hosts=paths(_files(one("userknownhostsfile"))),
        global_known_hosts=paths(_files(one("globalknownhostsfile"))),
        host_key_alias=one("hostkeyalias") or None,
        host_keys=_host_keys(host, one("stricthostkeychecking", "ask")),
        hash_known_hosts=yes("hashknownhosts"),
        connect_timeout=float(unless_none("connecttimeout") or 0) or None,
        alive_interval=float(one("serveraliveinterval", "0")),
        alive_count=int(one("serveralivecountmax", "3")),
        proxy_command=_expand_tokens(unless_none("proxycommand") or "", tokens) or None,
        proxy_jump=unless_none("proxyjump"),
        address_family=_FAMILIES.get(one("addressfamily"), socket.AF_UNSPEC),
        bind_address=unless_none("bindaddress"),
        own_identity=_expand(host.identity_file, {}, home) if host.identity_file else None,
        asked_host_keys=host.host_keys,
    )


def _tokens(
    host: Host, hostname: str, user: str, port: str, alias: str, home: str
) -> dict[str, str]:
    local = socket.gethostname()
    return {
        "%": "%",
        "d": home,
        "h": hostname,
        "i": str(os.getuid()),
        "k": alias or hostname,
        "L": local.partition(".")[0],
        "l": local,
        "n": host.host,
        "p": port,
        "r": user,
        "u": account_name(),
        "j": host.proxy_jump or "",
    }


def _expand_tokens(value: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), value)


def _expand(path: str, tokens: Mapping[str, str], home: str) -> str:
    path = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], ""), path)
    path = _expand_tokens(path, tokens)
    if path == "~" or path.startswith("~/"):
        return home + path[1:]
    return str(expanded(path))


def _agent(value: str, tokens: Mapping[str, str], home: str) -> str | None:
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if value.startswith("$") and not value.startswith("${"):
        return os.environ.get(value[1:]) or None
    return _expand(value, tokens, home)


def _files(value: str) -> list[str]:
    """`ssh -G` separates paths by a space, and paths may contain spaces."""
    return [path for path in re.split(r" (?=[/~])", value) if path]


def _host_keys(host: Host, configured: str) -> HostKeys:
    """The hosts file's accept-new applies only where `ssh` would ask the user."""
    policies: Mapping[str, HostKeys] = {
        **dict.fromkeys(("yes", "true"), "yes"),
        **dict.fromkeys(("no", "false", "off"), "no"),
        "accept-new": "accept-new",
    }
    return policies.get(configured, host.host_keys)


def jump_parts(text: str) -> tuple[str | None, str, int | None]:
    """user, host and port of `[user@]host[:port]`; the host may be in brackets. PURE."""
    text = text.removeprefix("ssh://")
    user, _, rest = text.rpartition("@")
    match = re.fullmatch(r"\[(?P<v6>[^\]]+)\](?::(?P<port6>\d+))?", rest)
    if match:
        return user or None, match["v6"], int(match["port6"]) if match["port6"] else None
    host, colon, port = rest.rpartition(":")
    if colon and port.isdigit() and ":" not in host:
        return user or None, host, int(port)
    return user or None, rest, None
