"""Reading images: CIFAR's layouts, synthetic sets, ImageFolder trees, and what is refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_gradients import ALONE
from trainer_ranks import CONTEXT

from trainer.config import Config
from trainer.data import cifar, fetch, load_dataset
from trainer.data import packed as packed_images
from trainer.data import tree as tree_of_files
from trainer.data.synthetic import synthetic
from trainer.errors import DataError
from trainer.model import choose_stem
from trainer.setup import resolve
from trainer.tools.data_command import main as data_command
from trainer.tools.data_command import make, write_cifar10

CPU = torch.device("cpu")


@pytest.fixture
def small_cifar(tmp_path: Path) -> Path:
    write_cifar10(synthetic(50, 10, 10, 32), tmp_path)
    return tmp_path


def test_a_written_set_reads_back_the_same(small_cifar: Path) -> None:
    arrays, wrote = cifar.load(small_cifar / cifar.TEN), synthetic(50, 10, 10, 32)
    assert torch.equal(arrays.train_x, wrote.train_x)
    assert torch.equal(arrays.test_y, wrote.test_y)


def test_batches_come_normalised_and_in_order(small_cifar: Path) -> None:
    data = load_dataset(Config(data=str(small_cifar)), CPU)
    x, y = data.eval_batch("test", 2, 5)
    raw = synthetic(50, 10, 10, 32)
    red = raw.test_x[2, 0, 0, 0].item() / 255
    assert x.shape == (3, 3, 32, 32)
    assert x[0, 0, 0, 0].item() == pytest.approx((red - 0.4914) / 0.2470, abs=1e-4)
    assert torch.equal(y, raw.test_y[2:5])


def test_unaugmented_training_images_are_the_images(small_cifar: Path) -> None:
    data = load_dataset(Config(data=str(small_cifar), augment=False), CPU)
    x, _ = data.train_batch(torch.tensor([7]), seed=0, epoch=0)
    raw = synthetic(50, 10, 10, 32).train_x[7, 31, 31, 2].item() / 255
    assert x[0, 2, 31, 31].item() == pytest.approx((raw - 0.4465) / 0.2616, abs=1e-4)


def test_a_malicious_pickle_is_refused_and_not_run(small_cifar: Path) -> None:
    mark = small_cifar / "ran"

    class Touch:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {mark}",)

    (small_cifar / cifar.TEN / "data_batch_3").write_bytes(pickle.dumps({b"data": Touch()}))
    with pytest.raises(DataError, match=r"data_batch_3: asks for posix\.system.*refused"):
        load_dataset(Config(data=str(small_cifar)), CPU)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "data_batch_2").unlink(), "data_batch_2 is missing"),
        (lambda folder: (folder / "test_batch").write_bytes(b"\x80junk"), "test_batch: damaged"),
        (lambda folder: _relabel(folder / "data_batch_1", 10), "labels from 0 to 10"),
        (lambda folder: _shorten(folder / "data_batch_1"), "10 images of 3072 bytes expected"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(small_cifar: Path, spoil: object, said: str) -> None:
    spoil(small_cifar / cifar.TEN)  # type: ignore[operator]
    with pytest.raises(DataError, match=said) as caught:
        load_dataset(Config(data=str(small_cifar)), CPU)
    assert "\n" not in str(caught.value)


def _relabel(path: Path, label: int) -> None:
    batch = pickle.loads(path.read_bytes(), encoding="bytes")  # noqa: S301
    batch[b"labels"] = [0] * (len(batch[b"labels"]) - 1) + [label]
    path.write_bytes(pickle.dumps(batch, protocol=2))


def _shorten(path: Path) -> None:
    batch = pickle.loads(path.read_bytes(), encoding="bytes")  # noqa: S301
    batch[b"data"] = batch[b"data"][:-1]
    path.write_bytes(pickle.dumps(batch, protocol=2))


def test_cifar_100_has_its_own_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", 20)
    folder = tmp_path / cifar.HUNDRED
    folder.mkdir()
    for name, count in (("train", 100), ("test", 20)):
        labels = [i % 100 for i in range(count)]
        pixels = np.zeros((count, 3072), np.uint8)
        batch = {b"fine_labels": labels, b"coarse_labels": labels, b"data": pixels}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    data = load_dataset(Config(data=str(tmp_path)), CPU)
    assert (data.num_classes, data.size("train"), data.size("test")) == (100, 100, 20)


def test_eleven_classes_do_not_fit_a_head_of_ten(tmp_path: Path) -> None:
    for name in range(11):
        for split in ("train", "val"):
            (tmp_path / split / f"class{name}").mkdir(parents=True)
            (tmp_path / split / f"class{name}" / "0.png").touch()
    with pytest.raises(DataError, match="11 classes, but --num-classes 10"):
        load_dataset(Config(data=str(tmp_path), num_classes=10), CPU)


def test_no_folder_and_a_folder_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_dataset(Config(data=str(tmp_path / "none")), CPU)
    with pytest.raises(DataError, match="neither cifar-10-batches-py"):
        load_dataset(Config(data=str(tmp_path)), CPU)


def test_synthetic_images_are_the_same_everywhere_and_balanced() -> None:
    one, other = synthetic(500, 100, 10, 32), synthetic(500, 100, 10, 32)
    assert torch.equal(one.train_x, other.train_x)
    assert torch.bincount(one.train_y).tolist() == [50] * 10


def test_held_out_images_leave_the_training_set() -> None:
    data = load_dataset(Config(data="synthetic", synthetic_train=100, val_split=0.2), CPU)
    assert (data.size("train"), data.size("val"), data.size("test")) == (80, 20, 1000)


def test_making_a_set_from_idx_files(tmp_path: Path) -> None:
    import gzip
    import struct

    source = tmp_path / "idx"
    source.mkdir()
    for name, count in (("train", 50_000), ("t10k", 10)):
        pixels = np.full((count, 28, 28), 9, np.uint8)
        head = struct.pack(">4i", 2051, count, 28, 28)
        packed = gzip.compress(head + pixels.tobytes(), 1)
        (source / f"{name}-images-idx3-ubyte.gz").write_bytes(packed)
        labels = struct.pack(">2i", 2049, count) + bytes(count)
        (source / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels, 1))
    folder = make("fashion-mnist", tmp_path, source)
    arrays = cifar.load(folder)
    assert arrays.test_x.shape == (10, 32, 32, 3)
    assert arrays.test_x[0, 1].max() == 0  # the border
    assert arrays.test_x[0, 16, 16].tolist() == [9, 9, 9]


def fetch_slowly(folder: Path, archive: Path, together: Any) -> None:
    """As a rank does, with a download that takes a while."""
    from trainer.data import fetch

    digest = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    fetch.SOURCES["cifar10"] = fetch.Source(archive.as_uri(), digest, cifar.TEN)
    real = fetch._download

    def download(source: fetch.Source, to: Path) -> None:
        with (folder.parent / "downloads").open("a") as file:
            file.write("x")
        time.sleep(0.5)
        real(source, to)

    fetch._download = download
    together.wait(60)
    assert (fetch.fetch("cifar10", folder) / "data_batch_1").is_file()


def list_slowly(tree: Path, together: Any) -> None:
    from trainer.data import tree as tree_of_files

    real = tree_of_files._listed

    def listed(root: bytes) -> Any:
        with (tree / "lists").open("a") as file:
            file.write("x")
        time.sleep(0.1)
        return real(root)

    tree_of_files._listed = listed
    together.wait(60)
    assert load_dataset(Config(data=str(tree), image_size=32), CPU).size("train") == 12


@pytest.mark.parametrize("name", ["../evil", "/abs/../../evil"])
def test_an_archive_puts_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError, match="is not a file of the set"):
        fetch._unpack(tmp_path / "evil.tar", tmp_path / "to", cifar.TEN)
    assert not list(tmp_path.rglob("evil"))


def test_ranks_that_download_at_once_take_turns(tmp_path: Path) -> None:
    write_cifar10(synthetic(50, 10, 10, 32), tmp_path / "made")
    archive = tmp_path / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made" / cifar.TEN, cifar.TEN)
    given = (tmp_path / "cache", archive, CONTEXT.Barrier(2))
    ranks = [CONTEXT.Process(target=fetch_slowly, args=given) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    assert (tmp_path / "downloads").read_text() == "x"


class TestImageTree:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        pytest.importorskip("torchvision")
        from PIL import Image

        for split, count in (("train", 6), ("val", 3)):
            for label, name in enumerate(("cat", "dog")):
                folder = tmp_path / split / name
                folder.mkdir(parents=True)
                for number in range(count):
                    colour = (label * 200, number * 30, 90)
                    Image.new("RGB", (50 + number, 40), colour).save(folder / f"{number}.png")
        return tmp_path

    def test_sizes_labels_and_shapes(self, tree: Path) -> None:
        data = load_dataset(Config(data=str(tree), image_size=32), CPU)
        x, y = data.eval_batch("test", 0, 6)
        assert (data.size("train"), data.size("test"), data.num_classes) == (12, 6, 2)
        assert x.shape == (6, 3, 32, 32)
        assert y.tolist() == [0, 0, 0, 1, 1, 1]

    def test_a_sample_is_cropped_alike_in_any_batch_and_anew_each_epoch(self, tree: Path) -> None:
        data = load_dataset(Config(data=str(tree), image_size=32), CPU)
        whole, _ = data.train_batch(torch.arange(12), seed=0, epoch=0)
        part, _ = data.train_batch(torch.tensor([5]), seed=0, epoch=0)
        assert torch.equal(part[0], whole[5])

    def test_randaugment_changes_training_images_only(self, tree: Path) -> None:
        plain, strong = (
            load_dataset(Config(data=str(tree), image_size=32, randaugment=m), CPU) for m in (0, 15)
        )
        numbers = torch.arange(12)
        changed = strong.train_batch(numbers, seed=0, epoch=0)[0]
        assert not torch.equal(changed, plain.train_batch(numbers, seed=0, epoch=0)[0])
        assert torch.equal(changed, strong.train_batch(numbers, seed=0, epoch=0)[0])
        assert torch.equal(strong.eval_batch("test", 0, 6)[0], plain.eval_batch("test", 0, 6)[0])

    def test_looking_ahead_changes_nothing(self, tree: Path) -> None:
        data = load_dataset(Config(data=str(tree), image_size=32), CPU)
        order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
        parts = [slice(n, n + 2) for n in range(4, 12, 2)]  # resumed in the middle of an epoch
        assert torch.equal(data.start_epoch(order, parts, seed=0, epoch=3), order)
        other = load_dataset(Config(data=str(tree), image_size=32), CPU)
        for part in parts:
            ahead, labels = data.train_batch(order[part], seed=0, epoch=3)
            alone, same = other.train_batch(order[part], seed=0, epoch=3)
            assert torch.equal(ahead, alone) and torch.equal(labels, same)

    def test_three_batches_are_decoded_ahead(self, tree: Path) -> None:
        data = load_dataset(Config(data=str(tree), image_size=32), CPU)
        data.start_epoch(torch.arange(12), (slice(n, n + 1) for n in range(12)), seed=0, epoch=0)
        assert [batch.indices.tolist() for batch in data._ahead] == [[0], [1], [2]]
        data.train_batch(torch.tensor([0]), seed=0, epoch=0)
        assert [batch.indices.tolist() for batch in data._ahead] == [[1], [2], [3]]

    def test_files_are_listed_once_until_a_folder_changes(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lists: list[bytes] = []
        real = tree_of_files._listed

        def listed(root: bytes) -> Any:
            lists.append(root)
            return real(root)

        monkeypatch.setattr(tree_of_files, "_listed", listed)
        config = Config(data=str(tree), image_size=32)
        first = load_dataset(config, CPU)
        assert len(lists) == 4  # cat and dog of train/ and of val/
        again = load_dataset(config, CPU)
        assert len(lists) == 4 and again.fingerprint == first.fingerprint
        shutil.copy(tree / "val/cat/0.png", tree / "val/cat/new.png")
        more = load_dataset(config, CPU)
        assert len(lists) == 6 and more.fingerprint != first.fingerprint
        assert (first.size("test"), more.size("test")) == (6, 7)
        assert more.eval_batch("test", 0, 7)[1].tolist() == [0, 0, 0, 0, 1, 1, 1]

    def test_ranks_that_start_at_once_list_once(self, tree: Path, tmp_path: Path) -> None:
        together = CONTEXT.Barrier(3)
        ranks = [CONTEXT.Process(target=list_slowly, args=(tree, together)) for _ in range(3)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(60)
        assert [rank.exitcode for rank in ranks] == [0, 0, 0]
        assert (tree / "lists").read_text() == "xxxx"

    @pytest.mark.parametrize("decoded", [0, 36])
    def test_a_pack_trains_as_its_tree_does(self, tree: Path, decoded: int) -> None:
        assert (
            data_command(["pack", str(tree), "--to", str(tree / "p"), "--decoded", str(decoded)])
            == 0
        )
        with pytest.raises(DataError, match="already exists"):
            data_command(["pack", str(tree), "--to", str(tree / "p")])
        loose = load_dataset(Config(data=str(tree), image_size=32), CPU)
        packed = load_dataset(Config(data=str(tree / "p"), image_size=32), CPU)
        for split, count in (("train", 12), ("test", 6)):
            assert packed.size(split) == loose.size(split) == count
        numbers = torch.tensor([7, 0, 11])
        (x, y), (other, labels) = (
            data.train_batch(numbers, seed=0, epoch=1) for data in (packed, loose)
        )
        assert torch.equal(y, labels)
        assert torch.equal(x, other) if not decoded else (x - other).abs().max() < 0.1
        if decoded:  # the short side is 40 in the tree
            assert packed._splits["train"][0].picture(0, 32).size == (45, 36)
        assert packed.fingerprint != loose.fingerprint

    def test_a_pack_has_as_many_files_as_it_needs(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packed_images, "SHARD", 300)
        data_command(["pack", str(tree), "--to", str(tree / "p")])
        assert len(list((tree / "p/train").glob("*.bin"))) > 1
        loose, packed = (
            load_dataset(Config(data=str(at), image_size=32), CPU) for at in (tree, tree / "p")
        )
        assert torch.equal(packed.eval_batch("test", 0, 6)[0], loose.eval_batch("test", 0, 6)[0])
        (tree / "p/train/00001.bin").unlink()
        with pytest.raises(DataError, match="pack the images again"):
            load_dataset(Config(data=str(tree / "p"), image_size=32), CPU)

    def test_the_stem_follows_the_size_of_the_images(
        self, tree: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for size, model, width, stem in (
            (224, "resnet18", None, "imagenet"),
            (64, "resnet50", None, "imagenet"),
            (32, "resnet18", None, "cifar"),
            (224, "resnet8", None, "cifar"),
            (224, "resnet18", 32, "cifar"),
        ):
            assert choose_stem(model, "auto", width, size) == stem
        config = Config(data=str(tree), image_size=96, stem="cifar")
        assert resolve(config, ALONE, load_dataset(config, CPU)).stem == "cifar"
        assert "note: at 96 pixels --stem imagenet does a sixteenth" in capsys.readouterr().out
        config = Config(data=str(tree), image_size=96)
        assert resolve(config, ALONE, load_dataset(config, CPU)).stem == "imagenet"
        assert not capsys.readouterr().out

    def test_a_file_that_is_no_image(self, tree: Path) -> None:
        (tree / "val" / "cat" / "0.png").write_bytes(b"not a png")
        data = load_dataset(Config(data=str(tree), image_size=32), CPU)
        with pytest.raises(DataError, match=r"cat/0\.png: not a readable image"):
            data.eval_batch("test", 0, 6)
