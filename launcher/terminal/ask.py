"""Ask the user for confirmation on a terminal."""

import sys

from ..errors import UsageError
from ..text import printable


def can_ask() -> bool:
    """Return whether a terminal is available for questions to the user."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, refusal: str | None, *, yes: bool) -> bool:
    """Return True if `yes`; otherwise ask on a terminal, and return the answer.

    Without a terminal, return True or, if there is a refusal, raise it as a UsageError.
    """
    if yes:
        return True
    if can_ask():
        import typer  # slow to load, and the Python API never asks

        return typer.confirm(printable(question), err=True)
    if refusal:
        raise UsageError(refusal, "pass -y as well")
    return True
