"""ImageFolder trees and packs: what is listed, loaded ahead, cropped and labeled, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from trainer_ranks import CONTEXT, Job, newest_state, same

from trainer.config import Config
from trainer.data import load_dataset
from trainer.data import packed as packed_images
from trainer.data.images import Images
from trainer.data.loader import train_width
from trainer.data.order import mixed_seed
from trainer.data.packed import ENTRY
from trainer.data.pictures import center_crop, randaugment, random_crop, trivialaugment
from trainer.errors import DataError
from trainer.tools.data_command import main as data_command

CPU = torch.device("cpu")
MEAN, STD = torch.tensor((0.485, 0.456, 0.406)), torch.tensor((0.229, 0.224, 0.225))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """cat: 0 to 5, dog: 6 to 11, each a picture of its own; half as many for testing."""
    for split, count in (("train", 6), ("val", 3)):
        for label, name in enumerate(("cat", "dog")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                picture(label * 6 + number, 50 + number).save(folder / f"{number}.png")
    return tmp_path


def picture(seed: int, width: int = 50) -> Any:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, 40), Image.Resampling.BICUBIC)


def load(tree: Path, **settings: Any) -> Images:
    return load_dataset(Config(data=str(tree), image_size=32, **{"workers": 0} | settings), CPU)


def training(data: Images, *numbers: int, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    order = torch.tensor(numbers)
    (batch,) = data.train_batches(order, [slice(0, len(order))], seed=seed, epoch=epoch)
    assert batch.x.shape[0] == len(numbers)
    return batch.x


def pixels(x: torch.Tensor) -> torch.Tensor:
    """The bytes before they were normalized."""
    return ((x.permute(0, 2, 3, 1) * STD + MEAN) * 255).round().to(torch.uint8)


def close(x: torch.Tensor, image: Any) -> bool:
    difference = pixels(x[None])[0].int() - torch.from_numpy(np.array(image)).int()
    return bool(difference.abs().max() <= 1)


def test_every_split_has_its_own_pictures_and_labels(tree: Path) -> None:
    data = load(tree, val_split=0.25, augment="none")
    assert (data.size("train"), data.size("val"), data.size("test")) == (9, 3, 6)
    assert data.num_classes == 2 and data.shape == (3, 32, 32)
    batches = [
        *data.train_batches(torch.arange(9).flip(0), [slice(0, 5), slice(5, 9)], seed=0, epoch=0),
        *data.eval_batches("val", [slice(0, 2), slice(2, 3)]),
    ]
    assert [len(batch.y) for batch in batches] == [5, 4, 2, 1]
    seen = []
    for indices, x, y in batches:
        for index, image, label in zip(indices.tolist(), x, y.tolist(), strict=True):
            assert close(image, center_crop(picture(index, 50 + index % 6), 32))
            assert label == index // 6
            seen.append(index)
    assert sorted(seen) == list(range(12)) and seen[:9] == sorted(seen[:9], reverse=True)
    ((_, x, y),) = data.eval_batches("test", [slice(1, 5)])
    assert y.tolist() == [0, 0, 1, 1]
    for image, (seed, width) in zip(x, [(1, 51), (2, 52), (6, 50), (7, 51)], strict=True):
        assert close(image, center_crop(picture(seed, width), 32))


def test_a_sample_is_cropped_by_seed_epoch_and_number_alone(tree: Path) -> None:
    data = load(tree, augment="crop")
    whole = training(data, *range(12))
    for number in (0, 5, 11):
        expected = random_crop(
            picture(number, 50 + number % 6), 32, mixed_seed(f"tree/0/0/{number}")
        )
        assert close(whole[number], expected)
        assert torch.equal(training(data, number)[0], whole[number])
    assert not torch.equal(training(data, 5, epoch=1)[0], whole[5])
    assert not torch.equal(training(data, 5, seed=1)[0], whole[5])


def test_half_of_the_images_are_mirrored_anew_each_epoch(tree: Path) -> None:
    plain, data = load(tree, augment="none"), load(tree, augment="flip")
    upright, mirrored = training(plain, *range(12)), []
    for epoch in range(40):
        for number, image in enumerate(training(data, *range(12), epoch=epoch)):
            is_mirrored = torch.equal(image, upright[number].flip(2))
            assert is_mirrored or torch.equal(image, upright[number])
            mirrored.append(is_mirrored)
    assert 0.4 < sum(mirrored) / len(mirrored) < 0.6
    assert len({tuple(mirrored[n : n + 12]) for n in range(0, 480, 12)}) > 35


@pytest.mark.parametrize(
    ("settings", "change", "key"),
    [
        ({"randaugment": 15}, lambda image, seed: randaugment(image, 15, seed), "randaugment"),
        ({"trivialaugment": True}, trivialaugment, "trivialaugment"),
    ],
)
def test_strong_augmentation_changes_training_images_only(
    tree: Path, settings: dict[str, Any], change: Callable[..., Any], key: str
) -> None:
    plain, strong = load(tree, augment="none"), load(tree, augment="none", **settings)
    images = training(strong, *range(12), seed=4, epoch=2)
    for number, image in enumerate(images):
        centered = center_crop(picture(number, 50 + number % 6), 32)
        assert close(image, change(centered, mixed_seed(f"{key}/4/2/{number}")))
    blocks = [slice(0, 6)]
    for a, b in zip(*(d.eval_batches("test", blocks) for d in (plain, strong)), strict=True):
        assert torch.equal(a.x, b.x)


def test_training_images_may_be_smaller_than_those_of_evaluation(tree: Path) -> None:
    data = load(tree, train_size="24")
    assert training(data, 0, 1).shape == (2, 3, 24, 24)
    ((_, x, _),) = data.eval_batches("test", [slice(0, 2)])
    assert x.shape == (2, 3, 32, 32)


@pytest.mark.parametrize(
    ("size", "epochs", "widths"),
    [
        ("128:224", 4, [128, 160, 192, 224]),
        ("128:224", 3, [128, 192, 224]),
        ("128:224", 1, [224]),
        ("224:128", 4, [224, 192, 160, 128]),
        ("176", 3, [176, 176, 176]),
        ("", 2, [200, 200]),
    ],
)
def test_training_images_grow_from_epoch_to_epoch(
    size: str, epochs: int, widths: list[int]
) -> None:
    config = Config(image_size=200, train_size=size, epochs=epochs)
    assert [train_width(config, epoch) for epoch in range(epochs)] == widths
    assert train_width(config, epochs + 3) == widths[-1]


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_load_what_one_process_does_in_order(tree: Path, workers: int) -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    parts = [slice(n, n + 2) for n in range(4, 12, 2)]  # resumed in the middle of an epoch
    alone, several = load(tree), load(tree, workers=workers)
    for epoch in (3, 4):  # the same processes load the next epoch
        pairs = zip(
            *(d.train_batches(order, parts, seed=0, epoch=epoch) for d in (alone, several)),
            strict=True,
        )
        for part, (a, b) in zip(parts, pairs, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
            assert a.indices.tolist() == order[part].tolist()
        evaluated = [
            [b.y.tolist() for b in d.eval_batches("test", parts[:1])] for d in (alone, several)
        ]
        assert evaluated[0] == evaluated[1] != []
    several.close()


def test_an_epoch_that_was_left_does_not_disturb_the_next(tree: Path) -> None:
    data, order = load(tree, workers=2), torch.arange(12)
    parts = [slice(n, n + 1) for n in range(12)]
    next(data.train_batches(order, parts, seed=0, epoch=0))
    batches = data.train_batches(order.flip(0), parts, seed=0, epoch=1)
    assert [batch.indices.tolist() for batch in batches] == [[n] for n in range(11, -1, -1)]
    data.close()


def children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()]


def test_workers_ignore_signals_to_the_group_and_end_with_their_rank(tree: Path) -> None:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=loading, args=(str(tree), theirs))
    process.start()
    workers = ours.recv()
    assert len(workers) == 2
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    ours.send("go on")
    assert ours.recv() == 12  # loaded all the same
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    wait_until_gone(workers)


def loading(tree: str, pipe: Any) -> None:
    data = load(Path(tree), workers=2)
    parts = [slice(n, n + 1) for n in range(12)]
    batches = data.train_batches(torch.arange(12), parts, seed=0, epoch=0)
    first, second = next(batches), next(batches)  # one of each worker: both are past their start
    pipe.send(children())
    pipe.recv()
    pipe.send(len(first.y) + len(second.y) + sum(len(batch.y) for batch in batches))
    time.sleep(100)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, pids
        time.sleep(0.01)


def test_closing_ends_the_workers(tree: Path) -> None:
    before = children()
    data = load(tree, workers=2)
    next(data.train_batches(torch.arange(12), [slice(0, 12)], seed=0, epoch=0))
    workers = [pid for pid in children() if pid not in before]
    assert len(workers) == 2
    data.close()
    assert not set(workers) & set(children())
    load(tree, workers=2).close()  # none has been started


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_cannot_be_read_is_one_line_with_its_path(tree: Path, workers: int) -> None:
    (tree / "val" / "cat" / "0.png").write_bytes(b"not a png")
    data = load(tree, workers=workers)
    with pytest.raises(DataError, match=r"cat/0\.png: not a readable image") as caught:
        list(data.eval_batches("test", [slice(0, 6)]))
    assert "\n" not in str(caught.value)
    data.close()
    with pytest.raises(DataError, match=r"cat/0\.png: not a readable image"):
        data_command(["verify", str(tree)])


def test_verifying_reads_every_picture(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data_command(["verify", str(tree)]) == 0
    assert "12 + 6 images, 2 classes" in capsys.readouterr().out
    (tree / "train" / "dog" / "5.png").write_bytes(b"")  # the last one
    with pytest.raises(DataError, match=r"dog/5\.png"):
        data_command(["verify", str(tree)])


def test_verifying_a_pack_finds_a_changed_pixel(tree: Path) -> None:
    at = pack(tree, "--decoded", "36")
    assert data_command(["verify", str(at)]) == 0
    with (at / "val/00000.bin").open("r+b") as shard:
        first = shard.read(1)[0]
        shard.seek(0)
        shard.write(bytes([first ^ 1]))
    with pytest.raises(DataError, match=r"val: damaged \(sha256 differs\); pack the images again"):
        data_command(["verify", str(at)])


def test_pictures_are_found_in_any_depth_and_hidden_ones_are_not(tree: Path) -> None:
    (tree / "train" / "cat" / "zoo").mkdir()
    (tree / "train" / "cat" / "0.png").rename(tree / "train" / "cat" / "zoo" / "x.PNG")
    (tree / "train" / "cat" / "._1.png").write_bytes(b"a Mac's")
    (tree / "train" / "cat" / "notes.txt").write_text("")
    (tree / "train" / ".ipynb_checkpoints").mkdir()
    (tree / "val" / "dog" / ".hidden").mkdir()
    (tree / "val" / "dog" / ".hidden" / "1.png").write_bytes(b"")
    data = load(tree, augment="none")
    assert (data.size("train"), data.size("test"), data.num_classes) == (12, 6, 2)
    assert close(training(data, 5)[0], center_crop(picture(0, 50), 32))  # zoo/x.PNG comes last


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        (lambda tree: (tree / "val/cat/0.png").rename(tree / "val/cat/9.png"), True),
        (lambda tree: (tree / "train/cat/0.png").rename(tree / "train/dog/z.png"), True),
        (lambda tree: (tree / "train/dog/1.png").write_bytes(b"other size"), True),
        (lambda tree: (tree / "train/dog/notes.txt").touch(), False),
    ],
)
def test_the_fingerprint_shows_renamed_relabeled_and_changed_files(
    tree: Path,
    change: Callable[[Path], object],
    differs: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    before = load(tree).fingerprint
    moved = tree.rename(tmp_path_factory.mktemp("elsewhere") / "tree")
    assert load(moved).fingerprint == before
    change(moved)
    assert (load(moved).fingerprint != before) == differs


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: shutil.rmtree(tree / "val"), "has train/ but neither val/ nor test/"),
        (lambda tree: (tree / "train/empty").mkdir(), r"train/empty: no images \(\.jpg"),
        (lambda tree: (tree / "val/bird").mkdir(), "class 'bird' is not in train/"),
        (
            lambda tree: shutil.rmtree(tree / "train/cat") or shutil.rmtree(tree / "train/dog"),
            "no class folders",
        ),
        (lambda tree: (tree / "train/cat").chmod(0), "train/cat: Permission denied"),
        (lambda tree: (tree / "train").chmod(0), "train: Permission denied"),
        (
            lambda tree: (tree / "train/cat/x.jpg").symlink_to("/nowhere"),
            "train/cat/x.jpg: No such file or directory$",
        ),
    ],
)
def test_a_tree_that_cannot_be_used_is_one_line(
    tree: Path, change: Callable[[Path], object], said: str
) -> None:
    change(tree)
    if "Permission" in said and os.getuid() == 0:
        pytest.skip("root may read everything")
    with pytest.raises(DataError, match=said) as caught:
        load(tree)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_tree_cannot_be_packed(tmp_path: Path) -> None:
    (tmp_path / "val" / "cat").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=f"^{folder}: has no train/; pass the folder that has"):
            data_command(["pack", str(folder), "--to", str(tmp_path / "p")])


def test_classes_that_are_not_tested_and_a_folder_called_test_are_fine(tree: Path) -> None:
    shutil.rmtree(tree / "val" / "cat")
    (tree / "val").rename(tree / "test")
    data = load(tree)
    ((_, _, y),) = data.eval_batches("test", [slice(0, 3)])
    assert y.tolist() == [1, 1, 1] and data.num_classes == 2


def test_more_classes_than_the_flag_says_are_refused(tree: Path) -> None:
    assert load(tree, num_classes=2).num_classes == 2
    with pytest.raises(DataError, match="2 classes, but --num-classes 1"):
        load(tree, num_classes=1)


def pack(tree: Path, *more: str) -> Path:
    assert data_command(["pack", str(tree), "--to", str(tree / "p"), *more]) == 0
    return tree / "p"


@pytest.mark.parametrize("decoded", [0, 36])
def test_a_pack_trains_as_its_tree_does(tree: Path, decoded: int) -> None:
    loose, packed = load(tree), load(pack(tree, "--decoded", str(decoded)))
    with pytest.raises(DataError, match="already exists"):
        pack(tree)
    for split, count in (("train", 12), ("test", 6)):
        assert packed.size(split) == loose.size(split) == count
    ours, theirs = (next(data.eval_batches("test", [slice(0, 6)])) for data in (packed, loose))
    assert ours.y.tolist() == theirs.y.tolist() == [0, 0, 0, 1, 1, 1]
    if decoded:  # the short side is 40 in the tree
        about = json.loads((tree / "p/pack.json").read_text())
        assert (about["decoded"], about["classes"]) == (36, ["cat", "dog"])
        index = np.load(tree / "p/train/index.npy")
        assert index["width"].tolist() == [45, 45, 46, 47, 48, 49] * 2
        assert set(index["height"].tolist()) == {36}
        assert (index["size"] == index["width"] * 36 * 3).all()
        assert (ours.x - theirs.x).abs().mean() < 0.1
    else:
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(training(packed, 7, 0, 11), training(loose, 7, 0, 11))
        index = np.load(tree / "p/train/index.npy")
        assert not index["width"].any() and not index["height"].any()
        digest = hashlib.sha256()  # a later version must know it again
        for label, name in enumerate(("cat", "dog")):
            for file in sorted((tree / "val" / name).iterdir()):
                digest.update(file.read_bytes() + str(label).encode())
        about = json.loads((tree / "p/pack.json").read_text())
        assert (about["v"], about["decoded"], about["sha256"]["val"]) == (1, 0, digest.hexdigest())
    assert packed.fingerprint != loose.fingerprint


def test_a_pack_has_as_many_files_as_it_needs(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_images, "SHARD", 9000)
    at = pack(tree)
    sizes = [path.stat().st_size for path in sorted((at / "train").glob("*.bin"))]
    assert len(sizes) > 2 and max(sizes) <= 9000 and sum(sizes[:2]) > 9000
    loose, packed = load(tree), load(at)
    for a, b in zip(*(d.eval_batches("test", [slice(0, 6)]) for d in (loose, packed)), strict=True):
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y)
    (at / "train/00001.bin").unlink()
    with pytest.raises(DataError, match="pack the images again"):
        load(at)


def test_relabeled_pictures_give_a_pack_another_fingerprint(tree: Path) -> None:
    before = load(pack(tree)).fingerprint
    shutil.rmtree(tree / "p")
    (tree / "train/cat/5.png").rename(tree / "train/dog/-.png")  # the same bytes in the same order
    assert load(pack(tree)).fingerprint != before


@pytest.mark.parametrize(
    "change",
    [
        lambda at: lie(at, "offset", 1 << 40),
        lambda at: lie(at, "offset", (1 << 64) - 1),
        lambda at: lie(at, "size", 1 << 31),
        lambda at: lie(at, "shard", 7),
        lambda at: lie(at, "label", 2),
        lambda at: lie(at, "width", 5),
        lambda at: np.save(at / "train/index.npy", np.zeros(3)),
        lambda at: np.save(at / "train/index.npy", np.zeros(0, ENTRY)),
        lambda at: (at / "train/index.npy").write_bytes(b""),
        lambda at: (at / "pack.json").write_text("[]"),
        lambda at: (at / "pack.json").write_text('{"classes": 3}'),
        lambda at: (at / "pack.json").write_text("{"),
    ],
)
def test_a_pack_that_lies_is_refused_before_anything_is_read(
    tree: Path, change: Callable[[Path], object]
) -> None:
    at = pack(tree)
    change(at)
    with pytest.raises(DataError, match="pack the images again") as caught:
        load(at)
    assert "\n" not in str(caught.value)


def lie(at: Path, field: str, value: int) -> None:
    index = np.load(at / "train/index.npy")
    index[-1][field] = value
    np.save(at / "train/index.npy", index)


def test_the_last_byte_of_a_shard_may_be_used(tree: Path) -> None:
    at = pack(tree)
    index = np.load(at / "train/index.npy")
    ends = index["offset"] + index["size"]
    assert ends.max() == (at / "train/00000.bin").stat().st_size
    assert load(at).size("train") == 12


def test_two_ranks_train_on_a_tree_and_resume_bitwise(tree: Path, tmp_path: Path) -> None:
    flags = ("--data", str(tree), "--image-size", "16", "--global-batch", "6", "--workers", "1")
    flags += ("--train-size", "8:16", "--randaugment", "9", "--epochs", "4")
    flags += ("--schedule", "constant", "--warmup-epochs", "0")
    whole = Job(tmp_path / "whole", *flags, count=2).done()
    Job(tmp_path / "part", *flags, "--max-steps", "3", count=2).done()
    Job(tmp_path / "part", *flags, "--resume", "auto", count=2).done()
    assert same(newest_state(whole.out), newest_state(tmp_path / "part"))


def test_a_pack_that_cannot_be_written_is_one_line(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trainer.data.packed._write_split", full)
    to = tmp_path / "packed"
    with pytest.raises(DataError, match=f"^{to}: No space left on device; check the free space"):
        data_command(["pack", str(tree), "--to", str(to)])
