"""The account that runs ddpctl: its name and home folder, even where it has no passwd entry."""

from __future__ import annotations

import os
import pwd


def account_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.getuid()))


def account_home() -> str:
    """Return the home folder in the passwd entry, which `ssh` uses; `/` if there is no entry."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def home() -> str:
    """$HOME, or the account's home folder if it is not set."""
    return os.environ.get("HOME") or account_home()
