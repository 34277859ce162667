"""What `ssh HOST` would do, found out by asking it: `ssh -G HOST`.

The hosts file's own values go to `ssh` as options, so they win over ~/.ssh/config as they would on
a command line.
"""

from __future__ import annotations

import functools
import logging
import os
import pwd
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from launcher.errors import HostUnreachable
from launcher.hosts import Host
from launcher.ssh.route import Route, account_name, from_options, jump_parts, parse

TIMEOUT = 20.0  # seconds; `Match exec` may run anything

# About host keys, so not to be passed over in silence.
UNSUPPORTED = ("revokedhostkeys", "knownhostscommand")

DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")

log = logging.getLogger("ddpctl.remote")


def make(host: Host) -> Route:
    """How `ssh` with this host's values would connect. HostUnreachable when `ssh` refuses it."""
    try:
        text = _ask_ssh(host)
    except FileNotFoundError:
        _say_once("there is no `ssh` here: ~/.ssh/config is read without Match exec and the like")
        options = _read_without_ssh(host)
    else:
        options = parse(text)
        for keyword in UNSUPPORTED:
            if options.get(keyword, ("none",))[0].lower() != "none":
                _say_once(f"ddpctl does not know {keyword} of your ssh config and goes without")
    return from_options(host, options, home=home())


def jump_before(route: Route, host_keys: Literal["ask", "accept-new"]) -> Route | None:
    """The machine just before this one, if any: the last of its ProxyJump.

    The ones before that are on the way to it. It goes by its own config, as with `ssh -J`; the
    hosts file's key is tried too, after its own.
    """
    if route.proxy_jump is None:
        return None
    *before, last = route.proxy_jump.split(",")
    user, name, port = jump_parts(last)
    jump = Host(
        name, user=user, port=port, proxy_jump=",".join(before) or None, host_keys=host_keys
    )
    found = make(jump)
    own = (route.own_identity,) if route.own_identity else ()
    return replace(
        found,
        identity_files=(*found.identity_files, *own),
        own_identity=route.own_identity,
        depth=route.depth + 1,
    )


def home() -> str:
    """Where ~/.ssh is: $HOME, which is the account's own unless somebody set another one."""
    return os.environ.get("HOME") or _account_home()


def _ask_ssh(host: Host) -> str:
    arguments = ["ssh", "-G", *_config_file(), *_own_values(host), "--", host.host]
    try:
        done = subprocess.run(
            arguments,
            input=_config_text(),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HostUnreachable(
            f"{host.name}: `ssh -G {host.host}` did not end within {TIMEOUT:g} s; "
            "look at `Match exec` in ~/.ssh/config"
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no word why"]
        raise HostUnreachable(
            f"{host.name}: `ssh -G {host.host}` fails: {'; '.join(said)}; mend ~/.ssh/config"
        )
    return _with_own_home(done.stdout)


def _own_values(host: Host) -> list[str]:
    """The hosts file's values as options of `ssh`."""
    values = {
        "User": host.user,
        "Port": host.port,
        "ProxyJump": host.proxy_jump,
        "IdentityFile": _quoted_path(host.identity_file) if host.identity_file else None,
    }
    return [f"-o{key}={value}" for key, value in values.items() if value is not None]


def _quoted_path(path: str) -> str:
    path = path.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{path}"'


# `ssh` looks up the account's home folder and never $HOME. Where the two differ (tests, containers)
# ddpctl goes by $HOME, as everything else does: it hands `ssh` that folder's config.


def _moved() -> bool:
    return Path(home()) != Path(_account_home())


def _account_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def _config_file() -> list[str]:
    return ["-F", "/dev/stdin"] if _moved() else []


def _config_text() -> str:
    if not _moved():
        return ""
    files = (f"{home()}/.ssh/config", "/etc/ssh/ssh_config")
    return "".join(f"Include {_quoted_path(path)}\n" for path in files if Path(path).is_file())


def _with_own_home(output: str) -> str:
    if not _moved():
        return output
    return output.replace(f" {_account_home().rstrip('/')}/.ssh/", f" {home()}/.ssh/")


def _read_without_ssh(host: Host) -> dict[str, tuple[str, ...]]:
    """The same from paramiko's reader, which knows less."""
    import paramiko

    config = paramiko.SSHConfig()
    path = Path(home()) / ".ssh" / "config"
    try:
        if path.is_file():
            with path.open() as file:
                config.parse(file)
        user, _, name = host.host.rpartition("@")
        found = config.lookup(name)
    except (paramiko.SSHException, OSError, ImportError) as error:
        raise HostUnreachable(
            f"{host.name}: {path} cannot be read without the `ssh` command: {error}; install "
            "openssh-client"
        ) from None
    values: dict[str, Any] = dict(found)  # strings, and lists of them
    options: dict[str, tuple[str, ...]] = {
        keyword: tuple(value) if isinstance(value, list) else (value,)
        for keyword, value in values.items()
    }
    own = {"user": host.user or user, "port": host.port, "proxyjump": host.proxy_jump}
    options |= {keyword: (str(value),) for keyword, value in own.items() if value}
    options.setdefault("user", (account_name(),))
    identities = [host.identity_file] if host.identity_file else []
    identities += options.get("identityfile", ())
    options["identityfile"] = tuple(identities) or DEFAULT_KEYS
    options.setdefault("userknownhostsfile", ("~/.ssh/known_hosts ~/.ssh/known_hosts2",))
    options.setdefault("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts",))
    return options


@functools.cache
def _say_once(text: str) -> None:
    log.warning(text)
