"""Scales, ticks and distributions."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.results.report.axes import (
    Scale,
    around,
    bytes_axis,
    duration_axis,
    duration_scale,
    from_zero,
    number_axis,
    round_axis,
)
from coordinator.results.report.charts import (
    CDF_POINTS,
    Line,
    distribution,
    line_plot,
    stacked_bars,
    stacked_columns,
    thin,
)


def test_a_scale_maps_its_ends_to_the_edges() -> None:
    assert Scale(2.0, 4.0)(np.array([2.0, 3.0, 4.0])).tolist() == [0.0, 500.0, 1000.0]
    logarithmic = Scale(0.1, 10.0, logarithmic=True)
    assert logarithmic(np.array([0.0, 0.1, 1.0, 10.0])) == pytest.approx([0.0, 0.0, 500.0, 1000.0])
    assert Scale(0.0, 4.0).percent(1.0) == 25.0


@pytest.mark.parametrize(
    ("high", "texts", "label"),
    [
        (0.9, ["0", "200", "400", "600", "800"], "t (ms)"),
        (58.0, ["0", "20", "40", "60"], "t (s)"),
        (600.0, ["0", "2", "4", "6", "8", "10"], "t (min)"),
        (90_000.0, ["0", "5", "10", "15", "20", "25"], "t (h)"),
        (1e6, ["0", "5", "10"], "t (d)"),
    ],
)
def test_durations_are_in_one_unit_per_axis(high: float, texts: list[str], label: str) -> None:
    axis = duration_axis(from_zero(high), "t")
    assert ([text for _, text in axis.ticks], axis.label) == (texts, label)


def test_sizes_are_in_one_unit_per_axis() -> None:
    axis = bytes_axis(Scale(0.0, 3 * 2.0**20), "sent")
    assert (axis.label, [text for _, text in axis.ticks]) == (
        "sent (MiB)",
        ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0"],
    )


def test_ticks_show_the_digits_that_tell_them_apart() -> None:
    ticks = number_axis(around(np.array([0.912, 0.918])), "rmse").ticks
    assert [text for _, text in ticks] == ["0.912", "0.914", "0.916", "0.918"]
    assert all(0 <= at <= 100 for at, _ in ticks)


def test_constant_values_have_a_scale() -> None:
    for value in (0.0, 5.0, -3.0):
        scale = around(np.array([value, value]))
        assert scale.low < value < scale.high
    assert from_zero(0.0).high > 0
    assert duration_scale(np.zeros(3)) == Scale(0.0, 1.0)


def test_far_apart_durations_are_drawn_logarithmically() -> None:
    assert not duration_scale(np.array([1.0, 20.0])).logarithmic
    scale = duration_scale(np.array([0.0, 0.1, 100.0]))
    assert scale.logarithmic
    assert [text for _, text in duration_axis(scale, "t").ticks] == ["100 ms", "1 s", "10 s", "100 s"]


def test_round_numbers_stand_under_their_columns() -> None:
    axis = round_axis(np.arange(1, 19))
    assert [text for _, text in axis.ticks] == ["5", "10", "15"]
    assert [at for at, _ in axis.ticks] == pytest.approx([4.5 / 18 * 100, 9.5 / 18 * 100, 14.5 / 18 * 100])
    assert [text for _, text in round_axis(np.array([7])).ticks] == ["7"]
    assert [text for _, text in round_axis(np.arange(1, 1001, 3)).ticks] == [
        "200", "400", "600", "800", "1,000",
    ]  # fmt: skip


def test_a_distribution_has_few_points_that_all_occurred() -> None:
    values = np.random.default_rng(1).exponential(size=100_000)
    x, y = distribution(values, 200_000)
    assert len(x) == CDF_POINTS
    assert np.isin(x, values).all()
    assert (np.diff(x) >= 0).all()
    assert (x[0], x[-1], y[-1]) == (values.min(), values.max(), 0.5)
    for at, share in zip(x, y, strict=True):
        assert (values <= at).sum() / 200_000 == share


def test_few_values_are_all_shown() -> None:
    x, y = distribution(np.array([3.0, 1.0]), 4)
    assert (x.tolist(), y.tolist()) == ([1.0, 3.0], [0.25, 0.5])


def test_thinning_keeps_both_ends() -> None:
    assert thin(3).tolist() == [0, 1, 2]
    kept = thin(12_345)
    assert (len(kept), kept[0], kept[-1]) == (400, 0, 12_344)
    assert (np.diff(kept) > 0).all()
    assert thin(0).tolist() == []


def test_columns_stack_from_the_bottom() -> None:
    scale = Scale(0.0, 4.0)
    axes = number_axis(scale, ""), number_axis(scale, "")
    heights = np.array([[1.0, 2.0], [0.0, 4.0]])
    plot = stacked_columns("t", "d", heights, [("a", "A"), ("b", "B")], ["first", "second"], scale, axes)
    assert [entry.name for entry in plot.legend] == ["a", "b"]
    assert plot.drawing.count('class="fill A"') == 1
    # The first column of a ends at a quarter of the height; that of b begins there and ends at three.
    assert "M30 750h440V1000h-440z" in plot.drawing
    assert "M30 250h440V750h-440z" in plot.drawing
    assert plot.tips == ((250.0, 250.0, "first"), (750.0, 0.0, "second"))


def test_a_single_point_is_a_dot_and_needs_no_legend() -> None:
    scales = Scale(0.0, 1.0), Scale(0.0, 1.0)
    axes = number_axis(scales[0], ""), number_axis(scales[1], "")
    plot = line_plot("t", "d", [Line("one", np.array([0.5]), np.array([0.5]), ["tip"])], scales, axes)
    assert "dot" in plot.drawing
    assert plot.legend == ()
    assert plot.tips == ((500.0, 500.0, "tip"),)


def test_bars_are_as_long_as_their_values() -> None:
    bars = stacked_bars(
        "t", "d", [("x", [1.0, 3.0], "4"), ("y", [0.0, 2.0], "2")], [("a", "A"), ("b", "B")],
        [["1", "3"], ["0", "2"]],
    )  # fmt: skip
    assert [(style, width) for style, width, _ in bars.bars[0].pieces] == [("A", 25.0), ("B", 75.0)]
    assert [(style, width) for style, width, _ in bars.bars[1].pieces] == [("B", 50.0)]
