"""Turn flags into a `Config`.

Settings come from the defaults, a preset, `--config FILE` and flags, and later ones take
precedence. Every flag may be written with dashes or underscores. Abbreviations and unknown flags
are errors. The variables `DDPCTL_*` set defaults for the folders and for --resume. Flags of older
DDP scripts, and what they stand for today, are at the end of this file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .config import GROUPS, PRESETS, Config
from .errors import UsageError

EPILOG = """\
torchrun's variables define the ranks. Without them, there is one process; --spawn N starts N.
  torchrun --nproc-per-node 2 -m trainer --data synthetic --model resnet8 --epochs 3
  python -m trainer --spawn 2 --data ./data --preset baseline
Other commands: trainer ckpt ls|export, trainer data fetch|make|pack|verify.
Exit codes: 0 done, 1 failed, 2 usage, 3 data, 4 checkpoint, 5 diverged, 6 replicas differ,
75 stopped and saved, 143 stopped without saving; under torchrun, see status.json in the output
folder."""


class Parser(argparse.ArgumentParser):
    """Accepts no abbreviations and raises errors instead of exiting. Its subparsers do the same."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"trainer: {message} (see python -m trainer --help)")


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows a flag's metavar once, and a switch as --[no-]x."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = action.option_strings
        if isinstance(action, argparse.BooleanOptionalAction):
            return ", ".join("--[no-]" + n[2:] for n in names if not n.startswith("--no-"))
        if action.nargs == 0:
            return ", ".join(names)
        value = "{" + ",".join(action.choices) + "}" if action.choices else str(action.metavar)
        return ", ".join(names) + " " + self._format_args(action, value)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="trainer",
        usage="trainer [FLAGS]",
        description="Train a ResNet with DistributedDataParallel.",
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", metavar="FILE", help="read settings from a JSON file")
    parser.add_argument("--print-config", action="store_true", help="print the settings and exit")
    for field in dataclasses.fields(Config):
        if field.name in GROUPS:
            group = parser.add_argument_group(GROUPS[field.name])
        _add_field(group, field)
    add_older_spellings(parser)
    return parser


def parse(argv: Sequence[str], env: Mapping[str, str]) -> tuple[Config, dict[str, Any]]:
    """Return the Config for these arguments, and a dict with `print_config` (whether to print it) and
    `env` (the variables that older flags stand for, such as MASTER_ADDR). Raises UsageError.
    """
    given = settings_in(argv)
    other: dict[str, Any] = {
        "print_config": given.pop("print_config", False),
        "env": given.pop("env"),
    }
    layers = [_from_file(given.pop("config")) if "config" in given else {}, given]
    preset = next((layer["preset"] for layer in reversed(layers) if layer.get("preset")), "")
    if preset and preset not in PRESETS:
        raise UsageError(f"--preset {preset}: unknown preset; use one of {', '.join(PRESETS)}")
    settings: dict[str, Any] = {}
    for layer in [PRESETS.get(preset, {}), *layers]:
        if "batch_size" in layer and "global_batch" in layer:
            raise UsageError(
                "--batch-size is per rank and --global-batch for all ranks; use only one"
            )
        if "batch_size" in layer or "global_batch" in layer:
            settings.pop("batch_size", None)
            settings.pop("global_batch", None)
        settings.update(layer)
    config = _with_ddpctl_defaults(Config(**settings), env)
    if problems := list(config.problems()):
        raise UsageError("\n".join(problems))
    return config, other


def settings_in(argv: Sequence[str]) -> dict[str, Any]:
    """Return the settings from these arguments, with older spellings translated."""
    given = vars(make_parser().parse_args([dashed(argument) for argument in argv]))
    return {"env": take_older_spellings(given), **given}


def as_json(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2)


def _add_field(group: argparse._ArgumentGroup, field: dataclasses.Field[Any]) -> None:
    meta = field.metadata
    names = [dashed(f"--{field.name}"), *meta["aliases"]]
    text = meta["help"]
    if field.default not in (None, "", False) and "default" not in text and "(0:" not in text:
        text += f" (default {field.default})"
    if meta["kind"] is bool:
        group.add_argument(
            *names, dest=field.name, action=argparse.BooleanOptionalAction, help=text
        )
        return
    options: dict[str, Any] = {
        "dest": field.name,
        "help": text,
        "type": READERS.get(meta["kind"], meta["kind"]),
    }
    if meta["choices"]:
        options["choices"] = meta["choices"]
    else:
        options["metavar"] = {int: "N", float: "X"}.get(meta["kind"], "S")
    if meta["bare"]:
        options |= {"nargs": "?", "const": meta["bare"]}
    group.add_argument(*names, **options)


