"""The route to a host, equal to that of `ssh HOST` according to `ssh -G HOST`.

The hosts file's own values are passed to `ssh` as options, so they override ~/.ssh/config.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..errors import HostUnreachable
from ..hosts import Host
from ..hosts.values import split_port
from ..state import expanded
from .account import account_home, account_name, home

TIMEOUT = 20.0  # seconds; `Match exec` may run any command

# They affect host keys, so ddpctl must not ignore them silently.
UNSUPPORTED = ("revokedhostkeys", "knownhostscommand")

HostKeys = Literal["yes", "ask", "accept-new", "no"]
Options = Mapping[str, tuple[str, ...]]
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

log = logging.getLogger("ddpctl.ssh")


@dataclass(frozen=True)
class Route:
    """The route to one host. Paths are absolute, times in seconds."""

    name: str  # as in the hosts file
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    certificate_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None  # path of a socket
    known_hosts: tuple[str, ...]  # the user's files; accept-new writes to the first
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
    depth: int = 0  # number of jumps beyond this host


def route_to(host: Host) -> Route:
    """Return the route that `ssh` would take with this host's values. Raises HostUnreachable."""
    options = parse(_ask_ssh(host))
    for keyword in UNSUPPORTED:
        if options.get(keyword, ("none",))[0].lower() != "none":
            _warn_once(f"ddpctl does not support {keyword} and ignores it in your ssh config")
    return from_options(host, options, home=home())


def jump_route(route: Route) -> Route | None:
    """Return the route to the last jump host, which is reached through the earlier ones.

    It has its own configuration, as with `ssh -J`. The hosts file's key is tried after its own
    keys.
    """
    if route.proxy_jump is None:
        return None
    further, _, last = route.proxy_jump.rpartition(",")
    host = replace(jump_host(last), proxy_jump=further or None, host_keys=route.asked_host_keys)
    found = route_to(host)
    own = (route.own_identity,) if route.own_identity else ()
    return replace(
        found,
        identity_files=(*found.identity_files, *own),
        own_identity=route.own_identity,
        depth=route.depth + 1,
    )


def jump_host(text: str) -> Host:
    """Parse `[user@]host[:port]`. PURE."""
    user, _, rest = text.removeprefix("ssh://").rpartition("@")
    name, port = split_port(rest)
    return Host(name, user or None, int(port) if port and port.isdigit() else None)


def _ask_ssh(host: Host) -> str:
    command = ["ssh", "-G", *_options(host), "--", host.host]
    config = ""
    if _home_differs():
        command[2:2] = ["-F", "/dev/stdin"]
        config = _own_config()
    try:
        done = subprocess.run(
            command,
            input=config,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=TIMEOUT,
            check=False,
        )
    except OSError as error:
        raise HostUnreachable(
            f"{host.name}: cannot run `ssh` on this machine ({error.strerror}), which ddpctl reads "
            "~/.ssh/config with; install openssh-client or fix PATH"
        ) from None
    except subprocess.TimeoutExpired:
        raise HostUnreachable(
            f"{host.name}: `ssh -G {host.host}` did not end within {TIMEOUT:g} s; "
            "check `Match exec` in ~/.ssh/config"
        ) from None
    if done.returncode:
        printed = "; ".join(done.stderr.strip().splitlines()) or "it printed nothing"
        no_entry = "No user exists" in printed
        remedy = "`ssh` needs an entry for this account in /etc/passwd"
        raise HostUnreachable(
            f"{host.name}: `ssh -G {host.host}` failed: {printed}; "
            f"{remedy if no_entry else 'fix ~/.ssh/config'}"
        )
    if _home_differs():
        return done.stdout.replace(f" {account_home().rstrip('/')}/.ssh/", f" {home()}/.ssh/")
    return done.stdout


def _options(host: Host) -> list[str]:
    """Translate the hosts file's values to options of `ssh`."""
    values = {
        "User": host.user,
        "Port": host.port,
        "ProxyJump": host.proxy_jump,
        "IdentityFile": _quoted(host.identity_file) if host.identity_file else None,
    }
    return [f"-o{key}={value}" for key, value in values.items() if value is not None]


def _quoted(path: str) -> str:
    path = path.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{path}"'


# `ssh` uses the account's home folder and ignores $HOME. If they differ (containers, tests), ddpctl
# follows $HOME like every other program, and passes the configuration in that folder to `ssh`.


def _home_differs() -> bool:
    return Path(home()) != Path(account_home())


def _own_config() -> str:
    files = (f"{home()}/.ssh/config", "/etc/ssh/ssh_config")
    return "".join(f"Include {_quoted(path)}\n" for path in files if Path(path).is_file())


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


def parse(output: str) -> dict[str, tuple[str, ...]]:
    """Parse `ssh -G`: keyword -> its values, in order. PURE."""
    options: dict[str, tuple[str, ...]] = {}
    for line in output.splitlines():
        keyword, _, value = line.partition(" ")
        options[keyword] = (*options.get(keyword, ()), value)
    return options


def from_options(host: Host, options: Options, *, home: str) -> Route:
    """Build the route from the parsed `ssh -G` output."""

    def one(keyword: str, default: str = "") -> str:
        return options.get(keyword, (default,))[0]

    def unless_none(keyword: str) -> str | None:
        value = one(keyword)
        return None if value.lower() in ("", "none") else value

    def yes(keyword: str) -> bool:
        return one(keyword) in ("yes", "true")

    def paths(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(_expand(value, tokens, home) for value in values if value.lower() != "none")

    hostname, alias, local = one("hostname", host.host), one("hostkeyalias"), socket.gethostname()
    tokens = {
        "%": "%",
        "d": home,
        "h": hostname,
        "i": str(os.getuid()),
        "k": alias or hostname,
        "L": local.partition(".")[0],
        "l": local,
        "n": host.host,
        "p": one("port", "22"),
        "r": one("user"),
        "u": account_name(),
        "j": host.proxy_jump or "",
    }
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
        host_key_alias=alias or None,
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
    """Split paths. `ssh -G` separates them by spaces, but they may contain spaces themselves."""
    return [path for path in re.split(r" (?=[/~])", value) if path]


def _host_keys(host: Host, configured: str) -> HostKeys:
    """Choose the policy. The hosts file's accept-new applies only if `ssh` would ask the user."""
    if configured in ("yes", "true"):
        return "yes"
    if configured in ("no", "false", "off"):
        return "no"
    return "accept-new" if configured == "accept-new" else host.host_keys
