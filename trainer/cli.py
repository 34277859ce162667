"""`python -m trainer [FLAGS]`, its other commands (ckpt, data, bench, plot), and how flags become a
`Config`.

Settings come, later ones winning, from: the defaults, a preset, `--config FILE`, `TRAINER_<FIELD>`
in the environment, flags. Every flag may be written with dashes or underscores. Abbreviations and
unknown flags are errors. `DDPCTL_*` gives folders and resume.

torch is imported late, so that --help, a mistyped flag and `ckpt ls` answer at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .config import GROUPS, PRESETS, Config, check
from .errors import TrainerError, UsageError
from .tools.older_flags import (
    add_older_spellings,
    both_spellings,
    strict_bool,
    take_older_spellings,
)

COMMANDS = ("ckpt", "data", "bench", "plot")
FIELDS = {field.name: field for field in dataclasses.fields(Config)}
TITLES = {
    "network": "network",
    "data": "images",
    "batch": "batch",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "run": "run",
    "checkpoints": "checkpoints and resume",
    "output": "output",
}
EPILOG = """\
Under torchrun the ranks come from its environment. Alone it is one process; --spawn N starts N.
  torchrun --nproc-per-node 2 -m trainer --data synthetic --model resnet8 --epochs 3
  python -m trainer --spawn 2 --data ./data --preset baseline
