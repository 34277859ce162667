"""Parse `[user@]host[:port]`, where host is a name or an IPv4 or IPv6 address."""

import ipaddress
import re


def is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def split_login(word: str) -> dict[str, str]:
    """Split `[user@]host[:port]` into `host` and, if given, `user` and `port`."""
    user, at, rest = word.rpartition("@")
    name, port = split_port(rest)
    parts = {"host": name} | ({"user": user} if at else {})
    return parts if port is None else parts | {"port": port}


def split_port(word: str) -> tuple[str, str | None]:
    """Split `host:port`, `[v6]:port`, `host` or a bare IPv6 address. The port is None if not given."""
    if bracketed := re.fullmatch(r"\[([^\[\]]*)\](?::(.*))?", word):
        return bracketed[1], bracketed[2]
    name, colon, port = word.partition(":")
    return (name, port) if colon and ":" not in port else (word, None)
