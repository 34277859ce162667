"""The report in a real browser: at three widths, in both color schemes, and on paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser
from reported_run import EVIL, shown

from launcher.report.page import comparison, page

pytestmark = pytest.mark.real

WIDTHS = (375, 768, 1280)
OVERLAPS = """[...document.querySelectorAll(".chart svg")].flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")].map(text => text.getBoundingClientRect());
  return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right
    && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom));
}).length"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"one": page(shown()), "two": comparison(shown(), shown()), "evil": page(shown(EVIL))}
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in made}


def test_nothing_is_wider_than_the_screen(tab: Page, pages: dict[str, Path]) -> None:
    for name, path in pages.items():
        for width in WIDTHS:
            tab.open(path, width)
            inside = tab.evaluate("document.documentElement.clientWidth")
            assert tab.evaluate("document.documentElement.scrollWidth") <= inside <= width, (
                name,
                width,
            )


def test_text_in_charts_is_readable_on_a_phone(tab: Page, pages: dict[str, Path]) -> None:
    tab.open(pages["one"], 375)
    height = "document.querySelector('.chart text').getBoundingClientRect().height"
    assert tab.evaluate(height) > 9  # CSS pixels


def test_it_loads_nothing_and_runs_no_script(tab: Page, pages: dict[str, Path]) -> None:
    tab.complaints.clear()
    tab.open(pages["evil"], 1280)
    assert tab.evaluate("document.title") == "20261121-050000-abcd: SUCCEEDED"
    assert tab.evaluate("document.querySelectorAll('script, img').length") == 0
    assert tab.evaluate("document.querySelectorAll('.chart svg').length") == 6
    assert tab.complaints == []


def test_the_report_is_dark_if_the_system_is(tab: Page, pages: dict[str, Path]) -> None:
    tab.open(pages["one"], 768)
    assert tab.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
    tab.open(pages["one"], 768, dark=True)
    assert tab.evaluate(BACKGROUND) == "rgb(20, 24, 29)"


def test_no_label_of_a_chart_covers_another(tab: Page, pages: dict[str, Path]) -> None:
    for width in WIDTHS:
        tab.open(pages["one"], width)
        assert tab.evaluate("document.querySelectorAll('.chart text').length") > 40
        assert tab.evaluate(OVERLAPS) == 0


def test_pointing_at_a_curve_shows_its_value_and_the_legend_hides_it(
    tab: Page, pages: dict[str, Path]
) -> None:
    tab.open(pages["one"], 1280)
    dot = "document.querySelector('.chart circle')"
    opacity = f"getComputedStyle({dot}).opacity"
    tab.evaluate("document.querySelector('.chart').scrollIntoView()")
    assert tab.evaluate(opacity) == "0"
    box = f"{dot}.getBoundingClientRect()"
    x, y, size = (tab.evaluate(f"{box}.{side}") for side in ("x", "y", "width"))
    tab.hover(x + size / 2, y + size / 2)
    assert tab.evaluate(opacity) == "1"
    assert tab.evaluate(f"{dot}.textContent") == "train: 2.5 at step 0"  # the browser's tooltip
    tab.evaluate("document.querySelector('#s0').click()")
    line = "getComputedStyle(document.querySelector('.series.color-0')).display"
    assert tab.evaluate(line) == "none"


def test_it_prints_on_one_page(tab: Page, pages: dict[str, Path]) -> None:
    tab.open(pages["one"], 1280)
    assert len(re.findall(rb"/Type /Page\b", tab.pdf())) == 1
