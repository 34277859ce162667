from __future__ import annotations

from typing import Any

from launcher.engines.engine_info import parse_image
from launcher.hosts import Host
from launcher.push.image.push_image import as_here, remember
from launcher.ssh.host_connection import HostConnection


def inspected(id: str, *layers: str, **config: Any) -> dict[str, Any]:
    return {"Id": id, "RootFS": {"Layers": list(layers)}, "Config": config}


def test_different_ids_in_different_image_stores_are_the_same_image() -> None:
    one = parse_image(inspected("sha256:config", "a", "b", Env=["A=1"], Cmd=None))
    other = parse_image(inspected("sha256:manifest", "a", "b", Env=["A=1"]))
    assert one.same_as(other)


def test_a_layer_or_a_command_that_differs_makes_another_image() -> None:
    one = parse_image(inspected("sha256:1", "a", "b", Cmd=["x"]))
    assert not one.same_as(parse_image(inspected("sha256:2", "a", "c", Cmd=["x"])))
    assert not one.same_as(parse_image(inspected("sha256:2", "a", "b", Cmd=["y"])))


def test_images_without_visible_layers_are_not_taken_for_each_other() -> None:
    assert not parse_image(inspected("sha256:1")).same_as(parse_image(inspected("sha256:2")))


def test_an_image_from_a_registry_is_known_by_its_digest() -> None:
    one = {**inspected("sha256:1"), "RepoDigests": ["r/i@sha256:d"]}
    other = {**inspected("sha256:2"), "RepoDigests": ["r/i@sha256:d", "r/j@sha256:e"]}
    assert parse_image(one).same_as(parse_image(other))


def test_a_pushed_image_without_visible_layers_is_remembered_by_its_id() -> None:
    here = parse_image(inspected("sha256:here", "a"))
    bare, twin = parse_image(inspected("sha256:x")), parse_image(inspected("sha256:y"))
    gpu1, gpu2 = HostConnection(Host("gpu1")), HostConnection(Host("gpu2"))
    remember(bare, gpu1, here)
    assert as_here(bare, gpu1).same_as(here)
    assert not as_here(twin, gpu1).same_as(here)
    remember(twin, gpu2, here)
    assert as_here(twin, gpu2).same_as(as_here(bare, gpu1))


def test_the_id_that_a_host_names_says_nothing_about_another_hosts_images() -> None:
    """A host that names the id of an old image would make every other host's old one count as new."""
    here = parse_image(inspected("sha256:new", "a"))
    old = parse_image(inspected("sha256:old", "b"))
    claimed = parse_image(inspected("sha256:old"))
    remember(claimed, HostConnection(Host("evil")), here)
    assert not as_here(old, HostConnection(Host("good"))).same_as(here)


def test_nonsense_from_an_engine_is_an_image_like_no_other() -> None:
    for answer in (
        {},
        {"Id": None, "Config": [], "RootFS": "x", "RepoDigests": 5},
        {"Id": "i", "Config": {"Env": ["A", 5, None]}, "RootFS": {"Layers": {"a": 1}}},
    ):
        image = parse_image(answer)
        assert image.layers == ()
        assert image.env == {}
        assert image.id or not image.same_as(image)
