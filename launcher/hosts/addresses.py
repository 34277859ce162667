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
    """Split `[user@]host[:port]` into `host` and, if given, `user` and `port`.

    An IPv6 address may be in brackets, and must be if a port follows.
    """
    user, at, rest = word.rpartition("@")
    name, colon, port = rest.partition(":")
    if bracketed := re.fullmatch(r"\[([^\[\]]*)\](?:(:)(.*))?", rest):
        name, colon, port = bracketed.groups("")
    elif ":" in port:  # an IPv6 address
        name, colon = rest, ""
    return {"host": name} | ({"user": user} if at else {}) | ({"port": port} if colon else {})
