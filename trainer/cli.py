"""The command line: `python -m trainer [FLAGS]`, and the commands `ckpt` and `data`.

torch is imported late, so that --help and usage errors are instant.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Sequence

from .config import Config
from .errors import TrainerError, UsageError, print_error
from .parent import die_with_parent
from .parse_flags import as_json, parse

COMMANDS = {"ckpt": "checkpoint_command", "data": "data_command"}  # modules of trainer/tools


def main(argv: Sequence[str]) -> int:
    """Run the command line and return its exit code. If there is an error, one rank prints it."""
    try:
        if argv and argv[0] in COMMANDS:
            module = importlib.import_module(f".tools.{COMMANDS[argv[0]]}", __package__)
            return int(module.main(argv[1:]))
        config, other = parse(argv, os.environ)
        if other["print_config"]:
            print(as_json(config))
            return 0
        for name, value in other["env"].items():
            os.environ.setdefault(name, value)
        if "RANK" not in os.environ and (config.spawn or "NNODES" in other["env"]):
            from .tools.spawn import spawn

            return spawn(config, argv, other["env"])
        if parent := os.environ.get("TRAINER_SPAWNED"):
            die_with_parent(int(parent))
        elif config.spawn:
            raise UsageError(
                "--spawn with RANK in the environment: torchrun has already started the ranks; "
                "leave out --spawn"
            )
        return _train(config)
    except TrainerError as error:
        print_error(error)
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)  # torchrun ends all ranks when one exits, so let rank 0 print first
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _train(config: Config) -> int:
    from torch.distributed.elastic.multiprocessing.errors import record

    from .train import main as train

    @record
    def recorded() -> int:
        try:
            return train(config, os.environ)
        except TrainerError as error:
            print_error(error)
            return error.exit_code

    return int(recorded() or 0)
