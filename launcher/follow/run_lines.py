"""Show the log lines of a run on the console."""

import time
from collections.abc import Sequence

from ..logs.fold_lines import Fold
from ..logs.log_entry import OutputLines
from ..logs.torchrun_report import TorchrunReports
from ..terminal.console import Console
from ..text import counted


class RunLines:
    """Filters, folds and prints a run's lines, as the user has chosen.

    brief: on a terminal without --verbose, hide torchrun's own report about failed ranks.
    """

    def __init__(self, console: Console, *, brief: bool = True) -> None:
        self.console = console
        self._brief = brief and console.on_terminal and not console.verbose
        self._reports = TorchrunReports()
        self._fold = Fold() if console.fold else None

    def show(self, output: Sequence[OutputLines]) -> None:
        self._print(self._reports.feed(output) if self._brief else output)

    def flush(self) -> None:
        """Print the lines that have waited long enough for folding, and flush the console."""
        if self._fold:
            self.console.show(self._fold.take_older(time.monotonic()))
        self.console.flush()

    def settle(self) -> None:
        """Print all lines that were held back, and a note if lines were hidden."""
        self._print(self._reports.held)
        if self._fold:
            self.console.show(self._fold.take_all())
        self.console.flush()
        if count := len(self._reports.hidden_on):
            hidden = f"torchrun's own report from {counted(count, 'node')} is hidden"
            self.console.say(f"{hidden}; `ddpctl logs` shows it")
        self._reports = TorchrunReports()

    def _print(self, output: Sequence[OutputLines]) -> None:
        if self._fold:
            output = self._fold.feed(output, time.monotonic())
        self.console.show(output)
