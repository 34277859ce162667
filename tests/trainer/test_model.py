"""The networks: sizes as published, shapes, and torchvision's where the network is the same."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from trainer.errors import CheckpointError, UsageError
from trainer.model import (
    NAMES,
    build_model,
    fixed_statistics,
    flatten,
    load_weights,
    norms,
    replaced,
    unflatten,
)


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
    with pytest.raises(UsageError, match="--model resnet9: unknown network; use resnet8"):
        build_model("resnet9", num_classes=10)
    with pytest.raises(UsageError, match="small images only"):
        build_model("resnet8", num_classes=10, stem="imagenet")


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_cifar_network_is_torchvisions_with_a_small_stem(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    theirs = getattr(models, name)(num_classes=10)
    theirs.conv1, theirs.maxpool = (
        torch.nn.Conv2d(3, 64, 3, padding=1, bias=False),
        torch.nn.Identity(),
    )
    ours = build_model(name, num_classes=10)
    values = list(theirs.state_dict().values())
    names = list(ours.state_dict())
    assert sorted(v.shape for v in values) == sorted(v.shape for v in ours.state_dict().values())
    ours.load_state_dict(dict(zip(names, values, strict=True)))  # both name them in one order
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    for network in (ours, theirs):
        network.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_convolutions_start_as_he_et_al_say() -> None:
    torch.manual_seed(0)
    network = build_model("resnet18", num_classes=10)
    for name, parameter in network.named_parameters():
        if parameter.ndim == 4:
            fan_out = parameter.shape[0] * parameter.shape[2] * parameter.shape[3]
            assert float(parameter.detach().std()) == pytest.approx(
                (2 / fan_out) ** 0.5, rel=0.1
            ), name


def test_width_is_the_channels_of_the_first_stage() -> None:
    for name, width, last in (
        ("resnet8", 5, 20),
        ("resnet20", None, 64),
        ("resnet18", 8, 64),
        ("resnet50", 8, 256),
    ):
        network = build_model(name, num_classes=3, width=width)
        assert network.conv1.out_channels == (width or 16)
        assert network.fc.in_features == last and network.fc.out_features == 3
    with pytest.raises(UsageError, match="--width 32 --stem imagenet"):
        build_model("resnet18", num_classes=3, stem="imagenet", width=32)


def test_each_stage_but_the_first_halves_the_image() -> None:
    network = build_model("resnet20", num_classes=10).eval()
    sizes: list[tuple[int, int]] = []
    for block in network.layers:
        block.register_forward_hook(lambda _, __, out: sizes.append((out.shape[1], out.shape[-1])))
    with torch.no_grad():
        network(torch.zeros(1, 3, 32, 32))
    assert sizes == [(16, 32)] * 3 + [(32, 16)] * 3 + [(64, 8)] * 3


def test_fixed_statistics_are_used_and_kept() -> None:
    network = build_model("resnet8", num_classes=10, width=4).train()
    before = copy.deepcopy(network.state_dict())
    x = torch.randn(4, 3, 16, 16)
    with fixed_statistics(network, when=True):
        inside = network(x)
        assert not any(module.training for module in norms(network)) and network.training
    assert all(module.training for module in norms(network))
    assert all(
        torch.equal(a, b)
        for a, b in zip(network.state_dict().values(), before.values(), strict=True)
    )
    torch.testing.assert_close(inside, network.eval()(x))
    with fixed_statistics(network.train(), when=False):
        network(x)
    assert not torch.equal(network.state_dict()["bn1.running_mean"], before["bn1.running_mean"])
    norms(network)[0].eval()  # as the user's network may want
    with fixed_statistics(network, when=True):
        pass
    assert not norms(network)[0].training


def test_weights_are_loaded_by_name_and_shape(tmp_path: Path) -> None:
    source = build_model("resnet8", num_classes=10, width=4)
    saved = {f"module.{name}": value for name, value in source.state_dict().items()}
    torch.save(saved, tmp_path / "w.pth")
    network = build_model("resnet8", num_classes=7, width=4)
    assert load_weights(network, str(tmp_path / "w.pth")) == ["fc.weight", "fc.bias"]
    assert torch.equal(network.conv1.weight, source.conv1.weight)
    assert network.fc.weight.shape == (7, 16)
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(CheckpointError, match=r"--weights .*text\.pth: ") as caught:
        load_weights(network, str(tmp_path / "text.pth"))
    assert "\n" not in str(caught.value)


def test_values_are_flattened_replaced_and_put_back() -> None:
    tensors = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])]
    flat = flatten(tensors)
    assert flat.tolist() == [1, 2, 3, 4, 5]
    views = unflatten(flat * 2, tensors)
    assert [view.tolist() for view in views] == [[[2, 4], [6, 8]], [10]]
    with replaced(tensors, views):
        assert tensors[1].item() == 10
    assert [tensor.tolist() for tensor in tensors] == [[[1, 2], [3, 4]], [5]]
    with pytest.raises(ZeroDivisionError), replaced(tensors, views):
        raise ZeroDivisionError
    assert tensors[1].item() == 5
