"""A failure ends the job on all ranks soon, with one clear line and the right exit code."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from trainer_ranks import CONTEXT, Job, _enter, make

from trainer import distributed, ending
from trainer.data.order import epoch_order
from trainer.errors import DataError, OutOfMemory, PeerLost, TrainerError
from trainer.parse_flags import parse
from trainer.plan import part_bounds


def errors(job: Job) -> list[str]:
    return [line for line in job.log().splitlines() if line.startswith("error: ")]


def test_a_loss_that_is_no_number_ends_all_ranks_as_diverged(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--lr", "1e30", "--warmup-epochs", "0", count=2)
    assert job.codes() == [5, 5]
    (line,) = errors(job)
    assert "lower --lr" in line
    assert job.status["state"] == "diverged"
    assert job.status["step"] <= 5
    assert job.metrics("end")[-1]["state"] == "diverged"


def poison_one_label() -> None:
    """On rank 1 only, the third step's loss is infinite."""
    from trainer import train

    real = train.micro_batch_loss

    def poisoned(t, *args):
        value = real(t, *args)
        if (t.ranks.rank, t.step) == (1, 2):
            t.poll.totals[0] = float("inf")
        return value

    train.micro_batch_loss = poisoned


def test_one_rank_diverging_is_all_ranks_diverging(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", count=2, first=poison_one_label)
    assert job.codes() == [5, 5]
    assert job.status["step"] == 3


def flip_a_bit_on_rank_1() -> None:
    from trainer import train

    real = train.update

    def update(t):
        real(t)
        if (t.ranks.rank, t.step) == (1, 3):
            bits = t.net.parameters[1].data[:1].view(torch.int32)
            bits ^= 1 << 10

    train.update = update


def test_replicas_that_differ_end_the_run_before_anything_is_saved(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--check-every", "2", count=2, first=flip_a_bit_on_rank_1)
    assert job.codes() == [6, 6]
    (line,) = errors(job)
    assert "step 4" in line and "differ" in line
    assert not (tmp_path / "run" / "ckpt").exists()
    # Without the periodic check, saving notices.
    late = Job(tmp_path / "late", "--check-every", "0", count=2, first=flip_a_bit_on_rank_1)
    assert late.codes() == [6, 6]
    assert "step 7" in errors(late)[0]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_others(tmp_path: Path, victim: int) -> None:
    job = Job(tmp_path / "run", "--epochs", "200", "--global-batch", "15", count=3)
    job.wait_for("train", step=3)
    job.signal(victim, signal.SIGKILL)
    codes = job.codes(timeout=15)
    assert codes.pop(victim) == -signal.SIGKILL
    assert codes == [1, 1]
    if victim != 0:
        (line,) = errors(job)
        assert "lost contact with another rank" in line
        assert job.status["state"] == "failed"
        assert "lost contact" in job.status["reason"]


def test_a_frozen_rank_ends_the_others_within_the_timeout(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", "--epochs", "200", "--timeout", "3", count=2)
    job.wait_for("train", step=3)
    began = time.monotonic()
    job.signal(1, signal.SIGSTOP)
    try:
        job.processes[0].join(15)
        assert job.processes[0].exitcode == 1, job.log()
        assert time.monotonic() - began < 10
    finally:
        job.signal(1, signal.SIGKILL)
    assert "lost contact" in job.status["reason"]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--global-batch", "16", "--grad-accum-steps", "9"), 2, "too small for 18 micro-batches"),
        (("--canonical-shards", "3"), 2, "is not divisible by 2, the number of ranks"),
        (("--canonical-shards", "6"), 2, "is not divisible into 6 canonical shards"),
        (("--device", "cuda"), 2, "PyTorch sees no GPU"),
        (("--model", "resnet9"), 2, "resnet9"),
        (("--opt", "lion"), 2, "--opt lion"),
        (("--loss", "torch.nn.functional:cross_entropy"), 2, "return one loss per sample"),
        (("--data", "/nowhere"), 3, "/nowhere"),
        (("--resume", "/nowhere"), 4, "/nowhere"),
    ],
)
def test_bad_input_is_one_line_from_one_rank(
    tmp_path: Path, flags: tuple[str, ...], code: int, words: str
) -> None:
    if flags[0] == "--device" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    job = Job(tmp_path / "run", *flags, count=2)
    assert job.codes(timeout=20) == [code, code]
    (line,) = errors(job)
    assert words in line
    assert "Traceback" not in job.log()
    assert job.status["state"] == "failed"
    assert words in job.status["reason"]


def test_images_missing_on_one_rank_only(tmp_path: Path) -> None:
    job = Job(
        tmp_path / "run",
        count=2,
        first=lose_the_images,
    )
    assert job.codes() == [3, 3]
    (line,) = errors(job)
    assert line.startswith("error: rank 1 on ") and "/lost" in line


def lose_the_images() -> None:
    if os.environ["RANK"] == "1":
        from trainer import setup
        from trainer.errors import DataError

        def load(config, device):
            raise DataError("/lost: no such folder")

        setup.load_dataset = load


def other_images_on_rank_1() -> None:
    from trainer import data, setup

    def load(config, device):
        images = data.load_dataset(config, device)
        images.fingerprint += os.environ["RANK"]
        return images

    setup.load_dataset = load


def test_other_images_on_one_rank(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", count=2, first=other_images_on_rank_1)
    assert job.codes() == [3, 3]
    assert "rank 1's images differ" in errors(job)[0]


def test_an_output_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    # Checkpoints go there too, unless they have a folder of their own.
    for flags, code in (((), 4), (("--checkpoint-dir", str(tmp_path / "c")), 1)):
        job = Job(tmp_path / "file", *flags, count=2)
        assert job.codes() == [code, code]
        (line,) = errors(job)
        assert "cannot write to" in line and "another --out" in line


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(distributed, "JOIN_TIMEOUT", 1)
    env = {"RANK": "0", "WORLD_SIZE": "3", "TRAINER_STORE": str(tmp_path / "store")}
    me = distributed.identify(env, torch.device("cpu"))
    with pytest.raises(TrainerError, match="no sign of life from ranks 1, 2 for 1 s"):
        distributed.join(me, env, 30, None)


def test_an_unexpected_error_tells_status_json(tmp_path: Path) -> None:
    job = Job(tmp_path / "run", first=break_the_loop)
    assert job.codes() == [1]
    assert job.status["state"] == "failed"
    assert "a bug" in job.status["reason"]
    assert "Traceback" in job.log()


def break_the_loop() -> None:
    from trainer import train

    def broken(t, batches):
        raise KeyError("a bug")

    train.train_step = broken


def test_a_slow_disk_is_not_a_lost_rank(tmp_path: Path) -> None:
    """Writing takes longer than the group's timeout, while rank 1 waits for it."""
    job = Job(tmp_path / "run", "--timeout", "3", "--max-steps", "2", count=2, first=slow_disk)
    job.done()
    assert job.metrics("checkpoint")[0]["seconds"] > 5


def slow_disk() -> None:
    from trainer import checkpoint

    real = checkpoint.publish

    def slow(*args):
        time.sleep(5)
        return real(*args)

    checkpoint.publish = slow


def dies_while_saving() -> None:
    from trainer import checkpoint

    def die(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.publish = die


def test_a_rank_that_dies_while_the_others_wait_for_its_save_is_missed(tmp_path: Path) -> None:
    flags = ("--timeout", "3", "--max-steps", "2")
    job = Job(tmp_path / "run", *flags, count=2, first=dies_while_saving)
    assert job.codes(timeout=20) == [-signal.SIGKILL, 1]


def silent_neighbor(folder: str) -> None:
    """Rank 0 of two, alone in its group and busy for ever; rank 1 gave one sign of life."""
    _enter(0, 2, f"{folder}/store", f"{folder}/log", {})
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    store.add("alive/1", 1)
    me = distributed.identify(os.environ, torch.device("cpu"))
    config = parse(["--out", folder, "--timeout", "1"], {})[0]
    ending.Watch(config, dataclasses.replace(me, store=store)).start()
    threading.Event().wait()


def test_a_rank_without_a_sign_of_life_ends_ranks_that_wait_for_nothing(tmp_path: Path) -> None:
    """As in NCCL, where a rank does not notice that its peer's host is gone."""
    process = CONTEXT.Process(target=silent_neighbor, args=(str(tmp_path),))
    process.start()
    process.join(30)
    assert process.exitcode == 1
    reason = json.loads((tmp_path / "status.json").read_text())["reason"]
    assert reason.startswith("rank 0 on ") and "lost contact with rank 1: no sign of life" in reason
    assert reason in (tmp_path / "log").read_text()


def without_its_store(folder: str) -> None:
    """Rank 1 of two, busy for ever, whose store goes away with the node that held it."""
    _enter(1, 2, f"{folder}/store", f"{folder}/log", {})
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = torch.distributed.TCPStore("127.0.0.1", store.port)
    me = distributed.identify(os.environ, torch.device("cpu"))
    ending.STORE_GRACE = 0.1
    config = parse(["--out", folder], {})[0]
    ending.Watch(config, dataclasses.replace(me, store=client)).start()
    del store
    threading.Event().wait()


def test_a_rank_that_has_lost_the_store_ends_and_says_so(tmp_path: Path) -> None:
    process = CONTEXT.Process(target=without_its_store, args=(str(tmp_path),))
    process.start()
    process.join(30)
    assert process.exitcode == 1
    assert "error: rank 1 on " in (log := (tmp_path / "log").read_text())
    assert "lost contact with the key-value store on the first node" in log


def test_torchs_errors_that_a_user_can_act_on_are_one_line() -> None:
    alone = distributed.identify({}, torch.device("cpu"))
    pair = distributed.identify({"RANK": "1", "WORLD_SIZE": "2"}, torch.device("cpu"))
    t = make()
    t.step = 7
    for ranks, error, kind, words in (
        (alone, torch.cuda.OutOfMemoryError("CUDA"), OutOfMemory, "out of GPU memory at step 7"),
        (alone, RuntimeError("DataLoader worker (pid 3) is killed"), DataError, "shared memory"),
        (pair, RuntimeError("Connection closed by peer"), PeerLost, "rank 1 on "),
        (pair, RuntimeError("NCCL error\nmore"), PeerLost, "another rank at step 7: NCCL error; "),
    ):
        line = ending.explain(ranks, t, error)
        assert type(line) is kind and words in str(line) and "\n" not in str(line)
    for ranks, error in (
        (alone, RuntimeError("Connection closed by peer")),  # there is no peer
        (pair, RuntimeError("shape mismatch")),
        (pair, ValueError("connection")),
        (pair, DataError("timeout")),
    ):
        assert ending.explain(ranks, t, error) is None


def test_a_corrupt_file_on_one_rank_ends_all_ranks_at_once(tmp_path: Path) -> None:
    """Rank 1 of 3 meets it in mid-step, while the others wait in an all-reduce. It takes 3 seconds;
    however slow the machine is, they must not wait for the timeout of that all-reduce."""
    tree, bad = tree_with_a_corrupt_file(tmp_path)
    job = Job(tmp_path / "run", *tree_flags(tree), "--timeout", "600", count=3)
    assert job.codes(timeout=90) == [3, 3, 3]
    (line,) = errors(job)
    assert line.startswith("error: rank 1 on ") and str(bad) in line
    assert "Traceback" not in job.log()
    assert job.status["state"] == "failed"
    assert job.status["reason"].startswith("rank 1 on ") and str(bad) in job.status["reason"]
    assert job.metrics("end")[-1]["reason"] == job.status["reason"]


def fail_on_rank_1_while_rank_0_is_busy() -> None:
    from trainer import train
    from trainer.errors import DataError

    def step(t, batches):
        if t.ranks.rank == 1:
            raise DataError("/data/bad.jpg: not a readable image")
        time.sleep(100)

    train.train_step = step


def test_a_failure_also_ends_ranks_that_wait_for_nothing(tmp_path: Path) -> None:
    """Nor does a rank notice by itself that waits in NCCL."""
    job = Job(tmp_path / "run", count=2, first=fail_on_rank_1_while_rank_0_is_busy)
    assert job.codes(timeout=40) == [3, 3]
    (line,) = errors(job)
    assert line.startswith("error: rank 1 on ") and line.endswith("not a readable image")
    assert job.status["reason"] in line


def tree_flags(tree: Path) -> tuple[str, ...]:
    return ("--data", str(tree), "--image-size", "16", "--global-batch", "12", "--workers", "1")


def tree_with_a_corrupt_file(folder: Path, rank: int = 1, world_size: int = 3) -> tuple[Path, Path]:
    """An ImageFolder tree of 24 files; in the first batch, only `rank` reads the corrupt one."""
    pytest.importorskip("torchvision")
    from PIL import Image

    tree = folder / "tree"
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tree / split / name).mkdir(parents=True)
            for number in range(12):
                color = (20 * number, 200 * (name == "cat"), 90)
                Image.new("RGB", (20, 20), color).save(tree / split / name / f"{number:02}.png")
    first, _ = part_bounds(12, world_size, rank)
    index = int(epoch_order(0, 0, 24)[first])
    bad = sorted((tree / "train").rglob("*.png"))[index]
    bad.write_bytes(b"not a picture")
    return tree, bad
