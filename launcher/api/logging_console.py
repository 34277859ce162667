"""A console for use from Python, where nothing is printed."""

import logging

from ..terminal.console import Console

LOGGER = logging.getLogger("ddpctl")
LOGGER.addHandler(logging.NullHandler())  # otherwise Python prints logged errors to stderr


class LoggingConsole(Console):
    """Prints nothing. Messages for stderr are logged as ERROR, INFO or DEBUG."""

    def __init__(self) -> None:
        super().__init__(quiet=True, plain=True, results=False)

    def say(self, text: str) -> None:
        LOGGER.info("%s", text)

    def detail(self, text: str) -> None:
        LOGGER.debug("%s", text)

    def error(self, text: str) -> None:
        LOGGER.error("%s", text)
