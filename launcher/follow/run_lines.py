"""Print the lines of a run on the console."""

from ..logs.torchrun_traceback import TorchrunTracebacks
from ..terminal.console import Console


class RunLines:
    """Prints a run's lines. fold: on a terminal, shorten torchrun's tracebacks, unless --verbose."""

    def __init__(self, console: Console, *, fold: bool = True) -> None:
        self._console = console
        self._folds = fold and console.on_terminal and not console.verbose
        self._tracebacks = TorchrunTracebacks()

    def show(self, node_rank: int, text: bytes) -> None:
        self._console.lines(self._tracebacks.feed(node_rank, text) if self._folds else text)

    def settle(self) -> None:
        """Print all lines that were held back, and a note about those left out."""
        self._console.lines(self._tracebacks.take_held())
        self._console.settle()
        if count := len(self._tracebacks.left_out):
            nodes = "1 node" if count == 1 else f"{count} nodes"
            self._console.say(
                f"torchrun: {nodes} ended with ChildFailedError; full text: ddpctl logs"
            )
        self._tracebacks.left_out.clear()
