"""Single pictures: decoded, cropped and changed as torchvision does."""

from __future__ import annotations

import io
import math
import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from trainer.data import pictures
from trainer.data.pictures import (
    OPERATIONS,
    center_crop,
    randaugment,
    random_box,
    random_crop,
    read,
    shrunk,
    trivialaugment,
)
from trainer.errors import DataError


@pytest.fixture(scope="module", autouse=True)
def _import_torchvision() -> None:
    """Import it in the process that runs these tests. All others would grow by a quarter."""
    global transforms, autoaugment
    transforms = pytest.importorskip("torchvision.transforms")
    autoaugment = transforms.autoaugment


def photograph(width: int = 90, height: int = 60, seed: int = 0) -> Any:
    """Smooth, and different at every place."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (256, 256), (100, 60), (61, 300)])
@pytest.mark.parametrize("edge", [224, 160, 33])
def test_evaluation_sees_what_resize_and_center_crop_of_torchvision_give(
    size: tuple[int, int], edge: int
) -> None:
    image = photograph(*size)
    short = round(edge * 256 / 224)
    plain = transforms.Compose([transforms.Resize(short), transforms.CenterCrop(edge)])(image)
    ours = np.asarray(center_crop(image, edge), np.int16)
    assert ours.shape == (edge, edge, 3)
    difference = np.abs(ours - np.asarray(plain, np.int16))
    assert difference.max() <= 2 and difference.mean() < 0.02  # PIL's rounding


def test_a_random_crop_is_torchvisions_resized_crop_of_its_box() -> None:
    image = photograph()
    for seed in range(5):
        left, top, right, bottom = random_box(90, 60, seed)
        functional = transforms.functional
        plain = functional.resized_crop(image, top, left, bottom - top, right - left, [48, 48])
        assert np.array_equal(np.asarray(random_crop(image, 48, seed)), np.asarray(plain))


def test_random_boxes_are_spread_as_torchvisions_are() -> None:
    import torch

    torch.manual_seed(0)
    image, resized = photograph(90, 60), transforms.RandomResizedCrop
    theirs = [resized.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(4000)]
    boxes = [random_box(90, 60, seed) for seed in range(4000)]
    ours = [(top, left, bottom - top, right - left) for left, top, right, bottom in boxes]
    for measure in (
        lambda top, left, high, wide: high * wide / (90 * 60),
        lambda top, left, high, wide: math.log(wide / high),
        lambda top, left, high, wide: top / max(1, 60 - high),
        lambda top, left, high, wide: left / max(1, 90 - wide),
    ):
        a, b = ([measure(*box) for box in found] for found in (ours, theirs))
        assert statistics.mean(a) == pytest.approx(statistics.mean(b), abs=0.03)
        assert statistics.stdev(a) == pytest.approx(statistics.stdev(b), rel=0.06)
        assert min(a) == pytest.approx(min(b), abs=0.03) and max(a) == pytest.approx(
            max(b), abs=0.03
        )
    assert all(
        0 <= left < right <= 90 and 0 <= top < bottom <= 60 for left, top, right, bottom in boxes
    )


def test_random_boxes_reach_every_edge() -> None:
    boxes = [random_box(8, 6, seed) for seed in range(300)]
    lefts, tops, rights, bottoms = (set(values) for values in zip(*boxes, strict=True))
    assert lefts >= {0, 1, 2, 3, 4} and tops >= {0, 1, 2, 3}
    assert max(rights) == 8 and max(bottoms) == 6
    assert (0, 0, 8, 6) in boxes  # the whole picture
    assert all(left < right and top < bottom for left, top, right, bottom in boxes)


@pytest.mark.parametrize("size", [(600, 10), (10, 600), (1, 1)])
def test_where_no_box_fits_it_is_the_middle_as_in_torchvision(size: tuple[int, int]) -> None:
    width, height = size
    plain = set()
    for _ in range(50):
        top, left, high, wide = transforms.RandomResizedCrop.get_params(
            Image.new("RGB", size), [0.08, 1.0], [3 / 4, 4 / 3]
        )
        plain.add((left, top, left + wide, top + high))
    middle = [seed for seed in range(50) if nothing_fits(width, height, seed)]
    assert {random_box(width, height, seed) for seed in middle} <= plain
    assert middle or size == (1, 1)


def nothing_fits(width: int, height: int, seed: int) -> bool:
    """Whether none of ten random boxes fits."""
    draw = random.Random(seed)
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1)
        aspect = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return False
    return True


def test_a_picture_is_shrunk_to_its_short_side_and_never_enlarged() -> None:
    wide, tall = photograph(90, 60), photograph(60, 90)
    assert (shrunk(wide, 30).size, shrunk(tall, 30).size) == ((45, 30), (30, 45))
    assert shrunk(wide, 60).size == shrunk(wide, 61).size == (90, 60)
    plain = transforms.functional.resize(photograph(90, 61), [30])
    assert np.array_equal(np.asarray(shrunk(photograph(90, 61), 30)), np.asarray(plain))


NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color"),
    *("Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def by_torchvision(image: Any, name: str, magnitude: float) -> np.ndarray[Any, Any]:
    nearest = transforms.InterpolationMode.NEAREST
    return np.asarray(autoaugment._apply_op(image, name, magnitude, nearest, None))


@pytest.mark.parametrize("number", range(len(NAMES)))
@pytest.mark.parametrize("policy", ["RandAugment", "TrivialAugmentWide"])
def test_each_operation_is_torchvisions_at_every_magnitude(number: int, policy: str) -> None:
    image, name = photograph(), NAMES[number]
    if policy == "RandAugment":
        space = autoaugment.RandAugment()._augmentation_space(31, (60, 90))
    else:
        space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    magnitudes, signed = space[name]
    operation, strongest, wide = OPERATIONS[number]
    limit = strongest(image) if policy == "RandAugment" else wide
    for bin_ in (0, 7, 9, 15, 30):
        value = round(float(magnitudes[bin_]), 4) if magnitudes.ndim else 0.0
        ours = [np.asarray(operation(image, sign * limit * bin_ / 30)) for sign in (1, -1)]
        theirs = [
            by_torchvision(image, name, sign * value) for sign in ((1, -1) if signed else (1, 1))
        ]
        if name.startswith("Translate"):  # PIL's offsets point from the new place to the old
            theirs.reverse()
        share = 0.03 if name in ("ShearX", "ShearY", "Rotate") else 0.0
        assert alike(ours, theirs, share), (name, bin_)


def alike(ours: list[Any], theirs: list[Any], share: float) -> bool:
    """Equal but for a share of the pixels: those at an edge, where the rounding of coordinates decides."""
    return all((a != b).any(-1).mean() <= share for a, b in zip(ours, theirs, strict=True))


class Recorded:
    """Records the strengths that an operation gets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[int, float]] = []
        replaced = [
            (lambda image, v, n=n: self.calls.append((n, v)) or image, strongest, wide)
            for n, (_, strongest, wide) in enumerate(OPERATIONS)
        ]
        monkeypatch.setattr(pictures, "OPERATIONS", replaced)