Other commands: trainer ckpt ls|verify|export, trainer data ..., trainer bench, trainer plot.
Exit codes: 0 done, 2 usage, 3 data, 4 checkpoint, 5 diverged, 6 replicas differ, 75 stopped and
saved, 143 stopped unsaved; under torchrun see status.json in the output folder."""


def main(argv: Sequence[str]) -> int:
    """Run the command line. Returns the exit code. One rank prints an error, if any."""
    try:
        if argv and argv[0] in COMMANDS:
            return _command(argv[0], argv[1:])
        config, other = parse(argv, os.environ)
        if other["print_config"]:
            print(as_json(config))
            return 0
        for name, value in other["env"].items():
            os.environ.setdefault(name, value)
        if "RANK" not in os.environ and (config.spawn or "NNODES" in other["env"]):
            from .tools.spawn import spawn

            return spawn(config, argv, other["env"])
        if config.spawn and "TRAINER_SPAWNED" not in os.environ:
            raise UsageError(
                "--spawn beside RANK in the environment: torchrun has started the ranks already"
            )
        return _train(config)
    except TrainerError as error:
        print_error(error)
        if os.environ.get("RANK", "0") != "0":
            time.sleep(1)  # torchrun ends all ranks with the first: let rank 0 print
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _command(name: str, argv: Sequence[str]) -> int:
    if name == "ckpt":
        from .tools.checkpoint_command import main as command
    elif name == "data":
        from .tools.data_command import main as command
    elif name == "bench":
        from .tools.bench import main as command
    else:
        from .tools.plot import main as command
    return command(argv)


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


def print_error(error: TrainerError) -> None:
    """Rank 0 prints for all ranks: they end with the same error."""
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"trainer: {message} (see python -m trainer --help)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows the dashed spellings only, and --[no-]x for a switch."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "_" not in name]
        if isinstance(action, argparse.BooleanOptionalAction):
            names = ["--[no-]" + name[2:] for name in names if not name.startswith("--no-")]
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            return ", ".join(names)
        return ", ".join(names) + " " + self._format_args(action, self._metavar(action))

    def _metavar(self, action: argparse.Action) -> str:
        return "{" + ",".join(action.choices) + "}" if action.choices else str(action.metavar)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="trainer",
        usage="trainer [FLAGS]",
        description="Train a ResNet with DistributedDataParallel.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="settings as JSON, TOML or YAML")
    parser.add_argument("--print-config", "--print_config", action="store_true", help="and stop")
    for name in GROUPS:
        group = parser.add_argument_group(TITLES[name])
        for field in FIELDS.values():
            if field.metadata["group"] == name:
                _add_field(group, field)
    add_older_spellings(parser)
    return parser


def parse(argv: Sequence[str], env: Mapping[str, str]) -> tuple[Config, dict[str, Any]]:
    """The Config for these arguments, and the other things they ask for: `print_config`, and `env`:
    variables that older flags stand for (MASTER_ADDR, NNODES, ...).
    """
    given = vars(make_parser().parse_args(list(argv)))
    other: dict[str, Any] = {
        "print_config": given.pop("print_config", False),
        "env": take_older_spellings(given),
    }
    layers: list[dict[str, Any]] = [
        _from_file(given.pop("config")) if "config" in given else {},
        _from_environment(env),
        given,
    ]
    preset = next((layer["preset"] for layer in reversed(layers) if layer.get("preset")), "")
    settings: dict[str, Any] = {}
    for layer in [_preset(preset), *layers]:
        if "batch_size" in layer and "global_batch" in layer:
            raise UsageError(
                "--batch-size is per rank and --global-batch for all ranks: give one of them"
            )
        if "batch_size" in layer or "global_batch" in layer:
            settings.pop("batch_size", None)
            settings.pop("global_batch", None)
        settings.update(layer)
    config = _with_ddpctl_defaults(Config(**settings), env)
    check(config)
    return config, other


def as_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2)


def _add_field(group: argparse._ArgumentGroup, field: dataclasses.Field[Any]) -> None:
    meta = field.metadata
    names = both_spellings(["--" + field.name.replace("_", "-"), *meta["aliases"]])
    text = meta["help"]
    if field.default not in (None, "", False) and "default" not in text and "(0:" not in text:
        text += f" (default {field.default})"
    if meta["kind"] is bool:
        group.add_argument(
            *names, dest=field.name, action=argparse.BooleanOptionalAction, help=text
        )
        return
    options: dict[str, Any] = {"dest": field.name, "help": text, "type": _reader(meta["kind"])}
    if meta["choices"]:
        options["choices"] = meta["choices"]
    else:
        options["metavar"] = {int: "N", float: "X"}.get(meta["kind"], "S")
    if meta["bare"]:
        options |= {"nargs": "?", "const": meta["bare"]}
    group.add_argument(*names, **options)


def _reader(kind: type) -> Callable[[str], Any]:
    if kind is float:
        return _finite
    return kind


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


_finite.__name__ = "number"  # argparse's message: "invalid number value"


def _preset(name: str) -> dict[str, Any]:
    if not name:
        return {}
    if name not in PRESETS:
        raise UsageError(f"--preset {name}: there are {', '.join(PRESETS)}")
    return dict(PRESETS[name])


def _from_environment(env: Mapping[str, str]) -> dict[str, Any]:
    found = {}
    for name, field in FIELDS.items():
        text = env.get(f"TRAINER_{name.upper()}")
        if text is not None:
            found[name] = _read(field, text, f"TRAINER_{name.upper()}")
    return found


def _from_file(path: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: {error}") from error
    try:
        content = _decode(Path(path).suffix, text)
    except ValueError as error:  # json's and tomllib's errors are ValueErrors
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: expected a mapping of setting to value")
    found = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name not in FIELDS:
            raise UsageError(f"--config {path}: no setting {key!r}")
        if value is not None:  # null: the default
            found[name] = _read(FIELDS[name], value, f"--config {path}: {key}")
    return found


def _decode(suffix: str, text: str) -> Any:
    if suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError:
            raise UsageError("--config: YAML needs PyYAML; use JSON or TOML") from None
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    if suffix == ".toml":
        return tomllib.loads(text)
    return json.loads(text)


def _read(field: dataclasses.Field[Any], value: Any, where: str) -> Any:
    """A value from a file or the environment, checked against the type of its flag."""
    kind, choices = field.metadata["kind"], field.metadata["choices"]
    if kind is bool:
        return value if isinstance(value, bool) else strict_bool(str(value))
    try:
        if isinstance(value, bool):
            raise ValueError
        result = _reader(kind)(value if kind is not int else str(value))
    except (ValueError, TypeError):
        raise UsageError(f"{where}: {value!r} is not a valid {kind.__name__}") from None
    if choices and result not in choices:
        raise UsageError(f"{where}: {value!r} is not one of {', '.join(choices)}")
    return result


def _with_ddpctl_defaults(config: Config, env: Mapping[str, str]) -> Config:
    under = "DDPCTL_RUN_ID" in env
    restarted = env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    out = config.out or env.get("DDPCTL_OUTPUT_DIR") or "output"
    return dataclasses.replace(
        config,
        data=config.data or ("/data" if under else "data"),
        out=out,
        checkpoint_dir=config.checkpoint_dir or env.get("DDPCTL_CHECKPOINT_DIR") or out,
        resume=config.resume or ("auto" if under or restarted or config.test_only else "none"),
    )
