"""Charts: what is read from metrics.jsonl, and that whatever it holds can be drawn."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reported_run import BEGAN, journals_of, metrics_lines, node_journal

import launcher.report.charts as module
from launcher.logs.metrics import LARGEST, number
from launcher.report.charts import MOST_CURVES, Chart, Curve, charts, together
from launcher.report.drawing import (
    LETTER,
    POINTS_PER_CURVE,
    WIDTH,
    color_of,
    figures,
    label,
    linear_axis,
    log_axis,
    thinned,
)
from launcher.report.journals import Journals


def test_charts_are_read_from_whole_lines_and_finite_numbers() -> None:
    loss, accuracy, throughput = charts(metrics_lines() + b"\n[1]\n" + b'{"loss": NaN, "step": 1}')
    assert [curve.name for curve in loss.curves] == ["train", "eval"]
    assert loss.curves[0].points[0] == (0, 2.5) and len(loss.curves[0].points) == 10
    assert accuracy.curves[0].points == ((100, 0.625),)
    assert throughput.curves[0].points[-1] == (90, 1090)


def test_a_resumed_run_has_a_curve_for_each_attempt() -> None:
    text = b"".join(
        json.dumps(line).encode() + b"\n"
        for attempt in (1, 3)
        for line in (
            {"kind": "start", "attempt": attempt},
            {"kind": "train", "step": attempt, "loss": 1.0},
        )
    )
    (loss,) = charts(text)
    assert [curve.name for curve in loss.curves] == ["train, attempt 1", "train, attempt 3"]


OWN = {"loss": [1.5, 0.5, 1.0, 1.0], "img_s": [10.0, 20.0, 30.0, None]}
TRAIN = {"kind": "train", "step": 5, "loss": 1.0, "img_s": 60.0, "ranks": OWN}


def test_each_rank_has_its_curves_beside_that_of_all() -> None:
    test = {"kind": "eval", "step": 5, "top1": 0.5, "ranks": {"top1": [0.25, None]}}
    loss, accuracy, throughput = charts(f"{json.dumps(TRAIN)}\n{json.dumps(test)}\n".encode())
    drawn = {curve.name: curve.points for curve in loss.curves}
    assert list(drawn)[:3] == ["train", "train of rank 0", "train of rank 1"]
    assert drawn["train of rank 1"] == ((5, 0.5),)
    assert [curve.name for curve in accuracy.curves] == ["eval", "eval of rank 0"]
    assert [curve.name for curve in throughput.curves] == ["train"]
    many = {"kind": "train", "step": 5, "loss": 1.0, "ranks": {"loss": [1.0] * 64}}
    assert len(charts(json.dumps(many).encode())[0].curves) == 1


def test_of_too_many_points_the_newest_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POINTS_PER_FILE", 10)
    lines = (json.dumps({"kind": "train", "step": n, "loss": 1.0}) for n in range(25))
    (loss,) = charts("\n".join(lines).encode())
    assert [step for step, _ in loss.curves[0].points] == [*range(15, 25)]


def test_hosts_that_all_wrote_metrics_have_curves_of_their_own() -> None:
    line = b'{"kind": "train", "step": 1, "loss": 1.0}\n'
    (loss,) = together({"gpu1": charts(line), "gpu2": (), "gpu3": charts(line)})
    assert [curve.name for curve in loss.curves] == ["train, gpu1", "train, gpu3"]
    (alone,) = together({"gpu1": (), "gpu2": charts(line)})
    assert [curve.name for curve in alone.curves] == ["train"]


def test_other_scripts_have_no_charts() -> None:
    assert charts(b"") == () and charts(b"hello\n{}\n") == ()
    assert figures(()) == ""


NUMBERS = st.one_of(
    st.floats(), st.integers(), st.sampled_from([1.0, 1 + 2**-52, 1e16, 1e16 + 2, 5e-324, -1e29])
)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4), st.booleans())
@example([(0, 1.0), (1, 1 + 2**-52)], True)
@example([(1e16, 1.0), (1e16 + 2, 1.0)], False)
def test_any_numbers_can_be_drawn(values: list[tuple[float, float]], log: bool) -> None:
    numbers = ((number(x), number(y)) for x, y in values)
    points = tuple((x, y) for x, y in numbers if x is not None and y is not None)
    if points:
        drawn = figures([Chart("a", (Curve("b", points),), log=log)])
        assert not re.search(r'="[^"]*(nan|inf)', drawn)
        assert len(drawn) < 40_000


def test_large_losses_are_drawn_and_values_that_are_no_numbers_are_skipped() -> None:
    assert number(1e29) == 1e29 and number(LARGEST * 10) is None
    assert number(float("nan")) is None and number("1") is None and number(True) is None


def labels(drawn: str, axis: str) -> list[str]:
    return re.findall(rf'<text class="{axis}"[^>]*>([^<]*)</text>', drawn)


def test_losses_have_a_logarithmic_axis_with_a_label_for_each_power_of_ten() -> None:
    points = tuple((float(x), 10.0 ** (2 - x)) for x in range(5))
    drawn = figures([Chart("Loss", (Curve("train", points),), log=True)])
    dots = [float(y) for y in re.findall(r'<circle cx="[^"]*" cy="([^"]*)"', drawn)]
    gaps = [round(b - a) for a, b in itertools.pairwise(dots)]
    assert len(set(gaps)) == 1 and gaps[0] > 20  # equal steps for equal factors
    assert labels(drawn, "y") == ["0.01", "0.1", "1", "10", "100"]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.3, 0.9, [0.4, 0.6, 0.8]),
        (0.02, 2.5, [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2]),
        (1e-30, 1e30, [1e-30, 1e-23, 1e-16, 1e-9, 1e-2, 1e5, 1e12, 1e19, 1e26]),
    ],
)
def test_a_logarithmic_axis_has_a_few_round_numbers(
    low: float, high: float, ticks: list[float]
) -> None:
    assert log_axis(low, high).ticks == pytest.approx(ticks)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0, 90, ["0", "20", "40", "60", "80"]),
        (0.12, 0.31, ["0.15", "0.2", "0.25", "0.3"]),
        (-3, 3, ["-2", "0", "2"]),
        (0, 54_321, ["0", "20,000", "40,000"]),
        (5, 5, ["4.6", "4.8", "5", "5.2", "5.4"]),
        (1, 1 + 1e-12, ["0.9", "0.95", "1", "1.05", "1.1"]),
    ],
)
def test_a_linear_axis_has_a_few_round_numbers(low: float, high: float, shown: list[str]) -> None:
    assert [label(tick) for tick in linear_axis(low, high).ticks] == shown


@given(NUMBERS, NUMBERS)
@example(0.2, 0.2)
def test_every_axis_has_two_to_nine_labels_between_its_ends(one: float, other: float) -> None:
    low, high = sorted(number(value) or 0.0 for value in (one, other))
    axes = [linear_axis(low, high)] + ([log_axis(low, high)] if low > 0 else [])
    for axis in axes:
        assert 2 <= len(axis.ticks) <= 9
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
        assert 0 <= axis.share(low) <= axis.share(high) <= 1


def test_a_value_is_shown_where_the_reader_points() -> None:
    drawn = figures(charts(metrics_lines()))
    assert "<title>eval: 0.625 at step 100</title></circle>" in drawn
    assert drawn.count("<circle") == drawn.count("<title>") == 22


def test_no_line_joins_two_attempts() -> None:
    chart = next(c for c in journals_of().usage_charts(BEGAN) if c.title == "CPU cores busy")
    drawn = figures([chart])
    assert drawn.count("<polyline") == 4  # two nodes in two attempts
    assert drawn.count("<li") == 2  # but a node has one entry in the legend


def test_the_usage_of_many_nodes_is_drawn_as_lowest_mean_and_highest() -> None:
    one = node_journal(1, 0)
    nodes = [dataclasses.replace(one, node_rank=n) for n in range(MOST_CURVES + 1)]
    later = [(time + 600, event) for time, event in one.events]
    nodes.append(dataclasses.replace(one, attempt=2, events=later))
    cores = Journals(nodes).usage_charts(BEGAN)[-1]
    of_an_attempt = ["lowest node", "mean of nodes", "highest node"]
    assert [curve.name for curve in cores.curves] == of_an_attempt * 2
    assert [len(curve.points) for curve in cores.curves] == [3] * 6


def test_long_labels_stay_inside_the_chart() -> None:
    points = tuple((x * 1e6, 1e6 + x) for x in range(11))
    drawn = figures([Chart("many", (Curve("a", points),))])
    assert labels(drawn, "x")[-1] == "10,000,000" and labels(drawn, "y")[0] == "1,000,000"
    ends = re.findall(r'<text class="x" x="([^"]*)"[^>]*>([^<]*)</text>', drawn)
    assert all(float(x) + len(written) * LETTER / 2 <= WIDTH + 0.1 for x, written in ends)
    starts = re.findall(r'<text class="y" x="([^"]*)"[^>]*>([^<]*)</text>', drawn)
    assert all(float(x) - len(written) * LETTER >= 0 for x, written in starts)


def test_a_long_curve_is_thinned_and_keeps_its_ends_and_spikes() -> None:
    points = [(float(x), 1.0) for x in range(100_001)]
    points[54_321] = (54_321.0, 9.0)
    kept = thinned(points)
    assert len(kept) <= POINTS_PER_CURVE + 4
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert points[54_321] in kept
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    drawn = figures([Chart("a", (Curve("b", tuple(points)),))])
    assert drawn.count("<circle") == len(kept)


def test_one_legend_names_every_curve_and_no_two_share_a_color() -> None:
    curves = tuple(Curve(str(n), ((n, 1.0), (n + 1, 2.0))) for n in range(64))
    drawn = figures([Chart("many", curves), Chart("again", curves[:3])])
    assert drawn.count('<ul class="legend">') == 1 and drawn.count("<li") == 64
    assert len(set(re.findall(r"--c:([^}]*)}", drawn))) == 64
    assert drawn.count('class="series color-2"') == 2  # in both charts
    assert all(f"--c:{color_of(n)}" in drawn for n in range(64))
