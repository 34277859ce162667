"""What `ssh HOST` would do, according to `ssh -G HOST`.

The hosts file's own values are passed to `ssh` as options, so they override ~/.ssh/config.
"""

from __future__ import annotations

import functools
import logging
import subprocess
from dataclasses import replace
from pathlib import Path

from ..errors import HostUnreachable
from ..hosts import Host
from .account import account_home, home
from .route import Route, from_options, jump_parts, parse

TIMEOUT = 20.0  # seconds; `Match exec` may run anything

# They concern host keys, so ddpctl does not ignore them silently.
UNSUPPORTED = ("revokedhostkeys", "knownhostscommand")

log = logging.getLogger("ddpctl.ssh")


def route_to(host: Host) -> Route:
    """How `ssh` with this host's values would connect. HostUnreachable if `ssh` refuses it."""
    options = parse(_ask_ssh(host))
    for keyword in UNSUPPORTED:
        if options.get(keyword, ("none",))[0].lower() != "none":
            _warn_once(f"ddpctl does not support {keyword} and ignores it in your ssh config")
    return from_options(host, options, home=home())


def jump_route(route: Route) -> Route | None:
    """The route to the last of the jump hosts, which is reached through those before it.

    It follows its own configuration, as with `ssh -J`. The hosts file's key is tried after its own.
    """
    if route.proxy_jump is None:
        return None
    *before, last = route.proxy_jump.split(",")
    user, name, port = jump_parts(last)
    further = ",".join(before) or None
    found = route_to(Host(name, user, port, proxy_jump=further, host_keys=route.asked_host_keys))
    own = (route.own_identity,) if route.own_identity else ()
    return replace(
        found,
        identity_files=(*found.identity_files, *own),
        own_identity=route.own_identity,
        depth=route.depth + 1,
    )


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
        raise HostUnreachable(f"{host.name}: {_explain(host, done.stderr)}")
    if _home_differs():
        return done.stdout.replace(f" {account_home().rstrip('/')}/.ssh/", f" {home()}/.ssh/")
    return done.stdout


def _explain(host: Host, stderr: str) -> str:
    printed = "; ".join(stderr.strip().splitlines()) or "it printed nothing"
    remedy = (
        "`ssh` needs an entry for this account in /etc/passwd"
        if "No user exists" in printed
        else "fix ~/.ssh/config"
    )
    return f"`ssh -G {host.host}` failed: {printed}; {remedy}"


def _options(host: Host) -> list[str]:
    """The hosts file's values as options of `ssh`."""
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
# follows $HOME like every other program and passes `ssh` that folder's configuration.


def _home_differs() -> bool:
    return Path(home()) != Path(account_home())


def _own_config() -> str:
    files = (f"{home()}/.ssh/config", "/etc/ssh/ssh_config")
    return "".join(f"Include {_quoted(path)}\n" for path in files if Path(path).is_file())


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)
