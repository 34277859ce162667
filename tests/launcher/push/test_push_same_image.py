from __future__ import annotations

from typing import Any

from launcher.engines.engine_info import parse_image
from launcher.push.image.push_image import remember, same


def inspected(id: str, *layers: str, **config: Any) -> dict[str, Any]:
    return {"Id": id, "RootFS": {"Layers": list(layers)}, "Config": config}


def test_different_ids_in_different_image_stores_are_the_same_image() -> None:
    one = parse_image(inspected("sha256:config", "a", "b", Env=["A=1"], Cmd=None))
    other = parse_image(inspected("sha256:manifest", "a", "b", Env=["A=1"]))
    assert same(one, other)


def test_a_layer_or_a_command_that_differs_makes_another_image() -> None:
    one = parse_image(inspected("sha256:1", "a", "b", Cmd=["x"]))
    assert not same(one, parse_image(inspected("sha256:2", "a", "c", Cmd=["x"])))
    assert not same(one, parse_image(inspected("sha256:2", "a", "b", Cmd=["y"])))


def test_images_without_visible_layers_are_not_taken_for_each_other() -> None:
    assert not same(parse_image(inspected("sha256:1")), parse_image(inspected("sha256:2")))


def test_an_image_from_a_registry_is_known_by_its_digest() -> None:
    one = {**inspected("sha256:1"), "RepoDigests": ["r/i@sha256:d"]}
    other = {**inspected("sha256:2"), "RepoDigests": ["r/i@sha256:d", "r/j@sha256:e"]}
    assert same(parse_image(one), parse_image(other))


def test_a_pushed_image_without_visible_layers_is_remembered_by_its_id() -> None:
    here = parse_image(inspected("sha256:here", "a"))
    bare, twin = parse_image(inspected("sha256:x")), parse_image(inspected("sha256:y"))
    remember(bare, here)
    assert same(bare, here)
    assert not same(twin, here)
    remember(twin, here)
    assert same(twin, bare)


def test_nonsense_from_an_engine_is_an_image_like_no_other() -> None:
    for answer in (
        {},
        {"Id": None, "Config": [], "RootFS": "x", "RepoDigests": 5},
        {"Id": "i", "Config": {"Env": ["A", 5, None]}, "RootFS": {"Layers": {"a": 1}}},
    ):
        image = parse_image(answer)
        assert image.layers == ()
        assert image.env == {}
        assert image.id or not same(image, image)
