"""Spellings, layers, strictness; and no flag that torchrun would take for itself."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from trainer import flags
from trainer.cli import main
from trainer.config import GROUPS, Config
from trainer.errors import UsageError


def parse(*argv: str, **env: str) -> Config:
    return flags.parse(argv, env)[0]


def all_spellings() -> list[str]:
    actions = flags.make_parser()._actions
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
        (["--clip-grad-norm", "1"], "clip_grad_norm", 1.0),
        (["--no-channels-last"], "channels_last", False),
        (["--torchcompile"], "compile", True),
        (["--checkpoint-hist", "5"], "keep", 5),
        (["--grad-accum-steps", "4"], "grad_accum_steps", 4),
        # older DDP tutorials'
        (["--num_epochs", "3"], "epochs", 3),
        (["--batch_size", "32"], "batch_size", 32),
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
        assert flags.dashed(name) in names
    assert flags.dashed("--out=my_folder") == "--out=my_folder"
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
        (["--enable_gpu", "yess"], "neither true nor false"),
        (["--batch-size", "8", "--global-batch", "8"], "use only one"),
        (["--preset", "none-such"], "--preset none-such: there are"),
        (["--gpu", "0,2"], "CUDA_VISIBLE_DEVICES"),
        (["--save-every", "5 epochs"], "--save-every"),
        (["--milestones", "a,b"], "--milestones"),
        (["--profile", "20:10"], "--profile"),
        (["--cuda-graph", "--mixup", "0.2"], "--cuda-graph needs --opt sgd"),
        (["--cuda-graph", "--compile", "--compile-mode", "max-autotune"], "--compile-mode default"),
        (["--randaugment", "31"], "at most 30"),
        (["--canonical-shards", "2", "--grad-compression"], "leave out --grad-compression"),
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
    file = tmp_path / "c.toml"
    file.write_text('epochs = 7\nlr = 0.7\n"batch-size" = 16\nseed = 3\n')
    env = {"TRAINER_LR": "0.8", "TRAINER_SEED": "4", "TRAINER_DETERMINISTIC": "true"}
    config = parse("--config", str(file), "--seed", "5", **env)
    assert (config.epochs, config.lr, config.batch_size, config.seed) == (7, 0.8, 16, 5)
    assert config.deterministic
    # A later layer's way to say the batch replaces an earlier one's.
    assert parse("--config", str(file), "--global-batch", "64").batch_size is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"epocs": 3}', "no setting 'epocs'"),
        ('{"epochs": "many"}', "'many' is not a valid int"),
        ('{"epochs": 2.5}', "2.5 is not a valid int"),
        ('{"epochs": true}', "True is not a valid int"),
        ('{"bn": "some"}', "not one of local, sync, frozen"),
        ("[1]", "expected a mapping"),
        ("{", "Expecting"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "c.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=str(file)) as caught:
        parse("--config", str(file))
    assert words in str(caught.value)


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
    alone = parse()
    assert (alone.out, alone.checkpoint_dir, alone.resume) == ("output", "output", "none")
    assert parse(TORCHELASTIC_RESTART_COUNT="1").resume == "auto"
    assert parse("--resume", "none", DDPCTL_RUN_ID="r").resume == "none"


def test_older_ways_to_say_who_is_where() -> None:
    _, other = flags.parse(
        ["--init_method", "tcp://10.0.0.1:1234", "--rank", "1", "--world_size", "2"], {}
    )
    assert other["env"] == {
        "NODE_RANK": "1",
        "NNODES": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234",
    }
    _, other = flags.parse(["--ip", "h", "--port", "5", "--local_rank=3"], {})
    assert other["env"] == {"MASTER_ADDR": "h", "MASTER_PORT": "5", "LOCAL_RANK": "3"}


def test_help_shows_every_setting_in_its_group() -> None:
    text = flags.make_parser().format_help()
    for field in dataclasses.fields(Config):
        assert "--" + field.name.replace("_", "-") in text or f"[no-]{field.name}" in text.replace(
            "-", "_"
        ).replace("[no_]", "[no-]")
    for title in GROUPS.values():
        assert f"{title}:" in text
    assert isinstance(flags.make_parser(), argparse.ArgumentParser)


def test_presets_are_settings() -> None:
    from trainer.config import PRESETS

    assert {"leimao", "modelarts", "rentainhe", "baseline", "fast", "speed96", "imagenet"} <= set(
        PRESETS
    )
    for name, settings in PRESETS.items():
        config = parse("--preset", name)
        for key, value in settings.items():
            assert getattr(config, key) == value, (name, key)
        assert parse("--preset", name, "--epochs", "2").epochs == 2


def test_config_survives_json() -> None:
    assert json.loads(flags.as_json(parse()))["model"] == "resnet18"
