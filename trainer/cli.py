"""`python -m trainer [train flags]`, and its other commands: ckpt, data, bench, plot.

torch is imported late: --help, a mistyped flag and `ckpt ls` answer at once.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from trainer import flags
from trainer.config import Config
from trainer.errors import TrainerError

COMMANDS = ("ckpt", "data", "bench", "plot")


def main(argv: Sequence[str]) -> int:
    """Run the command line. Returns the exit code; one rank says what went wrong."""
    try:
        if argv and argv[0] in COMMANDS:
            return _command(argv[0], argv[1:])
        config, other = flags.parse(argv, os.environ)
        if other["print_config"]:
            print(flags.as_json(config))
            return 0
        for name, value in other["env"].items():
            os.environ.setdefault(name, value)
        if config.spawn and "RANK" not in os.environ:
            from trainer.tools.spawn import spawn

            return spawn(config.spawn, argv)
        return _train(config)
    except TrainerError as error:
        _report(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _command(name: str, argv: Sequence[str]) -> int:
    if name == "ckpt":
        from trainer.tools.checkpoint_command import main as command
    elif name == "data":
        from trainer.tools.data_command import main as command
    elif name == "bench":
        from trainer.tools.bench import main as command
    else:
        from trainer.tools.plot import main as command
    return command(argv)


def _train(config: Config) -> int:
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler, record

    from trainer.train import main as train

    @record
    def recorded() -> int:
        try:
            return train(config, os.environ)
        except TrainerError as error:
            get_error_handler().record_exception(error)  # torchrun's summary shows it
            _report(error)
            return error.exit_code

    return int(recorded() or 0)


def _report(error: TrainerError) -> None:
    """One rank speaks. The others give it time to: torchrun ends all ranks when the first ends."""
    rank = os.environ.get("RANK", "0")
    if rank == "0" or error.everyone:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
    else:
        time.sleep(1)