def number(text: str) -> float:
    """Return a finite float. argparse's message names this function: "invalid number value"."""
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


READERS: dict[type, Callable[[str], Any]] = {float: number}  # other types read text themselves


def _from_file(path: str) -> dict[str, Any]:
    """Return the settings in a JSON file, read as if they were flags. null means the default."""
    try:
        content = json.loads(Path(path).read_text())
        if not isinstance(content, dict):
            raise ValueError('expected a JSON object, such as {"epochs": 90}')
        words = []
        for key, value in content.items():
            name = str(key).replace("_", "-")
            if name in NO_SETTINGS:
                raise ValueError(f"{name} cannot be set in a file; pass it on the command line")
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            elif value is not None:
                words.append(f"--{name}={value}")
        given = settings_in(words)
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"--config {path}: {' '.join(str(error).split())}") from error
    del given["env"]
    return given


def _with_ddpctl_defaults(config: Config, env: Mapping[str, str]) -> Config:
    under = "DDPCTL_RUN_ID" in env
    restarted = env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    out = config.out or env.get("DDPCTL_OUTPUT_DIR") or "output"
    return dataclasses.replace(
        config,
        data=config.data or env.get("DDPCTL_DATA_DIR") or ("/data" if under else "data"),
        out=out,
        checkpoint_dir=config.checkpoint_dir or env.get("DDPCTL_CHECKPOINT_DIR") or out,
        resume=config.resume or ("auto" if under or restarted or config.test_only else "none"),
    )


VARIABLES = {  # the variable that each of these older flags stands for
    "rank": "NODE_RANK",  # it counts nodes, as in the scripts that use it
    "world_size": "NNODES",
    "local_rank": "LOCAL_RANK",
    "ip": "MASTER_ADDR",
    "port": "MASTER_PORT",
}
# flags that a --config file cannot set, because they are for one node or one call, not for the run
NO_SETTINGS = "help config print-config init-method rank world-size local-rank ip port".split()


def add_older_spellings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "older spellings", "torchrun's variables take precedence over these flags"
    )
    for name, text in (
        *((name, argparse.SUPPRESS) for name in (*VARIABLES, "init_method", "gpu", "gpu_id")),
        ("enable_gpu", "true: --device auto, false: --device cpu"),
        ("custom_data", "true: --data synthetic"),
    ):
        group.add_argument(dashed(f"--{name}"), dest=name, metavar="BOOL", help=text)
    group.add_argument("--sync-bn", action="store_true", help="same as --bn sync")
    group.add_argument("--no-augment", action="store_true", help="same as --augment none")


def take_older_spellings(given: dict[str, Any]) -> dict[str, str]:
    """Translate the older spellings in `given`. Return the ones about ranks as environment variables."""
    if "gpu" in given or "gpu_id" in given:
        raise UsageError(
            f"{'--gpu' if 'gpu' in given else '--gpu-id'}: not supported; set CUDA_VISIBLE_DEVICES, or "
            "`gpus:` in the hosts file"
        )
    if "enable_gpu" in given:
        given.setdefault("device", "auto" if taken_bool(given, "enable_gpu") else "cpu")
    if "custom_data" in given and taken_bool(given, "custom_data"):
        given.setdefault("data", "synthetic")
    if given.pop("sync_bn", False):
        given.setdefault("bn", "sync")
    if given.pop("no_augment", False):
        given.setdefault("augment", "none")
    variables = {VARIABLES[name]: given.pop(name) for name in VARIABLES if name in given}
    method = given.pop("init_method", "env://")
    if method.startswith("tcp://"):
        address, _, port = method.removeprefix("tcp://").rpartition(":")
        variables |= {"MASTER_ADDR": address.strip("[]"), "MASTER_PORT": port}
    elif method.startswith("file://"):
        variables["TRAINER_STORE"] = method.removeprefix("file://")
    elif method != "env://":
        raise UsageError(
            f"--init-method {method}: not supported; use tcp://ADDRESS:PORT, file://PATH or env://"
        )
    return variables


def taken_bool(given: dict[str, Any], name: str) -> bool:
    text: str = given.pop(name)
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise UsageError(f"{dashed(f'--{name}')} {text!r}: not a boolean; pass true or false")


def dashed(argument: str) -> str:
    """Return an argument with dashes for the underscores in a flag's name. Leaves values alone."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument
