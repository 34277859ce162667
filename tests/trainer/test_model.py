"""The networks: sizes as published, shapes, and torchvision's where the network is the same."""

from __future__ import annotations

import pytest
import torch

from trainer.config import PRESETS
from trainer.errors import UsageError
from trainer.model import NAMES, build_model


def size(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "millions"),
    [("resnet8", 0.08), ("resnet20", 0.27), ("resnet18", 11.17), ("resnet34", 21.28),
     ("resnet50", 23.52), ("resnet101", 42.51), ("resnet152", 58.16)],
)  # fmt: skip
def test_cifar_networks_have_the_published_sizes(name: str, millions: float) -> None:
    assert size(build_model(name, num_classes=10)) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("resnet101", "resnet152")])
def test_logits_have_the_shape_of_the_classes(name: str) -> None:
    network = build_model(name, num_classes=7).eval()
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_the_imagenet_stem_is_torchvisions_network() -> None:
    models = pytest.importorskip("torchvision.models")
    ours = build_model("resnet18", num_classes=1000, stem="imagenet")
    ours.load_state_dict(models.resnet18().state_dict())


def test_the_small_stem_keeps_the_size_of_small_images() -> None:
    network = build_model("resnet18", num_classes=10).eval()
    sizes: list[int] = []
    network.layers[0].register_forward_hook(lambda _, __, out: sizes.append(out.shape[-1]))
    with torch.no_grad():
        network(torch.zeros(1, 3, 32, 32))
    assert sizes == [32]


def test_unknown_names_and_impossible_stems() -> None:
    with pytest.raises(UsageError, match="--model resnet9: use resnet8"):
        build_model("resnet9", num_classes=10)
    with pytest.raises(UsageError, match="small images only"):
        build_model("resnet8", num_classes=10, stem="imagenet")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_config_that_can_be(name: str) -> None:
    from trainer.flags import parse

    config, _ = parse(["--preset", name, "--data", "synthetic"], {})
    for key, value in PRESETS[name].items():
        assert getattr(config, key) == value
