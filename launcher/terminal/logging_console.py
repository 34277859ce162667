"""A console for programs: messages go to Python's logging, and nothing is printed."""

from __future__ import annotations

import logging

from .console import Console

LOGGER = logging.getLogger("ddpctl")
LOGGER.addHandler(logging.NullHandler())  # otherwise Python prints errors that no handler takes


class LoggingConsole(Console):
    """What the command line prints on stderr is logged as INFO, its details as DEBUG."""

    def __init__(self) -> None:
        super().__init__(quiet=True, plain=True)
        self.stdout_closed = True

    def say(self, text: str) -> None:
        LOGGER.info("%s", text)

    def detail(self, text: str) -> None:
        LOGGER.debug("%s", text)

    def error(self, text: str) -> None:
        LOGGER.error("%s", text)
