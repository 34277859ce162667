"""The route to a host: the one that `ssh HOST` takes, according to `ssh -G HOST`.

The values in the hosts file are passed to `ssh` as options, so they override ~/.ssh/config.
"""

import functools
import logging
import os
import re
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import HostUnreachable
from ..hosts import Host
from ..hosts.addresses import split_login
from ..own_folders import expanded
from ..text import duration
from .local import account_name

CONNECT_TIMEOUT = 10.0  # seconds per step of a login, unless the ssh config has another value
TIMEOUT = 20.0  # seconds for `ssh -G`, whose `Match exec` may run any command
MAX_JUMPS = 8

# Keywords that affect host keys, so ddpctl must not ignore them silently.
UNSUPPORTED = ("revokedhostkeys", "knownhostscommand")

# Values of StrictHostKeyChecking that `ssh -G` prints -> their names in `man ssh_config`.
_POLICIES = {"true": "yes", "false": "no", "off": "no"}
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

_warn_once = functools.cache(logging.getLogger("ddpctl.ssh").warning)


@dataclass(frozen=True)
class Route:
    """The route to one host. All paths are absolute; all times are in seconds."""

    host: Host  # as in the hosts file
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...]
    certificate_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None  # path of a socket
    known_hosts: tuple[str, ...]  # the user's files; accept-new writes to the first
    global_known_hosts: tuple[str, ...]
    host_key_alias: str
    host_keys: str  # yes, ask, accept-new or no
    hash_known_hosts: bool
    connect_timeout: float = field(compare=False)  # for each step of a login
    alive_interval: float
    alive_count: int
    proxy_command: str | None
    proxy_jump: str | None
    address_family: socket.AddressFamily
    bind_address: str | None
    depth: int = 0  # 1 for a host's last jump host, 2 for the one before it, and so on

    @property
    def at(self) -> str:
        """The target for messages: ` at HOST:PORT` or ` on port PORT`; "" if it is obvious."""
        if self.hostname != self.host.name:
            return f" at {self.hostname}:{self.port}"
        return f" on port {self.port}" if self.port != 22 else ""

    @property
    def port_option(self) -> str:
        return f"-p {self.port} " if self.port != 22 else ""

    @property
    def known_names(self) -> tuple[str, ...]:
        """The host's names in known_hosts files, the most specific first.

        A host on a port other than 22 may be known by its name alone. An alias replaces all names.
        """
        if self.host_key_alias:
            return (self.host_key_alias.lower(),)
        name = self.hostname.lower()
        return (name,) if self.port == 22 else (f"[{name}]:{self.port}", name)


def route_to(host: Host, timeout: float = CONNECT_TIMEOUT) -> Route:
    """Return the route that `ssh` would take to `host`. Raises HostUnreachable if `ssh` fails.

    timeout: seconds per step of a login, unless the configuration has another value.
    """
    return parse(_ask_ssh(host), host, timeout)


def jump_route(route: Route) -> Route | None:
    """Return the route to the last jump host, through the earlier ones; None if there is none.

    That host has its own configuration, as with `ssh -J`. The key in the hosts file is also tried.
    """
    if route.proxy_jump is None:
        return None
    if route.depth == MAX_JUMPS:
        raise HostUnreachable(
            f"ProxyJump forms a loop ({route.proxy_jump})", "correct ~/.ssh/config"
        )
    further, _, last = route.proxy_jump.rpartition(",")
    login = split_login(last.removeprefix("ssh://"))
    port = login.get("port", "")
    host = Host(
        login["host"],
        user=login.get("user") or None,
        port=int(port) if port.isdecimal() else None,
        proxy_jump=further or None,
        host_keys=route.host.host_keys,
    )
    jump, own = route_to(host, route.connect_timeout), route.host.identity_file
    return replace(
        jump,
        host=replace(host, identity_file=own),
        identity_files=(*jump.identity_files, *([own] if own else [])),
        depth=route.depth + 1,
    )


