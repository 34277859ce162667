"""The account that runs ddpctl: its name and home folder, even without a passwd entry."""

from __future__ import annotations

import os
import pwd


def account_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return os.environ.get("USER", str(os.getuid()))


def account_home() -> str:
    """Return the home folder of the passwd entry, which `ssh` uses; `/` without an entry."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def home() -> str:
    """Return $HOME, or the account's home folder if HOME is not set."""
    return os.environ.get("HOME") or account_home()
