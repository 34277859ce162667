"""Reading images: CIFAR's layouts, synthetic sets, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import struct
import tarfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_ranks import CONTEXT, make

from trainer.config import Config
from trainer.data import Resident, cifar, fetch, load_dataset
from trainer.data.resident import fingerprint, mean_std
from trainer.data.synthetic import Arrays, synthetic
from trainer.errors import DataError
from trainer.model import choose_stem
from trainer.setup import resolve
from trainer.tools.data_command import main as data_command
from trainer.tools.data_command import write_cifar10

CPU = torch.device("cpu")


@pytest.fixture
def small_cifar(tmp_path: Path) -> Path:
    write_cifar10(synthetic(50, 10, 10, 32), tmp_path)
    return tmp_path


def test_a_written_set_reads_back_the_same(small_cifar: Path) -> None:
    arrays, wrote = cifar.load(small_cifar / cifar.TEN), synthetic(50, 10, 10, 32)
    assert torch.equal(arrays.train_x, wrote.train_x) and torch.equal(arrays.test_x, wrote.test_x)
    assert torch.equal(arrays.train_y, wrote.train_y) and torch.equal(arrays.test_y, wrote.test_y)
    assert (arrays.num_classes, arrays.name) == (10, "CIFAR-10's layout")


def test_every_split_has_its_own_pairs_normalized_and_in_order(small_cifar: Path) -> None:
    data = load_dataset(Config(data=str(small_cifar), val_split=0.2, augment="none"), CPU)
    raw = synthetic(50, 10, 10, 32)
    mean, std = torch.tensor((0.4914, 0.4822, 0.4465)), torch.tensor((0.2470, 0.2435, 0.2616))

    def normalized(x: torch.Tensor) -> torch.Tensor:
        return ((x.float() / 255 - mean) / std).permute(0, 3, 1, 2)

    ((numbers, x, y),) = data.eval_batches("test", [slice(2, 5)])
    torch.testing.assert_close(x, normalized(raw.test_x[2:5]))
    assert torch.equal(y, raw.test_y[2:5]) and numbers.tolist() == [2, 3, 4]
    assert (data.size("train"), data.size("val"), data.size("test")) == (40, 10, 10)
    known = {
        row.numpy().tobytes(): label
        for row, label in zip(raw.train_x, raw.train_y.tolist(), strict=True)
    }
    seen = []
    batches = [
        *data.train_batches(
            torch.arange(40).flip(0), [slice(0, 30), slice(30, 40)], seed=0, epoch=0
        ),
        *data.eval_batches("val", [slice(0, 10)]),
    ]
    assert batches[0].indices.tolist() == list(range(39, 9, -1))
    for _, x, y in batches:
        pixels = ((x.permute(0, 2, 3, 1) * std + mean) * 255).round().to(torch.uint8)
        for image, label in zip(pixels, y.tolist(), strict=True):
            seen.append(image.numpy().tobytes())
            assert known[seen[-1]] == label
    assert len(set(seen)) == 50


def test_training_images_are_cropped_and_mirrored_by_seed_and_epoch() -> None:
    arrays, order = synthetic(40, 10, 10, 8), torch.arange(40)

    def pixels(augment: str, seed: int, epoch: int) -> torch.Tensor:
        data = Resident(arrays, Config(augment=augment), CPU)
        return next(data.train_batches(order, [slice(0, 40)], seed=seed, epoch=epoch)).x

    for augment in ("crop", "flip"):
        assert torch.equal(pixels(augment, 1, 2), pixels(augment, 1, 2))
        assert not torch.equal(pixels(augment, 1, 2), pixels(augment, 1, 3))
        assert not torch.equal(pixels(augment, 1, 2), pixels(augment, 2, 2))
    assert torch.equal(pixels("none", 1, 2), pixels("none", 2, 3))


def test_images_are_nhwc_in_memory_unless_told() -> None:
    for flag, stride in ((True, 1), (False, 32 * 32)):
        data = load_dataset(Config(data="synthetic", channels_last=flag), CPU)
        _, x, _ = next(data.eval_batches("test", [slice(0, 4)]))
        assert x.shape == (4, 3, 32, 32) and x.stride(1) == stride


def test_another_sets_images_are_normalized_by_their_own_statistics() -> None:
    _, x, _ = next(
        load_dataset(
            Config(data="synthetic", synthetic_train=300, synthetic_size=16, augment="none"), CPU
        ).train_batches(torch.arange(300), [slice(0, 300)], seed=0, epoch=0)
    )
    assert x.mean((0, 2, 3)).abs().max() < 1e-3
    assert (x.std((0, 2, 3)) - 1).abs().max() < 1e-3
    flat = Arrays(torch.full((9, 8, 8, 3), 7, dtype=torch.uint8), *raw_rest(), 10, "flat")
    assert mean_std(flat)[1].tolist() == [1.0, 1.0, 1.0]  # not zero: it divides


def raw_rest() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.zeros(9).long(), torch.zeros(1, 8, 8, 3, dtype=torch.uint8), torch.zeros(1).long()


@pytest.mark.parametrize("part", ["train_x", "train_y", "test_x", "test_y"])
def test_one_changed_pixel_or_label_changes_the_fingerprint(part: str) -> None:
    raw = synthetic(50, 10, 10, 8)
    before = fingerprint(raw)
    getattr(raw, part).view(-1)[-1] += 1
    assert fingerprint(raw) != before


def test_a_malicious_pickle_is_refused_and_not_run(small_cifar: Path) -> None:
    mark = small_cifar / "ran"

    class Touch:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {mark}",)

    (small_cifar / cifar.TEN / "data_batch_3").write_bytes(pickle.dumps({b"data": Touch()}))
    with pytest.raises(DataError, match=r"data_batch_3: asks for posix\.system.*refused"):
        load_dataset(Config(data=str(small_cifar)), CPU)
    assert not mark.exists()


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


NDARRAY, DTYPE = b"cnumpy\nndarray\n", b"cnumpy\ndtype\n"
HOSTILE = {
    "an array of pointers": opcodes(
        b"}U\x04data", NDARRAY, b"(K\x01\x85", DTYPE, b"U\x01O\x85RU\x08AAAAAAAAtRs"
    ),
    "an array that starts before its buffer": opcodes(
        b"}U\x04data", NDARRAY, b"(K\x01\x85U\x02u8U\x08AAAAAAAAJ\xf8\xff\xff\xfftRs"
    ),
    "an array of pointers, filled in": opcodes(
        b"}U\x04data",
        b"cnumpy.core.multiarray\n_reconstruct\n",
        NDARRAY,
        b"K\x00\x85U\x01b\x87R",
        b"(K\x01K\x01\x85",
        DTYPE,
        b"U\x01O\x85R(K\x03U\x01|NNNtb\x89U\x08AAAAAAAAtbs",
    ),
    "a call of numpy.dtype": opcodes(b"}U\x04data", DTYPE, b"U\x03f8,\x85Rs"),
    "labels that are objects": opcodes(b"}U\x06labels]", DTYPE, b"U\x02u1\x85Ras"),
    "a class made anew": opcodes(b"}U\x04data", NDARRAY, b"K\x01\x85\x85\x81s"),
    "an instance": opcodes(b"}U\x04data(K\x01inumpy\nndarray\ns"),
    "a persistent id": opcodes(b"}U\x04dataPname\ns"),
    "an extension": opcodes(b"}U\x04data\x82\x01s"),
    "state of a number": opcodes(b"}U\x04dataK\x01K\x02bs"),
    "more bytes than there are": opcodes(b"}U\x04data\x96", struct.pack("<Q", 1 << 40), b"AAs"),
    "text in another codec": opcodes(
        b"}", b"c_codecs\nencode\n", b"X\x04\x00\x00\x00dataU\x06utf-16\x86RK\x01s"
    ),
    "no table": opcodes(b"]"),
    "keys that are numbers": opcodes(b"}K\x01K\x02s"),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_one_line_whatever_it_holds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(DataError) as caught:
        cifar._batch(path, 1, b"labels", 10)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar, "LARGEST", 3 << 20)
    path = tmp_path / "batch"
    with path.open("wb") as file:
        file.truncate((3 << 20) + 1)
    with pytest.raises(DataError, match="larger than 3 MB"):
        cifar.read(path)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("pixels", "labels"),
    [(np.ascontiguousarray, list), (np.asfortranarray, np.array)],
    ids=["lists", "arrays"],
)
def test_arrays_written_by_any_python_read_back(
    tmp_path: Path, protocol: int, pixels: Any, labels: Any
) -> None:
    draw = np.random.default_rng(protocol)
    x = draw.integers(0, 256, (4, 3072), np.uint8)
    y = [int(label) for label in draw.integers(0, 10, 4)]
    batch = {b"data": pixels(x), b"labels": labels(y)}
    (tmp_path / "b").write_bytes(pickle.dumps(batch, protocol=protocol))
    images, numbers = cifar._batch(tmp_path / "b", 4, b"labels", 10)
    assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(4, 3072), x)
    assert numbers.tolist() == y and numbers.dtype == np.int64


@pytest.mark.parametrize("kind", ["u1", "<i2", ">i4", "<u8"])
def test_labels_may_be_of_any_kind_of_integer(tmp_path: Path, kind: str) -> None:
    y = np.array([3, 0, 9], kind)
    batch = {"data": np.zeros((3, 3072), np.uint8), "labels": y}
    (tmp_path / "b").write_bytes(pickle.dumps(batch))
    assert cifar._batch(tmp_path / "b", 3, b"labels", 10)[1].tolist() == [3, 0, 9]


def test_labels_of_floats_are_refused(tmp_path: Path) -> None:
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": np.array([0.0, 1.0])}
    (tmp_path / "b").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match="b: damaged"):
        cifar._batch(tmp_path / "b", 2, b"labels", 10)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "data_batch_2").unlink(), "data_batch_2 is missing"),
        (lambda folder: (folder / "test_batch").write_bytes(b"\x80junk"), "test_batch: damaged"),
        (lambda folder: _change(folder, labels=[0] * 9 + [10]), "labels from 0 to 10"),
        (lambda folder: _change(folder, labels=[-1] * 10), "labels from -1 to -1"),
        (lambda folder: _change(folder, labels=[0] * 9), "expected 10 labels, found"),
        (lambda folder: _change(folder, labels="0" * 10), "expected 10 labels, found none"),
        (lambda folder: _change(folder, data=np.zeros((9, 3072), np.uint8)), "10 images of 3072"),
        (lambda folder: _change(folder, data=np.zeros((10, 3072), np.int8)), "found .* of int8"),
        (lambda folder: _change(folder, data=None), "expected 10 images of 3072 bytes, found none"),
    ],
)
def test_damaged_data_is_a_one_line_error(small_cifar: Path, spoil: Any, said: str) -> None:
    spoil(small_cifar / cifar.TEN)
    with pytest.raises(DataError, match=said) as caught:
        load_dataset(Config(data=str(small_cifar)), CPU)
    assert "\n" not in str(caught.value)


def _change(folder: Path, **entries: object) -> None:
    path = folder / "data_batch_1"
    batch = pickle.loads(path.read_bytes(), encoding="bytes")  # noqa: S301
    batch |= {key.encode(): value for key, value in entries.items()}
    path.write_bytes(pickle.dumps(batch, protocol=2))


def test_cifar_100_has_its_own_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "BATCH", 20)
    folder = tmp_path / cifar.HUNDRED
    folder.mkdir()
    for name, count in (("train", 100), ("test", 20)):
        labels = [i % 100 for i in range(count)]
        pixels = np.zeros((count, 3072), np.uint8)
        batch = {b"fine_labels": labels, b"coarse_labels": [0] * count, b"data": pixels}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    for path in (tmp_path, folder):
        data = load_dataset(Config(data=str(path)), CPU)
        assert (data.num_classes, data.size("train"), data.size("test")) == (100, 100, 20)
        assert data.name == "CIFAR-100's layout"
    ((_, _, y),) = data.train_batches(torch.arange(100), [slice(0, 100)], seed=0, epoch=0)
    assert y.tolist() == list(range(100))
    with pytest.raises(DataError, match="100 classes, but --num-classes 10"):
        load_dataset(Config(data=str(tmp_path), num_classes=10), CPU)


def test_a_folder_of_bare_cifar_batches_is_recognized(small_cifar: Path) -> None:
    (small_cifar / cifar.TEN).rename(small_cifar / "other")
    data = load_dataset(Config(data=str(small_cifar / "other")), CPU)
    assert (data.num_classes, data.size("train")) == (10, 50)


def test_ten_thousand_images_are_expected_without_batches_meta(small_cifar: Path) -> None:
    (small_cifar / cifar.TEN / "batches.meta").unlink()
    with pytest.raises(DataError, match="expected 10000 images of 3072 bytes"):
        load_dataset(Config(data=str(small_cifar)), CPU)


def test_no_folder_and_a_folder_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_dataset(Config(data=str(tmp_path / "none")), CPU)
    with pytest.raises(DataError, match="not a dataset; pass a pack"):
        load_dataset(Config(data=str(tmp_path)), CPU)
    name = "x" * 300  # an error of the system, as for a folder that this user may not read
    message = f"--data {name}: {name}: File name too long; make it readable, or pass another folder"
    with pytest.raises(DataError, match=f"^{message}$"):
        load_dataset(Config(data=name), CPU)


def test_synthetic_images_are_the_same_everywhere_and_balanced() -> None:
    one, other = synthetic(2500, 100, 10, 32), synthetic(2500, 100, 10, 32)
    assert torch.equal(one.train_x, other.train_x) and torch.equal(one.test_x, other.test_x)
    assert torch.bincount(one.train_y).tolist() == [250] * 10
    assert torch.bincount(one.test_y).tolist() == [10] * 10
    assert not torch.equal(one.train_y[:100], one.test_y)
    assert one.train_x.shape == (2500, 32, 32, 3) and one.train_x.dtype == torch.uint8


def test_a_synthetic_image_is_its_classs_prototype_and_noise() -> None:
    images = synthetic(2000, 10, 4, 32)
    x = images.train_x.float()
    means = torch.stack([x[images.train_y == c].mean(0) for c in range(4)])
    noise = x - means[images.train_y]
    assert 30 < noise.std() < 41  # of 40, less what is cut off at 0 and 255
    assert abs(float(x.mean()) - 128) < 10
    assert 25 < means.std() < 55  # the prototypes differ as much
    steps = (means[:, 1:] - means[:, :-1]).abs().mean()
    assert steps < means.std() / 4  # and are smooth


def test_a_split_for_validation_has_at_least_one_image() -> None:
    t = make(None, "--val-split", "0.005")  # of 100 images
    assert (t.data.size("train"), t.data.size("val")) == (99, 1)


def idx(folder: Path, name: str, pixels: np.ndarray[Any, Any], labels: list[int]) -> None:
    head = struct.pack(">4i", 2051, *pixels.shape)
    (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pixels.tobytes(), 1))
    head = struct.pack(">2i", 2049, len(labels))
    (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + bytes(labels), 1))


def test_making_a_set_from_idx_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "idx"
    source.mkdir()
    draw = np.random.default_rng(0)
    train = draw.integers(0, 256, (50, 28, 28), np.uint8)
    test = draw.integers(0, 256, (10, 28, 28), np.uint8)
    idx(source, "train", train, [n % 10 for n in range(50)])
    idx(source, "t10k", test, list(range(9, -1, -1)))
    words = ["make", "--from", "fashion-mnist", "--folder", str(source), "--to", str(tmp_path)]
    assert data_command(words) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / cifar.TEN)
    arrays = cifar.load(tmp_path / cifar.TEN)
    assert arrays.train_y.tolist() == [n % 10 for n in range(50)]
    assert arrays.test_y.tolist() == list(range(9, -1, -1))
    for images, made in ((train, arrays.train_x), (test, arrays.test_x)):
        padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        for channel in range(3):
            assert np.array_equal(made[..., channel].numpy(), padded)
    missing = ["make", "--from", "fashion-mnist", "--folder", "/nowhere", "--to", str(tmp_path)]
    with pytest.raises(DataError, match="/nowhere is missing; run `apt-get install"):
        data_command(missing)
    labels = source / "t10k-labels-idx1-ubyte.gz"
    cut = labels.read_bytes()[:-9]
    for damaged in (cut, b"x" + cut[1:], cut[:12] + b"\xff" + cut[13:]):
        labels.write_bytes(damaged)
        with pytest.raises(DataError, match=f"^{labels}: .*; install the dataset again"):
            data_command(words)


def test_making_and_verifying_a_synthetic_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert data_command(["make", "--from", "synthetic", "--to", str(tmp_path)]) == 0
    assert data_command(["verify", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "CIFAR-10's layout: 5000 + 1000 images, 10 classes" in printed.out
    assert printed.err == f"sha256 {fingerprint(cifar.load(tmp_path / cifar.TEN))}\n"


def fetch_slowly(folder: Path, archive: Path, together: Any) -> None:
    """As a rank does, with a download that takes a while."""
    from trainer.data import fetch

    digest = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    fetch.SOURCES["cifar10"] = fetch.Source(archive.as_uri(), digest, cifar.TEN)
    real = fetch._download

    def download(source: fetch.Source, to: Path) -> Path:
        with (folder.parent / "downloads").open("a") as file:
            file.write("x")
        time.sleep(0.5)
        return real(source, to)

    fetch._download = download
    together.wait(60)
    assert (fetch.fetch("cifar10", folder) / "data_batch_1").is_file()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_cifar10(synthetic(50, 10, 10, 32), tmp_path / "made")
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "made" / cifar.TEN, cifar.TEN)
    return tmp_path / "cifar.tar.gz"


def test_ranks_that_download_at_once_take_turns(tmp_path: Path, archive: Path) -> None:
    given = (tmp_path / "cache", archive, CONTEXT.Barrier(2))
    ranks = [CONTEXT.Process(target=fetch_slowly, args=given) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    assert (tmp_path / "downloads").read_text() == "x"
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".fetch.lock", cifar.TEN}


def test_a_download_that_is_not_the_published_file_is_refused(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fetch.Source(archive.as_uri(), "0" * 32, cifar.TEN)
    monkeypatch.setitem(fetch.SOURCES, "cifar10", source)
    with pytest.raises(DataError, match=r"has MD5 .* instead of the published 0000"):
        fetch.fetch("cifar10", tmp_path / "cache")
    assert not (tmp_path / "cache" / cifar.TEN).exists()


def test_without_a_network_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fetch.Source((tmp_path / "none").as_uri(), "0" * 32, cifar.TEN)
    monkeypatch.setitem(fetch.SOURCES, "cifar10", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"cannot be fetched .*pass its folder with --data"):
        load_dataset(Config(data="download"), CPU)


def test_a_cache_that_cannot_be_written_is_a_one_line_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"ddpctl-trainer: cannot be written: .*data fetch --to"):
        load_dataset(Config(data="download"), torch.device("cpu"))


def test_a_server_that_falls_silent_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []

    def silent(url: str, timeout: float) -> None:
        given.extend((url, timeout))
        raise TimeoutError("timed out")

    monkeypatch.setattr("urllib.request.urlopen", silent)
    with pytest.raises(DataError, match=r"kriz/cifar-100-python.tar.gz: cannot be fetched \(timed"):
        fetch.fetch("cifar100", tmp_path / "a" / "cache")
    assert given == [fetch.SOURCES["cifar100"].url, 30]  # seconds


def test_downloaded_images_are_kept_in_the_cache_folder(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest()
    source = fetch.Source(archive.as_uri(), digest, cifar.TEN)
    monkeypatch.setitem(fetch.SOURCES, "cifar10", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):
        assert load_dataset(Config(data="download"), CPU).size("train") == 50
        archive.unlink(missing_ok=True)  # the second time it is there
    assert (tmp_path / "cache" / "ddpctl-trainer" / cifar.TEN).is_dir()


def test_the_download_addresses_are_the_authors_own() -> None:
    urls = {name: (source.url, source.md5, source.folder) for name, source in fetch.SOURCES.items()}
    base = "https://www.cs.toronto.edu/~kriz"
    assert urls == {
        "cifar10": (f"{base}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", cifar.TEN),
        "cifar100": (
            f"{base}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", cifar.HUNDRED
        ),
    }  # fmt: skip


def test_the_stem_follows_the_size_of_the_images(capsys: pytest.CaptureFixture[str]) -> None:
    for size, model, width, stem in (
        (224, "resnet18", None, "imagenet"),
        (64, "resnet50", None, "imagenet"),
        (63, "resnet50", None, "cifar"),
        (224, "resnet8", None, "cifar"),
        (224, "resnet18", 32, "cifar"),
    ):
        assert choose_stem(model, "auto", width, size) == stem
    assert choose_stem("resnet18", "cifar", None, 224) == "cifar"
    assert choose_stem("pkg.module:net", "auto", None, 224) == "auto"
    t = make(None, "--synthetic-size", "96", "--model", "resnet8")
    capsys.readouterr()
    for stem, noted in (("cifar", True), ("auto", False)):
        config = Config(model="resnet18", stem=stem, synthetic_size=96)
        resolved = resolve(config, t.ranks, t.data)
        assert resolved.stem == ("cifar" if noted else "imagenet")
        said = capsys.readouterr().out
        assert ("note: at 96 pixels, --stem imagenet needs a sixteenth" in said) == noted


@pytest.mark.parametrize("flags", [{"randaugment": 9}, {"trivialaugment": True}, {}])
def test_augmentations_of_image_folders_are_said_to_do_nothing_for_other_images(
    flags: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    t = make()
    capsys.readouterr()
    resolve(Config(model="resnet8", data="synthetic", **flags), t.ranks, t.data)
    warned = "WARNING: --randaugment and --trivialaugment apply only" in capsys.readouterr().out
    assert warned == bool(flags)


def test_settings_that_depend_on_the_machine_are_chosen_for_a_cpu() -> None:
    t = make()
    resolved = resolve(Config(model="resnet8"), t.ranks, t.data)
    assert (resolved.amp, resolved.grad_exchange, resolved.stem) == ("off", "fp64", "cifar")
    given = Config(model="resnet8", amp="bf16", grad_exchange="fp32")
    resolved = resolve(given, t.ranks, t.data)
    assert (resolved.amp, resolved.grad_exchange) == ("bf16", "fp32")


@pytest.mark.parametrize(
    ("amp", "has", "warned"),
    [
        ("bf16", {"architecture": "x86_64", "avx2": True}, True),
        ("bf16", {"architecture": "x86_64", "avx512_bf16": True}, False),
        ("bf16", {"architecture": "x86_64", "amx_bf16": True}, False),
        ("bf16", {"architecture": "aarch64"}, False),  # it has other names for it
        ("auto", {"architecture": "x86_64", "avx2": True}, False),
    ],
)
def test_emulated_bf16_is_warned_about(
    amp: str,
    has: dict[str, Any],
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has, raising=False)
    t = make()
    capsys.readouterr()
    for ranks in (t.ranks, replace(t.ranks, rank=1)):
        resolve(Config(model="resnet8", amp=amp), ranks, t.data)
    said = capsys.readouterr().out
    assert said.count("WARNING: this CPU emulates bf16") == int(warned)
    assert ("use --amp off" in said) == warned