def _ask_ssh(host: Host) -> str:
    given = {
        "User": host.user,
        "Port": host.port,
        "ProxyJump": host.proxy_jump,
        "IdentityFile": _quoted(host.identity_file) if host.identity_file else None,
    }
    options = [f"-o{key}={value}" for key, value in given.items() if value is not None]
    # `ssh` uses the account's home folder and ignores $HOME. If they differ (containers, tests),
    # ddpctl uses $HOME as every other program does, and passes its ssh configuration to `ssh`.
    home, account_home, config = expanded("~"), expanded(f"~{account_name()}"), ""
    if home != account_home:
        options += ["-F", "/dev/stdin"]
        files = filter(Path.is_file, (home / ".ssh" / "config", Path("/etc/ssh/ssh_config")))
        config = "".join(f"Include {_quoted(str(path))}\n" for path in files)
    try:
        done = subprocess.run(
            ["ssh", "-G", *options, "--", host.host],
            input=config,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=TIMEOUT,
            check=False,
        )
    except OSError as error:
        raise HostUnreachable(
            f"cannot run `ssh` ({error.strerror}), which ddpctl needs to read ~/.ssh/config",
            "install openssh-client on this machine, or fix PATH",
            host=host.name,
        ) from None
    except subprocess.TimeoutExpired:
        raise HostUnreachable(
            f"`ssh -G HOST` did not finish within {duration(TIMEOUT)}",
            "check `Match exec` in ~/.ssh/config",
            host=host.name,
        ) from None
    if done.returncode:
        printed = "; ".join(done.stderr.strip().splitlines()) or "it printed nothing"
        remedy = "correct ~/.ssh/config"
        if "No user exists" in printed:
            remedy = "add an entry for this account to /etc/passwd, because `ssh` needs one"
        raise HostUnreachable(f"`ssh -G HOST` failed: {printed}", remedy, host=host.name)
    return done.stdout.replace(f" {account_home / '.ssh'}/", f" {home / '.ssh'}/")


def _quoted(path: str) -> str:
    path = path.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{path}"'


def parse(output: str, host: Host, timeout: float = CONNECT_TIMEOUT) -> Route:
    """Parse the output of `ssh -G`. Logs a warning for each UNSUPPORTED keyword."""
    options: dict[str, list[str]] = {}
    for line in output.splitlines():
        keyword, _, value = line.partition(" ")
        options.setdefault(keyword, []).append(value)

    def one(keyword: str, default: str = "") -> str:
        return options.get(keyword, [default])[0]

    def unless_none(keyword: str, default: str = "") -> str:
        value = one(keyword, default)
        return "" if value.lower() == "none" else value

    def with_tokens(value: str) -> str:
        return re.sub(r"%(.)", lambda match: tokens.get(match[1], match[0]), value)

    def paths(values: Iterable[str]) -> tuple[str, ...]:
        given = (value for value in values if value.lower() not in ("", "none"))
        named = (re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], ""), each) for each in given)
        return tuple(str(expanded(with_tokens(each))) for each in named)

    def files(keyword: str) -> tuple[str, ...]:  # separated by spaces, and paths may contain spaces
        return paths(re.split(r" (?=[/~])", one(keyword)))

    hostname, alias, local = one("hostname", host.host), one("hostkeyalias"), socket.gethostname()
    tokens = {
        "%": "%",
        "d": str(expanded("~")),
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
    agent = unless_none("identityagent", "SSH_AUTH_SOCK")
    if variable := re.fullmatch(r"\$(\w+)|SSH_AUTH_SOCK", agent):
        agent = os.environ.get(variable[1] or "SSH_AUTH_SOCK", "")
    for keyword in filter(unless_none, UNSUPPORTED):
        _warn_once(f"ddpctl does not support {keyword} and ignores it in your ssh config")
    policy = one("stricthostkeychecking", "ask")
    return Route(
        host=host,
        hostname=hostname,
        user=one("user"),
        port=int(one("port", "22")),
        identity_files=paths(options.get("identityfile", ())),
        certificate_files=paths(options.get("certificatefile", ())),
        identities_only=one("identitiesonly") == "yes",
        identity_agent=next(iter(paths([agent])), None),
        known_hosts=files("userknownhostsfile"),
        global_known_hosts=files("globalknownhostsfile"),
        host_key_alias=alias,
        # the hosts file's accept-new applies only if `ssh` would ask the user
        host_keys=host.host_keys if policy == "ask" else _POLICIES.get(policy, policy),
        hash_known_hosts=one("hashknownhosts") == "yes",
        connect_timeout=float(unless_none("connecttimeout") or 0) or timeout,
        alive_interval=float(one("serveraliveinterval", "0")),
        alive_count=int(one("serveralivecountmax", "3")),
        proxy_command=with_tokens(unless_none("proxycommand")) or None,
        proxy_jump=unless_none("proxyjump") or None,
        address_family=_FAMILIES.get(one("addressfamily"), socket.AF_UNSPEC),
        bind_address=unless_none("bindaddress") or None,
    )
