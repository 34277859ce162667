"""Spellings, layers, strictness; and no flag that torchrun would take for itself."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from trainer import parse_flags
from trainer.cli import main
from trainer.config import GROUPS, PRESETS, Config
from trainer.errors import UsageError
from trainer.tools import checkpoint_command, data_command


def parse(*argv: str, **env: str) -> Config:
    return parse_flags.parse(argv, env)[0]


def all_spellings() -> list[str]:
    actions = parse_flags.make_parser()._actions
    dashed = [name for action in actions for name in action.option_strings]
    return [*dashed, *(n[:2] + n[2:].replace("-", "_") for n in dashed if "-" in n[2:])]


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        # torchvision's and timm's
        (["-b", "64"], "batch_size", 64),
        (["--wd", "0.1"], "weight_decay", 0.1),
        (["--data-path", "x"], "data", "x"),
        (["--output-dir", "x"], "out", "x"),
        (["--lr-scheduler", "multistep"], "schedule", "multistep"),
        (["--lr-warmup-epochs", "3"], "warmup_epochs", 3.0),
        (["--print-freq", "7"], "print_every", 7),
        (["--use-deterministic-algorithms"], "deterministic", True),
        (["--sync-bn"], "bn", "sync"),
        (["--no-augment"], "augment", "none"),
        (["--grad-compression"], "grad_exchange", "bf16"),
        (["--reprob", "0.25"], "random_erase", 0.25),
        (["--clip-grad-norm", "1"], "clip_grad_norm", 1.0),
        (["--no-channels-last"], "channels_last", False),
        (["--torchcompile"], "compile", True),
        (["--checkpoint-hist", "5"], "keep", 5),
        (["--grad-accum-steps", "4"], "grad_accum_steps", 4),
        # older DDP tutorials'
        (["--num_epochs", "3"], "epochs", 3),
        (["--batch_size", "32"], "batch_size", 32),
        (["--batchSize", "32"], "batch_size", 32),
        (["--learning_rate", "0.5"], "lr", 0.5),
        (["--random_seed", "7"], "seed", 7),
        (["--model_dir", "m"], "checkpoint_dir", "m"),
        (["--data_url", "d"], "data", "d"),
        (["--output_dir", "o"], "out", "o"),
        (["--enable_gpu", "False"], "device", "cpu"),
        (["--enable_gpu", "true"], "device", "auto"),
        (["--custom_data", "True"], "data", "synthetic"),
        (["--grad_accu_steps", "2"], "grad_accum_steps", 2),
        (["--net", "resnet34"], "model", "resnet34"),
        (["--dataset-size", "1024"], "synthetic_train", 1024),
        (["--resume"], "resume", "auto"),
        (["--amp"], "amp", "bf16"),
    ],
)
def test_spellings(argv: list[str], field: str, value: object) -> None:
    assert getattr(parse(*argv), field) == value


def test_every_flag_has_both_spellings() -> None:
    names = set(all_spellings())
    for name in names:
        assert parse_flags.dashed(name) in names
    assert parse_flags.dashed("--out=my_folder") == "--out=my_folder"
    assert parse("--grad_accum_steps=3", "--data", "__x").data == "__x"


def test_torchrun_claims_none_of_our_flags() -> None:
    """Given after the script, without `--`: torchrun must leave each one alone."""
    parser = get_args_parser()
    theirs = [name for action in parser._actions for name in action.option_strings]
    for name in all_spellings():
        if name == "--help" or name == "-h":
            continue
        args = parser.parse_args(["--nproc-per-node", "1", "-m", "trainer", name, "1"])
        assert args.training_script_args == [name, "1"], name
        prefix_of = [flag for flag in theirs if flag.startswith(name)]
        assert not prefix_of or name in ("--local-rank", "--local_rank"), (name, prefix_of)


@pytest.mark.parametrize("clashing", ["--log", "--n", "--m"])
def test_torchrun_does_claim_prefixes(clashing: str) -> None:
    """A test of the test above."""
    with pytest.raises(SystemExit):
        get_args_parser().parse_args(["--nproc-per-node", "1", "-m", "trainer", clashing, "1"])


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--epoch", "3"], "unrecognized arguments: --epoch"),  # no abbreviations
        (["--lrr", "3"], "--lrr"),
        (["--epochs", "three"], "invalid int value"),
        (["--lr", "nan"], "invalid number value"),
        (["--amp", "fp8"], "invalid choice"),
        (["--keep", "1"], "at least 2"),
        (["--epochs", "0"], "--epochs 0: must be at least 1"),
        (["--lr", "-1"], "--lr -1.0: must not be negative"),
        (["--enable_gpu", "yess"], "--enable-gpu 'yess': not a boolean; pass true or false"),
        (["--batch-size", "8", "--global-batch", "8"], "use only one"),
        (["--preset", "none-such"], "--preset none-such: unknown preset; use one of"),
        (["--gpu", "0,2"], "CUDA_VISIBLE_DEVICES"),
        (["--save-every", "5 epochs"], "--save-every"),
        (["--milestones", "a,b"], "--milestones"),
        (["--profile", "20:10"], "--profile"),
        (["--max-time", "soon"], "--max-time"),
        (["--train-size", "0:224"], "--train-size"),
        (["--augment", "crop,twirl"], "--augment"),
        (["--random-erase", "1.1"], "must be between 0 and 1"),
        (["--ema", "1"], "must be at least 0 and below 1"),
        (["--test-only", "--resume", "none"], "there is nothing to evaluate"),
        (["--canonical-shards", "2", "--grad-accum-steps", "2"], "leave out --grad-accum-steps"),
        (["--canonical-shards", "2", "--bn", "sync"], "use --bn local or frozen"),
        (["--canonical-shards", "2", "--amp", "fp16"], "use --amp bf16"),
        (["--randaugment", "31"], "at most 30"),
        (["--canonical-shards", "2", "--grad-compression"], "leave out --grad-exchange"),
        (["--bn", "sync", "--device", "cpu"], "--bn sync needs GPUs"),
        (["--config", "/nowhere.json"], "/nowhere.json"),
        (["--init-method", "carrier-pigeon"], "--init-method"),
        (["extra"], "unrecognized arguments: extra"),
    ],
)
def test_mistakes_are_exit_2_and_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert printed.out == ""


def test_all_mistakes_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse("--epochs", "0", "--keep", "1", "--val-split", "3")
    assert len(str(caught.value).splitlines()) == 3


def test_layers(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    settings = {"preset": "fast", "epochs": 7, "batch-size": 16, "seed": 3, "compile": False}
    file.write_text(json.dumps(settings | {"deterministic": True, "width": None}))
    config = parse("--config", str(file), "--seed", "5")
    assert (config.lr, config.epochs, config.batch_size, config.seed) == (0.4, 7, 16, 5)
    assert config.deterministic and not config.compile and config.global_batch is None
    # A later layer's way to say the batch replaces an earlier one's.
    assert parse("--config", str(file), "--global-batch", "64").batch_size is None
    assert parse("--config", str(file), "--preset", "baseline").lr == 0.1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"epocs": 3}', "unrecognized arguments: --epocs=3"),
        ('{"epochs": "many"}', "invalid int value: 'many'"),
        ('{"epochs": 2.5}', "invalid int value: '2.5'"),
        ('{"epochs": true}', "expected one argument"),
        ('{"bn": "some"}', "invalid choice: 'some'"),
        ('{"config": "other.json"}', "config cannot be set in a file; pass it on the command line"),
        ('{"world_size": 2, "rank": 1}', "world-size cannot be set in a file"),
        ("[1]", "expected a JSON object"),
        ("{", "Expecting"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=str(file)) as caught:
        parse("--config", str(file))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_print_config_is_a_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-config", "--epochs", "4", "--amp", "bf16", "--width", "8"]) == 0
    file = tmp_path / "c.json"
    file.write_text(capsys.readouterr().out)
    assert parse("--config", str(file)) == parse("--epochs", "4", "--amp", "bf16", "--width", "8")


def test_under_ddpctl_folders_and_resume_come_from_it() -> None:
    config = parse(
        DDPCTL_RUN_ID="r", DDPCTL_OUTPUT_DIR="/output", DDPCTL_CHECKPOINT_DIR="/checkpoints"
    )
    assert (config.data, config.out, config.checkpoint_dir) == ("/data", "/output", "/checkpoints")
    assert config.resume == "auto"
    without_container = parse(DDPCTL_RUN_ID="r", DDPCTL_DATA_DIR="/home/ann/.ddpctl/datasets/1")
    assert without_container.data == "/home/ann/.ddpctl/datasets/1"
    alone = parse()
    assert (alone.out, alone.checkpoint_dir, alone.resume) == ("output", "output", "none")
    assert parse(TORCHELASTIC_RESTART_COUNT="1").resume == "auto"
    assert parse("--resume", "none", DDPCTL_RUN_ID="r").resume == "none"


def test_older_ways_to_say_who_is_where() -> None:
    _, other = parse_flags.parse(
        ["--init_method", "tcp://10.0.0.1:1234", "--rank", "1", "--world_size", "2"], {}
    )
    assert other["env"] == {
        "NODE_RANK": "1",
        "NNODES": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
    }
    _, other = parse_flags.parse(
        ["--init-method", "file:///x/y", "--init_method", "tcp://[::1]:9"], {}
    )
    assert other["env"] == {"MASTER_ADDR": "::1", "MASTER_PORT": "9"}
    assert parse_flags.parse(["--init-method", "file:///x/y"], {})[1]["env"] == {
        "TRAINER_STORE": "/x/y"
    }
    assert parse_flags.parse(["--init-method", "env://"], {})[1]["env"] == {}
    _, other = parse_flags.parse(["--ip", "h", "--port", "5", "--local_rank=3"], {})
    assert other["env"] == {"MASTER_ADDR": "h", "MASTER_PORT": "5", "LOCAL_RANK": "3"}


def test_help_shows_every_setting_in_its_group() -> None:
    text = parse_flags.make_parser().format_help()
    for field in dataclasses.fields(Config):
        assert "--" + field.name.replace("_", "-") in text or f"[no-]{field.name}" in text.replace(
            "-", "_"
        ).replace("[no_]", "[no-]")
    for title in GROUPS.values():
        assert f"{title}:" in text
    assert isinstance(parse_flags.make_parser(), argparse.ArgumentParser)


# What each recipe says of itself: by its authors, or by docs/trainer.md for our own.
RECIPES = {
    "leimao": {  # 16 GPUs with 256 images each, SGD 0.1; a CIFAR stem, warm-up and decay added
        "model": "resnet18", "stem": "cifar", "global_batch": 16 * 256, "epochs": 100, "opt": "sgd",
        "lr": 0.1, "momentum": 0.9, "lr_scaling": "linear", "weight_decay": 5e-4, "warmup_epochs": 5.0,
        "schedule": "cosine",
    },
    "modelarts": {  # Adam, 128 images per GPU, 100 epochs
        "model": "resnet18", "batch_size": 128, "epochs": 100, "opt": "adam", "lr": 0.001,
        "lr_scaling": "sqrt", "lr_base_size": 128, "weight_decay": 0.0, "schedule": "cosine",
        "warmup_epochs": 1.0,
    },
    "rentainhe": {  # SGD 0.1 / 0.9 / 1e-4, 256 images in all, 0.2 times at epochs 60, 120, 160
        "model": "resnet18", "global_batch": 256, "epochs": 200, "opt": "sgd", "lr": 0.1,
        "momentum": 0.9, "nesterov": False, "weight_decay": 1e-4, "schedule": "multistep",
        "milestones": "60,120,160", "gamma": 0.2, "warmup_epochs": 1.0,
    },
    "baseline": {  # kuangliu/pytorch-cifar: 128 images, SGD 0.1 / 0.9 / 5e-4, 200 epochs, cosine
        "model": "resnet18", "global_batch": 128, "epochs": 200, "opt": "sgd", "lr": 0.1,
        "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 1.0,
    },
    "fast": {
        "model": "resnet18", "global_batch": 512, "epochs": 35, "opt": "sgd", "lr": 0.4,
        "momentum": 0.9, "weight_decay": 5e-4, "schedule": "triangular", "warmup_epochs": 5.0,
        "label_smoothing": 0.1, "amp": "bf16", "compile": True, "compile_mode": "reduce-overhead",
        "drop_last": True,
    },
    "speed96": {
        "model": "resnet18", "global_batch": 512, "epochs": 160, "opt": "sgd", "lr": 0.4,
        "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine", "warmup_epochs": 5.0,
        "label_smoothing": 0.1, "cutout": 16, "ema": 0.999, "amp": "bf16", "compile": True,
        "compile_mode": "reduce-overhead",
        "drop_last": True, "eval_every": 20, "export_every": 0, "save_every": "0",
    },
    "imagenet": {  # Goyal et al. 2017, with label smoothing and an average: 0.1 per 256 images
        "model": "resnet50", "stem": "imagenet", "image_size": 224, "global_batch": 1024,
        "epochs": 90, "opt": "sgd", "lr": 0.1, "lr_scaling": "linear", "momentum": 0.9,
        "weight_decay": 5e-5, "norm_weight_decay": 0.0, "schedule": "cosine", "warmup_epochs": 5.0,
        "label_smoothing": 0.1, "ema": 0.9999, "amp": "bf16", "compile": True, "drop_last": True,
        "workers": 12,
    },
}  # fmt: skip


def test_presets_are_the_recipes_that_they_name() -> None:
    assert set(PRESETS) == set(RECIPES)
    default = parse()
    for name, recipe in RECIPES.items():
        config = dataclasses.asdict(parse("--preset", name))
        expected = {**dataclasses.asdict(default), "preset": name, **recipe}
        assert config == expected, name
        assert parse("--preset", name, "--epochs", "2").epochs == 2


def test_durations_sizes_and_lists_are_read() -> None:
    for text, seconds in (
        ("90s", 90),
        ("30m", 1800),
        ("2h30m", 9000),
        ("1d2h3m4s", 93784),
        ("", 0),
    ):
        assert parse("--max-time", text).parsed_max_time == seconds
    for text, every in (
        ("5ep", (5, "ep")),
        ("500st", (500, "st")),
        ("60s", (60, "s")),
        ("0", (0, "ep")),
    ):
        assert parse("--save-every", text).parsed_save_every == every
    assert parse("--profile", "3:5").parsed_profile == (3, 5)
    assert parse("--profile", "1:1").parsed_profile == (1, 1) and parse().parsed_profile is None
    assert parse("--milestones", "1, 2,").parsed_milestones == [1, 2]
    assert parse("--train-size", "128:192").parsed_train_size == (128, 192)
    assert parse("--train-size", "176").parsed_train_size == (176, 176)
    assert parse("--image-size", "200").parsed_train_size == (200, 200)
    assert parse("--augment", "crop, a.b:c").parsed_augment == ["crop", "a.b:c"]


@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [
        ("epochs", 1, None), ("batch-size", 1, None), ("eval-every", 1, None), ("print-every", 1, None),
        ("keep", 2, None), ("seed", 0, None), ("cutout", 0, None), ("randaugment", 0, 30),
        ("val-split", 0.0, 0.5), ("random-erase", 0.0, 1.0), ("workers", 0, None), ("timeout", 1.0, None),
        ("lr", 0.0, None), ("momentum", 0.0, 0.99), ("label-smoothing", 0.0, 0.99), ("ema", 0.0, 0.99),
    ],
)  # fmt: skip
def test_values_at_a_limit_are_allowed_and_beyond_it_are_not(
    name: str, lowest: float, highest: float | None
) -> None:
    field = name.replace("-", "_")
    for value in (lowest, *([] if highest is None else [highest])):
        assert getattr(parse(f"--{name}={value}"), field) == value
    for value in (lowest - 1, *([] if highest is None else [highest + 1])):
        with pytest.raises(UsageError, match=f"--{name} {value}: must "):
            parse(f"--{name}={value}")


def test_config_survives_json() -> None:
    assert json.loads(parse_flags.as_json(parse()))["model"] == "resnet18"


def test_settings_that_may_change_on_resume_without_a_word_leave_the_results_alone() -> None:
    """Or they are compared otherwise: what the network and the data are, and the batch."""
    silent = {field.name for field in dataclasses.fields(Config) if not field.metadata["noted"]}
    compared = "model stem width num_classes opt seed drop_last canonical_shards"
    start = "weights synthetic_train synthetic_test synthetic_size val_split"
    batch = "batch_size global_batch grad_accum_steps elastic"
    places = "data out checkpoint_dir resume resume_override preset"
    machine = "workers device spawn threads timeout"
    output = (
        "save_every keep export_every eval_every eval_batch_size test_only tta metric report_to"
    )
    watching = "max_time check_every profile print_every"
    groups = (compared, start, batch, places, machine, output, watching)
    assert silent == {name for group in groups for name in group.split()}


@pytest.mark.parametrize(
    "command",
    [
        (checkpoint_command, ["export", "a", "b.pth", "--he"]),
        (data_command, ["fetch", "--t", "x"]),
        (data_command, ["make", "--from", "synthetic", "--to", "x", "--fold", "y"]),
        (data_command, ["pack", "tree", "--to", "x", "--dec", "3"]),
        (data_command, ["bake"]),
        (data_command, []),
        (data_command, ["fetch"]),
        (data_command, ["make", "--to", "x"]),
        (checkpoint_command, []),
        (checkpoint_command, ["ls"]),
    ],
)
def test_other_commands_take_no_abbreviations_and_need_what_they_need(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, argv = command
    monkeypatch.chdir(tmp_path)  # for what a command that goes on would write
    with pytest.raises(UsageError, match=r"^trainer: .*\(see python -m trainer --help\)$"):
        module.main(argv)