def test_randaugment_applies_two_operations_of_one_magnitude_with_either_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded(monkeypatch)
    for seed in range(600):
        randaugment(photograph(), 10, seed)
    assert len(recorded.calls) == 1200
    for n, (_, strongest, _) in enumerate(OPERATIONS):
        values = [v for number, v in recorded.calls if number == n]
        assert 50 < len(values) < 130  # 86 of 1200
        assert {round(abs(v), 6) for v in values} == {round(strongest(photograph()) / 3, 6)}
        if strongest(photograph()):
            assert 0.25 < sum(v > 0 for v in values) / len(values) < 0.75


def test_trivialaugment_applies_one_operation_of_any_magnitude(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded(monkeypatch)
    for seed in range(3000):
        trivialaugment(photograph(), seed)
    assert len(recorded.calls) == 3000
    for n, (_, _, wide) in enumerate(OPERATIONS):
        values = [v for number, v in recorded.calls if number == n]
        assert 150 < len(values) < 280  # 214
        if wide:
            bins = sorted({round(abs(v) / wide * 30, 6) for v in values})
            assert bins == [round(b) for b in bins] and bins[0] <= 1 and bins[-1] == 30
            assert len(bins) > 25


def test_the_seed_decides_what_is_drawn() -> None:
    image = photograph()
    for function in (
        lambda seed: random_crop(image, 32, seed),
        lambda seed: randaugment(image, 9, seed),
        lambda seed: trivialaugment(image, seed),
    ):
        results = {seed: function(seed).tobytes() for seed in range(6)}
        assert len(set(results.values())) >= 4
        assert results == {seed: function(seed).tobytes() for seed in range(6)}


def saved(image: Any, kind: str, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file


def test_a_photograph_is_decoded_at_a_lower_resolution_where_that_suffices() -> None:
    image = photograph(900, 600)
    for edge, size in ((600, (900, 600)), (200, (450, 300)), (32, (113, 75))):
        assert read(saved(image, "JPEG"), "x", edge).size == size
    assert read(saved(image, "PNG"), "x", 32).size == (900, 600)


@pytest.mark.parametrize("mode", ["L", "P", "LA", "RGBA", "CMYK", "1"])
def test_pictures_of_every_mode_become_rgb(mode: str) -> None:
    image = photograph().convert(mode)
    kind = "JPEG" if mode == "CMYK" else "PNG"
    decoded = read(saved(image, kind), "x", 32)
    assert decoded.mode == "RGB"
    difference = np.abs(np.asarray(decoded, int) - np.asarray(image.convert("RGB"), int))
    assert difference.mean() < 3


def test_sixteen_bits_of_gray_keep_their_upper_eight() -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    decoded = read(saved(Image.fromarray(values), "PNG"), "x", 32)
    assert np.array_equal(np.asarray(decoded), np.repeat((values >> 8)[..., None], 3, 2))


def bomb() -> io.BytesIO:
    """A few bytes that claim to be 70,000 x 70,000 pixels."""
    content = bytearray(saved(Image.new("L", (8, 8)), "PNG").getvalue())
    content[16:24] = (70_000).to_bytes(4, "big") * 2
    content[29:33] = PngImagePlugin._crc32(bytes(content[12:29])).to_bytes(4, "big")
    return io.BytesIO(bytes(content))


@pytest.mark.parametrize(
    "content",
    [b"", b"not a picture", saved(photograph(), "PNG").getvalue()[:700], bomb().getvalue()],
    ids=["empty", "text", "cut off", "bomb"],
)
def test_an_undecodable_file_is_a_one_line_error_with_its_name(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^cat/7\.png: not a readable image \(") as caught:
        read(io.BytesIO(content), "cat/7.png", 32)
    assert "\n" not in str(caught.value)


def test_pictures_up_to_a_limit_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LARGEST", 60 * 90)
    assert read(saved(photograph(90, 60), "PNG"), "x", 32).size == (90, 60)
    with pytest.raises(DataError, match=r"x: not a readable image \(91 x 60 pixels\)"):
        read(saved(photograph(91, 60), "PNG"), "x", 32)


def test_a_line_of_pixels_fills_no_memory(tmp_path: Path) -> None:
    """Its short side would be enlarged to 256 pixels, and the long one with it."""
    assert center_crop(Image.new("RGB", (3_000_000, 1)), 224).size == (224, 224)
