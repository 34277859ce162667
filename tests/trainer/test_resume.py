"""Stopped and resumed equals never stopped; a checkpoint is found wherever it is."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_ranks import Job, make, metrics, newest_state, on_ranks, same

from trainer import checkpoint
from trainer.distributed import Ranks
from trainer.errors import CheckpointError
from trainer.restore import Disks, Restored, check_fits, prepare, restore
from trainer.state import identity, to_checkpoint

FLAT = ("--schedule", "constant", "--warmup-epochs", "0", "--epochs", "3")  # 7 steps an epoch


def steps(*numbers: int) -> tuple[str, ...]:
    (number,) = numbers
    return (*FLAT, "--max-steps", str(number))


def test_resume_in_the_middle_of_an_epoch_is_bitwise_equal(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", *steps(16), "--ema", "0.9", count=2).done()
    part = Job(tmp_path / "part", *steps(10), "--ema", "0.9", count=2).done()
    assert "resumed" not in part.log()
    again = Job(part.out, *steps(16), "--ema", "0.9", "--resume", "auto", count=2).done()
    assert "resumed from ckpt/step-00000010" in again.log()
    a, b = newest_state(whole.out), newest_state(part.out)
    assert same(a, b)
    # Every step and every checkpoint once, across both attempts.
    lines = metrics(part.out)
    assert [m["step"] for m in lines if m["kind"] == "train"] == list(range(1, 17))
    assert [m["kind"] for m in lines].count("start") == 2
    assert [m["kind"] for m in lines].count("end") == 1
    assert lines[-1]["state"] == "completed"
    evals = [m for m in lines if m["kind"] == "eval"]
    assert [m["step"] for m in evals] == [7, 10, 14, 16]
    assert evals[-1] | {"ts": 0} == whole.metrics("eval")[-1] | {"ts": 0}


def test_lost_steps_are_trained_again_and_counted_once(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", *steps(14)).done()
    last = tmp_path / "whole" / "ckpt" / "step-00000014"
    reference = checkpoint.read(last)["state.pt"]
    shutil.rmtree(last)  # as if it had been killed before the last save
    again = Job(whole.out, *steps(14), "--resume", "auto").done()
    assert "resumed from ckpt/step-00000007" in again.log()
    assert checkpoint.read(last)["state.pt"] == reference
    assert [m["step"] for m in again.metrics("train")] == list(range(1, 15))


def test_adam_and_accumulation_resume_bitwise(tmp_path: Path) -> None:
    flags = ("--opt", "adamw", "--lr", "0.001", "--grad-accum-steps", "2")
    whole = Job(tmp_path / "whole", *steps(12), *flags, count=2).done()
    part = Job(tmp_path / "part", *steps(5), *flags, count=2).done()
    Job(part.out, *steps(12), *flags, "--resume", "auto", count=2).done()
    assert same(newest_state(whole.out), newest_state(part.out))


def test_a_completed_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    Job(tmp_path / "run").done()
    again = Job(tmp_path / "run", "--resume", "auto").done()
    assert again.status["state"] == "completed"
    assert again.status["checkpoint"] == "ckpt/step-00000014"
    assert [m["step"] for m in again.metrics("train")] == list(range(1, 15))


def test_beginning_anew_keeps_the_earlier_run_aside(tmp_path: Path) -> None:
    Job(tmp_path / "run").done()
    best = (tmp_path / "run" / "best.pth").read_bytes()
    Job(tmp_path / "run", "--seed", "1", "--epochs", "1").done()
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"ckpt", "earlier-ckpt", "metrics.jsonl", "earlier-metrics.jsonl"} <= names
    # no weights of the earlier run pass for those of the new one, and none are lost
    assert {name for name in names if name.endswith(".pth")} == {
        *("best.pth", "epoch_1.pth", "earlier-best.pth", "earlier-epoch_2.pth")
    }
    assert (tmp_path / "run" / "earlier-best.pth").read_bytes() == best
    assert len([m for m in metrics(tmp_path / "run") if m["kind"] == "start"]) == 1


def losses(job: Job) -> list[float]:
    return [line["loss"] for line in job.metrics("train")]


@pytest.mark.parametrize(
    "flags",
    [(), ("--ema", "0.9", "--mixup", "0.2"), ("--grad-accum-steps", "2")],
    ids=["plain", "ema", "accumulated"],
)
def test_from_four_ranks_to_three_and_back_the_losses_are_those_of_four(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """With one command for all, whose batch is per rank: 24 images on 4 ranks, 100 = 4 x 24 + 4."""
    flags = ("--batch-size", "6", "--epochs", "3", "--resume", "auto", *flags)
    whole = Job(tmp_path / "whole", *flags, count=4).done()
    part = tmp_path / "part"
    stopped = Job(part, *flags, count=4, first=stop_at(6)).codes()
    stopped += (fewer := Job(part, *flags, count=3, first=stop_at(11))).codes()
    assert stopped == [75] * 7
    again = Job(part, *flags, count=4).done()
    assert losses(again) == losses(whole)
    assert same(newest_state(part), newest_state(whole.out))
    assert "world size 4 -> 3: same batches, same order" in fewer.log()
    if "--grad-accum-steps" not in flags:
        assert "global batch 24 = 12+6+6, ranks: 3, micro-batches: 4" in fewer.log()
        assert "--elastic even is faster, with global batch 24 = 3 x 8" in fewer.log()


def stop_at(step: int) -> Callable[[], None]:
    return functools.partial(_stop_at, step)


def _stop_at(step: int) -> None:
    """As if a signal had come after this step."""
    from trainer import train

    real = train.train_step

    def train_step(t: Any, batches: Any) -> None:
        real(t, batches)
        if t.step == step:
            t.poll.stop.name = "SIGTERM"

    train.train_step = train_step


def test_an_even_split_is_a_flag_and_keeps_the_batch(tmp_path: Path) -> None:
    flags = ("--batch-size", "6", "--resume", "auto", *steps(9))
    Job(tmp_path / "run", *flags, count=4, first=stop_at(5)).codes()
    job = Job(tmp_path / "run", *flags, "--elastic", "even", count=5).done()
    assert "global batch 24 = 5+5+5+5+4, ranks: 5, micro-batches: 5" in job.log()
    assert "micro-batches 4 -> 5; each has its own batch-norm statistics" in job.log()
    other = Job(tmp_path / "run", "--batch-size", "5", "--resume", "auto", *steps(12), count=4)
    assert other.codes() == [4] * 4 and "global batch 24 -> 20" in other.log()


def test_canonical_shards_refuse_ranks_that_do_not_divide_them(tmp_path: Path) -> None:
    flags = ("--canonical-shards", "4", "--resume", "auto")
    Job(tmp_path / "run", *steps(3), *flags, count=4).done()
    job = Job(tmp_path / "run", *steps(6), *flags, count=3)
    assert (
        job.codes() == [2] * 3
        and "--canonical-shards 4 is not divisible by 3, the number of ranks" in job.log()
    )


def test_with_fixed_statistics_the_world_size_changes_rounding_only(tmp_path: Path) -> None:
    flags = (*steps(10), "--bn", "frozen", "--lr", "0.01")
    alone, *others = (
        newest_state(Job(tmp_path / f"w{count}", *flags, count=count).done().out)["model"]
        for count in (1, 2, 4)
    )
    for other in others:
        for name, value in alone.items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_canonical_shards_are_bitwise_equal_at_any_world_size(tmp_path: Path) -> None:
    flags = ("--canonical-shards", "4", "--global-batch", "12")  # 100 = 8 * 12 + 4
    states = []
    for count in (1, 2, 4):
        job = Job(tmp_path / f"w{count}", *steps(12), *flags, count=count).done()
        states.append(newest_state(job.out))
    assert same(states[0], states[1])
    assert same(states[0], states[2])
    # Also when the world size changes on the way, in the middle of an epoch.
    Job(tmp_path / "changing", *steps(5), *flags, count=4).done()
    Job(tmp_path / "changing", *steps(12), *flags, "--resume", "auto", count=2).done()
    assert same(states[0], newest_state(tmp_path / "changing"))
    plain = [
        newest_state(Job(tmp_path / f"p{count}", *steps(12), count=count).done().out)["model"]
        for count in (1, 2)
    ]
    assert not same(*plain), "without the flag they differ, or this test proves nothing"


def dirs(*paths: Path):
    """Environment by rank: each rank is a node with its own checkpoint disk."""

    def env(rank: int) -> dict[str, str]:
        return {
            "LOCAL_WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "GROUP_RANK": str(rank),
            "DDPCTL_RUN_ID": "r",
            "DDPCTL_CHECKPOINT_DIR": str(paths[rank]),
            "DDPCTL_RESUME": "1",
        }

    return env


def test_a_node_with_an_empty_disk_gets_the_checkpoint_from_a_peer(tmp_path: Path) -> None:
    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    whole = Job(tmp_path / "whole", *steps(12), count=2).done()
    Job(out, *steps(9), count=2, env=dirs(a, b)).done()
    shutil.rmtree(a)  # node 0 is replaced, with an empty disk
    again = Job(out, *steps(12), count=2, env=dirs(a, b)).done()
    assert "rank 1 sent the checkpoint" in again.log()
    assert [path.name for path in checkpoint.folders(a)] == ["step-00000012", "step-00000009"]
    assert same(newest_state(a), newest_state(whole.out))


def test_a_second_node_keeps_a_copy_so_the_first_may_be_lost(tmp_path: Path) -> None:
    a, b, c, out = (tmp_path / name for name in ("a", "b", "c", "out"))
    flags = (*steps(9), "--global-batch", "12")
    Job(out, *flags, count=3, env=dirs(a, b, c)).done()
    newest, copy = checkpoint.newest_intact(a)[0], checkpoint.newest_intact(b)[0]
    assert newest and copy and newest.identity == copy.identity  # the very same bytes
    assert not c.exists()
    shutil.rmtree(a)  # node 0 is replaced, with an empty disk
    shutil.rmtree(out)
    again = Job(out, *steps(12), "--global-batch", "12", count=3, env=dirs(a, b, c)).done()
    assert "resumed from ckpt/step-00000009" in again.log()
    assert checkpoint.folders(a)[0].name == "step-00000012"


def test_ranks_that_share_a_disk_write_one_copy(tmp_path: Path) -> None:
    a, out = tmp_path / "a", tmp_path / "out"
    job = Job(out, *steps(9), count=2, env=dirs(a, a)).done()
    assert "WARNING: no second copy" not in job.log()
    assert not [path for path in a.iterdir() if path.name != "ckpt"]


def test_a_second_disk_that_fails_is_only_a_warning(tmp_path: Path) -> None:
    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    b.write_text("a file where the folder should be")
    job = Job(out, *steps(9), count=2, env=dirs(a, b)).done()
    assert "WARNING: no second copy of a checkpoint: cannot write" in job.log()


def test_nothing_left_of_saved_work_is_an_error_not_a_new_start(tmp_path: Path) -> None:
    a, out = tmp_path / "a", tmp_path / "out"
    Job(out, *steps(9), env=dirs(a)).done()
    shutil.rmtree(a)
    again = Job(out, *steps(12), env=dirs(a))
    assert again.codes() == [4]
    assert "lists checkpoints" in again.log()
    assert again.status["state"] == "failed"


def test_nothing_saved_yet_starts_anew_with_a_warning(tmp_path: Path) -> None:
    job = Job(tmp_path / "out", *steps(3), env=dirs(tmp_path / "a")).done()
    assert "WARNING: found no checkpoint to resume from" in job.log()


@pytest.mark.parametrize("damage", ["flip", "truncate", "manifest"])
def test_a_damaged_newest_checkpoint_falls_back_loudly(tmp_path: Path, damage: str) -> None:
    a, b, out = tmp_path / "a", tmp_path / "b", tmp_path / "out"
    Job(out, *steps(14), count=2, env=dirs(a, a)).done()
    reference = newest_state(a)
    newest = a / "ckpt" / "step-00000014"
    if damage == "manifest":
        (newest / "MANIFEST").unlink()
    else:
        content = bytearray((newest / "state.pt").read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 1
        (newest / "state.pt").write_bytes(content if damage == "flip" else content[:-100])
    # One rank sees the damaged disk, the other an empty one: both go back to the same step.
    again = Job(out, *steps(14), count=2, env=dirs(a, b)).done()
    assert "WARNING: ignoring a damaged checkpoint" in again.log()
    assert "resumed from ckpt/step-00000007" in again.log()
    assert same(newest_state(a), reference)
    assert (a / "ckpt" / "damaged-step-00000014").is_dir()


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    Job(tmp_path / "run", *steps(3), count=2).done()
    for flags, word in (
        (("--width", "16"), "another network"),
        (("--opt", "adam"), "another optimizer"),
        (("--seed", "5"), "seed 0 -> 5"),
        (("--global-batch", "8"), "global batch 16 -> 8"),
    ):
        job = Job(tmp_path / "run", *steps(6), "--resume", "auto", *flags, count=2)
        assert job.codes() == [4, 4], flags
        assert job.log().count("error: ") == 1
        assert word in job.log()
        assert "--resume none" in job.log()
    over = Job(
        tmp_path / "run", *steps(6), "--resume", "auto", "--seed", "5", "--resume-override"
    ).done()
    assert "WARNING: continuing with different settings: seed 0 -> 5" in over.log()
    assert "world size 2 -> 1\n" in over.log()  # not with the same batches


def test_settings_that_change_the_result_are_warned_about(tmp_path: Path) -> None:
    Job(tmp_path / "run", "--max-steps", "3", count=2).done()
    flags = (
        *("--lr", "0.07", "--schedule", "triangular", "--bn", "frozen", "--amp", "bf16"),
        *("--label-smoothing", "0.2", "--momentum", "0.8", "--resume", "auto"),
    )
    job = Job(tmp_path / "run", "--max-steps", "4", *flags, count=2).done()
    for change in (
        "lr 0.05 -> 0.07",
        "schedule cosine -> triangular",
        "bn local -> frozen",
        "amp off -> bf16",
        "label_smoothing 0.0 -> 0.2",
        "momentum 0.9 -> 0.8",
        "max_steps 3 -> 4",
    ):
        assert job.log().count(f"WARNING: continuing with different settings: {change}\n") == 1
    shards = Job(tmp_path / "run", "--canonical-shards", "2", "--resume", "auto", count=2)
    assert shards.codes() == [4, 4]
    assert "canonical shards 0 -> 2" in shards.log()
    Job(tmp_path / "parts", "--max-steps", "3", count=2).done()
    parts = Job(tmp_path / "parts", "--grad-accum-steps", "2", "--resume", "auto", count=2).done()
    assert "micro-batches 2 -> 4; each has its own batch-norm statistics" in parts.log()


@pytest.mark.parametrize(
    ("flags", "change"),
    [
        (("--randaugment", "9"), "randaugment 0 -> 9"),
        (("--cutout", "4"), "cutout 0 -> 4"),
        (("--image-size", "48"), "image_size 224 -> 48"),
        (("--augment", "none"), "augment crop,flip -> none"),
        (("--random-erase", "0.5"), "random_erase 0.0 -> 0.5"),
        (("--norm-weight-decay", "0"), "norm_weight_decay None -> 0.0"),
        (("--print-every", "2"), ""),
        (("--workers", "0"), ""),
    ],
)
def test_only_settings_that_change_the_result_are_noted(
    flags: tuple[str, ...], change: str
) -> None:
    before, after = make(), make(None, *flags)
    notes = check_fits(to_checkpoint(before)[1], identity(after), after.config)
    assert notes == ([f"continuing with different settings: {change}"] if change else [])


def test_the_best_before_a_resume_is_remembered(tmp_path: Path) -> None:
    """A worse epoch after the resume must not replace best.pth."""
    Job(tmp_path / "run", *steps(14)).done()
    best = (tmp_path / "run" / "best.pth").read_bytes()
    newest = checkpoint.newest_intact(tmp_path / "run")[0]
    assert newest
    files = checkpoint.read(newest.path)
    meta = json.loads(files["meta.json"])
    meta["best"]["top1"] = 1.0  # nothing can be better
    files["meta.json"] = json.dumps(meta).encode()
    checkpoint.publish(tmp_path / "run", 14, files)
    job = Job(tmp_path / "run", *steps(21), "--resume", "auto").done()
    assert (tmp_path / "run" / "best.pth").read_bytes() == best
    assert job.status["best_top1"] == 1.0


def test_starting_a_completed_run_again_keeps_its_results(tmp_path: Path) -> None:
    for name, flags in (("plain", ()), ("split", ("--val-split", "0.2"))):
        first = Job(tmp_path / name, *flags).done()
        again = Job(tmp_path / name, *flags, "--resume", "auto").done()
        for key in ("top1", "best_top1", "best_step", "selected_on"):
            assert again.status[key] == first.status[key] is not None
        kinds = [(m["kind"], m["step"], m.get("split")) for m in metrics(again.out)]
        assert len([k for k in kinds if k[0] == "eval"]) == len(
            {k for k in kinds if k[0] == "eval"}
        )


def test_an_evaluation_that_was_not_saved_is_repeated_and_written_once(tmp_path: Path) -> None:
    """A stop during the last evaluation, and then a start that is only there to evaluate."""
    flags = ("--epochs", "1", "--save-every", "60s")
    job = Job(tmp_path / "run", *flags, count=2, first=stop_in_evaluation)
    assert job.codes() == [75, 75]
    for _ in range(2):
        again = Job(tmp_path / "run", *flags, "--resume", "auto", count=2).done()
        assert [m["step"] for m in again.metrics("eval")] == [7]
        saved = checkpoint.newest_intact(tmp_path / "run")[0]
        assert saved
        meta = checkpoint.decode(checkpoint.read(saved.path))[1]
        assert (meta["eval_pending"], meta["best"]["step"]) == (False, 7)


def stop_in_evaluation() -> None:
    from trainer import train

    real = train.record_evaluation

    def record(t: Any, split: str) -> None:
        t.poll.stop.name = "SIGTERM"
        real(t, split)

    train.record_evaluation = record


def own_buffers(*, resumed: bool) -> tuple[str, ...]:
    return ("--model", "own_parts:instance_norm", *FLAT, *(("--resume", "auto") if resumed else ()))


def test_every_running_buffer_of_a_network_resumes_bitwise(tmp_path: Path) -> None:
    whole = Job(tmp_path / "whole", *own_buffers(resumed=False), count=2).done()
    Job(tmp_path / "part", *own_buffers(resumed=False), count=2, first=stop_at(10)).codes()
    part = Job(tmp_path / "part", *own_buffers(resumed=True), count=2).done()
    assert same(newest_state(whole.out), newest_state(part.out))
    assert part.metrics("eval")[-1]["loss"] == whole.metrics("eval")[-1]["loss"]


def held_by(ranks: Ranks, folder: str, steps: list[int]) -> str:
    """Each rank has a checkpoint of its own under `folder`, of equal or different bytes."""
    t = make(ranks, "--checkpoint-dir", f"{folder}/{ranks.rank}", "--resume", "auto")
    state, meta = to_checkpoint(t)
    step = steps[ranks.rank]
    state["model"]["fc.bias"].fill_(float(ranks.rank))
    if step:
        checkpoint.save(Path(t.config.checkpoint_dir), state, meta | {"step": step}, keep=3)
    restored = restore(t.config, ranks, later_attempt=False)
    assert restored
    return f"step {restored.step} of rank {float(restored.state['model']['fc.bias'][0]):.0f}"


def test_the_highest_step_wins_and_of_two_the_lowest_ranks(tmp_path: Path) -> None:
    for number, (steps_held, choice) in enumerate(
        (
            ([5, 5, 0], "step 5 of rank 0"),
            ([0, 5, 5], "step 5 of rank 1"),
            ([5, 5, 9], "step 9 of rank 2"),
            ([5, 5, 5], "step 5 of rank 0"),  # of other bytes on each rank
        )
    ):
        folder = tmp_path / str(number)
        results = on_ranks(folder / "r", 3, held_by, str(folder), steps_held)
        assert results == [choice] * 3


def test_disks_are_made_ready_for_a_run(tmp_path: Path) -> None:
    t = make()
    state, meta = to_checkpoint(t)
    for step in (7, 14, 21):
        checkpoint.save(tmp_path, state, meta | {"step": step}, keep=3)
    ckpt = tmp_path / "ckpt"
    (ckpt / ".tmp-step-00000028-1").mkdir()
    (ckpt / ".gone-step-00000001-1").mkdir()
    (ckpt / "step-00000007" / "meta.json").write_text("damaged")
    restored = restore(t.config, t.ranks, later_attempt=False)
    assert restored is None  # another folder
    restored = chosen(tmp_path, "--resume", str(ckpt / "step-00000014"))
    elsewhere = Disks(tmp_path, own=False, copy_on=None)
    prepare(elsewhere, restored, t.ranks)
    assert (ckpt / ".tmp-step-00000028-1").is_dir()  # another rank's to tidy
    prepare(replace(elsewhere, own=True), restored, t.ranks)
    assert sorted(path.name for path in ckpt.iterdir()) == [
        "abandoned-step-00000021", "damaged-step-00000007", "latest", "step-00000014"
    ]  # fmt: skip
    empty = tmp_path / "empty"
    prepare(Disks(empty, own=True, copy_on=None), restored, t.ranks)
    assert checkpoint.newest_intact(empty)[0].step == 14  # type: ignore[union-attr]
    prepare(Disks(tmp_path, own=True, copy_on=None), None, t.ranks)
    assert not ckpt.exists() and (tmp_path / "earlier-ckpt").is_dir()


def test_resume_from_a_named_checkpoint(tmp_path: Path) -> None:
    Job(tmp_path / "run", *steps(14)).done()
    older = tmp_path / "run" / "ckpt" / "step-00000007"
    job = Job(tmp_path / "run", *steps(10), "--resume", str(older)).done()
    assert "resumed from ckpt/step-00000007" in job.log()
    assert checkpoint.folders(tmp_path / "run")[0].name == "step-00000010"
    missing = Job(tmp_path / "run", *steps(10), "--resume", str(tmp_path / "nowhere"))
    assert missing.codes() == [4]
    assert "found no checkpoint" in missing.log()


def chosen(folder: Path, *flags: str, later_attempt: bool = False) -> Restored | None:
    """What one rank with this output folder resumes from."""
    t = make(None, "--out", str(folder), *flags)
    return restore(t.config, t.ranks, later_attempt=later_attempt)


def test_a_checkpoint_is_named_by_its_own_folder_its_runs_folder_or_ckpt(tmp_path: Path) -> None:
    t = make()
    state, meta = to_checkpoint(t)
    for step in (7, 14):
        checkpoint.save(tmp_path, state, meta | {"step": step}, keep=3)
    ckpt = tmp_path / "ckpt"
    for flags, step in (
        (("--resume", "auto"), 14),
        (("--test-only",), 14),
        (("--resume", str(tmp_path)), 14),
        (("--resume", str(ckpt)), 14),
        (("--resume", str(ckpt / "step-00000007")), 7),
    ):
        restored = chosen(tmp_path, *flags)
        assert restored and (restored.step, restored.name) == (step, f"ckpt/step-{step:08d}")
        assert restored.sender is None and restored.warnings == ()
        assert same(restored.state, state) and restored.meta["step"] == step
    assert chosen(tmp_path) is None and chosen(tmp_path, "--resume", "none") is None
    (ckpt / "step-00000014" / "state.pt").write_bytes(b"damaged")
    restored = chosen(tmp_path, "--resume", "auto")
    assert restored and restored.step == 7
    assert "step-00000014: state.pt is damaged" in restored.warnings[0]
    damaged = ("--resume", str(ckpt / "step-00000014"))
    with pytest.raises(CheckpointError, match=r"^--resume .*14: state.pt is damaged"):
        chosen(tmp_path, *damaged)


def test_finding_no_checkpoint_is_an_error_where_one_is_needed(tmp_path: Path) -> None:
    assert chosen(tmp_path, "--resume", "auto") is None
    assert chosen(tmp_path, "--resume", "auto", later_attempt=True) is None
    with pytest.raises(CheckpointError, match=f"^--test-only: no checkpoint in {tmp_path};"):
        chosen(tmp_path, "--test-only")
    with pytest.raises(CheckpointError, match=f"^--resume {tmp_path}: found no checkpoint;"):
        chosen(tmp_path, "--resume", str(tmp_path))
    (tmp_path / "metrics.jsonl").write_text('{"v": 1, "kind": "checkpoint", "step": 3}\n')
    assert chosen(tmp_path, "--resume", "auto") is None
    with pytest.raises(
        CheckpointError, match=r"metrics.jsonl lists checkpoints, but no rank finds"
    ):
        chosen(tmp_path, "--resume", "auto", later_attempt=True)
    with pytest.raises(
        CheckpointError, match=r"metrics.jsonl: not a checkpoint folder; pass another ckpt"
    ):
        chosen(tmp_path, "--resume", str(tmp_path / "metrics.jsonl"))
    (tmp_path / "ckpt" / "step-00000003").mkdir(parents=True)
    with pytest.raises(
        CheckpointError, match=r"^every checkpoint is damaged: .*use --resume none to start"
    ):
        chosen(tmp_path, "--resume", "auto")
