"""The report of a sweep: metrics against what was swept, cells by their figures, repeats as one curve."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metrics_samples import sample_evaluation, sample_round
from report_reading import Page

from coordinator.engine.facts import MetricValue
from coordinator.results.analysis.learning_curves import Curve, mean_curve
from coordinator.results.intervals import Estimate, estimate
from coordinator.results.report.blocks import Plot, TableBlock
from coordinator.results.report.page import report_of
from coordinator.results.report.sections.swept import swept
from coordinator.results.report.sweep_table import SweepTable, read_sweep_table
from coordinator.results.tables.writer import RunWriter
from coordinator.results.verdicts import json_number

RMSE = "model.rmse last"


def figure(values: Sequence[float], unit: str = "number") -> dict[str, Any]:
    found = estimate(values) if all(map(math.isfinite, values)) else Estimate(math.inf, None, len(values))
    return {
        "unit": unit,
        "mean": json_number(found.mean),
        "half_width": json_number(found.half_width),
        "n": found.n,
        "values": {str(seed): json_number(value) for seed, value in enumerate(values, start=1)},
    }


def table_of(
    folder: Path, *cells: tuple[Mapping[str, str], Mapping[str, Any]], thresholds: Sequence[str] = ()
) -> SweepTable:
    """Return the table of a sweep of cells, each of settings and figures, without runs."""
    judged = [{"threshold": text, "held": 1, "of": 1} for text in thresholds]
    written = [
        {"settings": settings, "runs": [], "thresholds": judged, "figures": figures}
        for settings, figures in cells
    ]
    (folder / "sweep.json").write_text(json.dumps({"cells": written}), encoding="utf-8")
    table = read_sweep_table(folder)
    assert table is not None
    return table


def plots_of(sweep: SweepTable) -> list[Plot]:
    section = swept(sweep)
    assert section is not None
    return [block for block in section.blocks if isinstance(block, Plot)]


def tables_of(sweep: SweepTable) -> list[TableBlock]:
    section = swept(sweep)
    assert section is not None
    return [block for block in section.blocks if isinstance(block, TableBlock)]


def test_what_thresholds_limit_is_drawn_in_its_unit_against_durations_in_any_unit(tmp_path: Path) -> None:
    late, wasted, same = "round.duration p95", "device.wasted_work rate", "round.completed rate"
    cells = [
        (
            {"rounds.deadline": text},
            {
                late: figure([seconds, seconds + 1], "duration"),
                wasted: figure([share, share + 0.01], "share"),
                same: figure([1.0, 1.0], "event"),
                "round.duration p50": figure([seconds, seconds], "duration"),
            },
        )
        for text, seconds, share in (("2 min", 120.0, 0.02), ("30 s", 30.0, 0.03), ("500 ms", 0.5, 0.2))
    ]
    thresholds = [
        "round.duration: p95 < 60 s",
        "device.wasted_work: rate < 5%",
        "round.completed: rate >= 90%",
    ]
    plots = plots_of(table_of(tmp_path, *cells, thresholds=thresholds))
    assert [plot.title for plot in plots] == [f"{late} against deadline", f"{wasted} against deadline"]
    assert [[text for _, text in plot.x.ticks] for plot in plots] == [["500 ms", "30 s", "2 min"]] * 2
    assert [plot.y.label for plot in plots] == [f"{late} (min)", f"{wasted} (%)"]
    assert "20" in [text for _, text in plots[1].y.ticks]
    assert plots_of(table_of(tmp_path, *cells)) == []


def test_a_metric_is_drawn_against_the_swept_value(tmp_path: Path) -> None:
    cells = [
        ({"privacy.noise_multiplier": text}, {RMSE: figure(values)})
        for text, values in (("0", [0.9, 0.92, 0.94]), ("5", [1.0, 1.0, 1.0]), ("1", [0.95, 0.95, 0.98]))
    ]
    (plot,) = plots_of(table_of(tmp_path, *cells))
    assert plot.title == "rmse at the end against noise_multiplier"
    assert plot.x.label == "noise_multiplier"
    # By value and not as the cells came; 6 % of room on either side of 0 to 5.
    assert [text for _, text in plot.x.ticks] == ["0", "1", "5"]
    assert [x for x, _, _ in plot.tips] == pytest.approx([53.6, 232.1, 946.4], abs=0.06)
    assert [text for _, _, text in plot.tips] == [
        "noise_multiplier=0: 0.92 ± 0.05",
        "noise_multiplier=1: 0.96 ± 0.043",
        "noise_multiplier=5: 1 ± 0",
    ]
    (bars,) = re.findall(r'class="line s0 bar" d="([^"]*)"', plot.drawing)
    ends = [tuple(map(float, pair)) for pair in re.findall(r"M\S+ (\S+?)V([^M]+)", bars)]
    whole = estimate([0.9, 0.92, 0.94]).half_width
    other = estimate([0.95, 0.95, 0.98]).half_width
    assert whole is not None
    assert other is not None
    # Lengths on one scale: as the half widths to each other, and none for equal runs.
    assert (ends[0][0] - ends[0][1]) / (ends[1][0] - ends[1][1]) == pytest.approx(whole / other, rel=0.01)
    assert ends[2][0] == ends[2][1]
    (dots,) = re.findall(r'class="line s0 seed dot" d="([^"]*)"', plot.drawing)
    assert dots.count("M") == 9


def test_values_of_many_magnitudes_have_a_logarithmic_axis(tmp_path: Path) -> None:
    cells = [({"data.alpha": text}, {RMSE: figure([1.0, 0.9])}) for text in ("0.01", "1", "100")]
    (plot,) = plots_of(table_of(tmp_path, *cells))
    assert plot.x.label == "alpha, logarithmic"
    middle = [x for x, _, _ in plot.tips]
    assert middle[1] == pytest.approx(500)
    assert middle[1] - middle[0] == pytest.approx(middle[2] - middle[1])


def test_other_settings_are_lines_of_their_own(tmp_path: Path) -> None:
    cells = [
        ({"data.alpha": alpha, "learning.client.steps": steps}, {RMSE: figure([float(alpha), float(steps)])})
        for alpha in ("0.5", "1")
        for steps in ("1", "4")
    ]
    first, second = plots_of(table_of(tmp_path, *cells))
    assert [entry.name for entry in first.legend] == ["steps=1", "steps=4"]
    assert [entry.name for entry in second.legend] == ["alpha=0.5", "alpha=1"]


def test_units_stay_with_the_values(tmp_path: Path) -> None:
    cells = [({"rounds.deadline": text}, {RMSE: figure([0.9])}) for text in ("30 s", "60 s")]
    (plot,) = plots_of(table_of(tmp_path, *cells))
    assert [text for _, text in plot.x.ticks] == ["30 s", "60 s"]


@pytest.mark.parametrize(
    "values",
    [("30 s", "1 MiB"), ("30 s", "10"), ("1 parsec", "2 s"), ("1", "none"), ("fedrecon", "lipm")],
)
def test_what_is_no_axis_is_drawn_cell_by_cell(tmp_path: Path, values: Sequence[str]) -> None:
    cells = [
        ({"learning.of": text}, {RMSE: figure(found)})
        for text, found in zip(values, ([0.9, 0.92, 0.94], [1.0, 1.0, 1.0]), strict=True)
    ]
    (plot,) = plots_of(table_of(tmp_path, *cells))
    assert plot.title == "rmse at the end, by cell"
    assert [text for _, text in plot.y.ticks] == [f"of={text}" for text in values]
    # The first stands above the second; the interval of equal runs has no length.
    ends = [(x, y) for x, y, _ in plot.tips]
    assert [y for _, y in ends] == [250.0] * 3 + [750.0] * 3
    assert ends[0][0] < ends[2][0] < ends[1][0]
    assert ends[3] == ends[4] == ends[5]


def test_figures_are_by_cell_and_those_alike_in_all_are_left_out(tmp_path: Path) -> None:
    rmse, alike = figure([0.9, 0.92]), figure([1.0, 1.0])
    sweep = table_of(
        tmp_path,
        ({"a.b": "1"}, {RMSE: rmse, "epsilon": figure([math.inf]), "round.completed rate": alike}),
        ({"a.b": "2"}, {RMSE: rmse, "epsilon": figure([3.0]), "round.completed rate": alike}),
        ({"a.b": "3"}, {}),
    )
    (table,) = tables_of(sweep)
    assert table.headers == ("cell", "epsilon")
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["b=1", "inf"],
        ["b=2", "3"],
        ["b=3", "–"],
    ]
    assert table.rows[1][1].metric == f"{tmp_path.name}[b=2].epsilon"
    assert (table.rows[0][1].number, table.rows[1][1].number) == (None, 3.0)


def test_a_run_that_diverged_is_in_the_table_and_in_no_chart(tmp_path: Path) -> None:
    cells = [
        ({"a.b": text}, {RMSE: figure(values)})
        for text, values in (("1", [0.9, 0.8]), ("2", [math.inf, 0.9]), ("3", [1.0, 1.1]))
    ]
    sweep = table_of(tmp_path, *cells)
    (plot,) = plots_of(sweep)
    assert [text.split(":")[0] for _, _, text in plot.tips] == ["b=1", "b=3"]
    assert tables_of(sweep)[0].rows[1][1].text == "inf"


def test_settings_that_go_together_are_told_once_and_listed(tmp_path: Path) -> None:
    cells = [
        ({"rounds.count": text, "learning.schedule.rounds": text}, {RMSE: figure([value])})
        for text, value in (("25", 1.0), ("50", 0.9))
    ]
    sweep = table_of(tmp_path, *cells)
    assert len(plots_of(sweep)) == 1
    assert tables_of(sweep)[-1].headers == ("cell", "rounds.count", "learning.schedule.rounds")


def test_a_sweep_of_less_than_two_cells_has_nothing_to_show(tmp_path: Path) -> None:
    assert swept(table_of(tmp_path, ({"a.b": "1"}, {RMSE: figure([1.0])}), ({"a.b": "2"}, {}))) is None


def curve(rounds: Sequence[int], values: Sequence[float], **changes: Any) -> Curve:
    n = len(rounds)
    empty = {"time_s": np.zeros(n), "bytes": np.zeros(n), "energy_j": np.zeros(n)}
    costs = {**empty, "epsilon": np.full(n, np.nan), **changes}
    return Curve("rmse", "test", "seen", np.array(rounds), value=np.array(values), **costs)


def test_the_mean_of_curves_is_over_the_rounds_that_all_have() -> None:
    first = curve([0, 2, 4], [1.0, 0.8, 0.6], time_s=np.array([0.0, 2.0, 4.0]))
    second = curve([0, 4, 6], [0.8, 1.0, 0.2], time_s=np.array([0.0, 6.0, 9.0]))
    found = mean_curve([first, second])
    assert found is not None
    assert found.curve.name == "rmse (test, seen users)"
    assert found.curve.round.tolist() == [0, 4]
    assert found.curve.value == pytest.approx([0.9, 0.8])
    assert found.curve.time_s.tolist() == [0.0, 5.0]
    assert (found.low.tolist(), found.high.tolist()) == ([0.8, 0.6], [1.0, 1.0])
    assert mean_curve([first, curve([1, 3], [1.0, 1.0])]) is None


def write_run(folder: Path, rmse: Sequence[float], *, epsilon: float | None) -> None:
    with RunWriter(folder) as writer:
        for number, value in enumerate(rmse, start=1):
            writer.write_round(sample_round(number, epsilon=epsilon))
            writer.write("evaluations", sample_evaluation(number, [MetricValue("rmse", value, number)]))
        writer.finish()
    (folder / "manifest.json").write_text(
        json.dumps({"status": "finished", "title": "A <study>"}), encoding="utf-8"
    )


def test_repeats_are_one_curve_with_a_band(tmp_path: Path) -> None:
    cells = []
    for text, epsilon in (("0", math.inf), ("2", 3.0)):
        names = []
        for seed in (1, 2):
            names.append(f"run-{text}-{seed}")
            (tmp_path / names[-1]).mkdir()
            write_run(tmp_path / names[-1], [1.0, 0.9 - 0.1 * seed, 0.7], epsilon=epsilon)
        cells.append({
            "settings": {"privacy.noise_multiplier": text},
            "runs": [{"directory": name, "seed": seed} for seed, name in enumerate(names, start=1)],
            "figures": {RMSE: figure([0.7, 0.7])},
        })  # fmt: skip
    (tmp_path / "sweep.json").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    text = report_of([tmp_path])
    page = Page(text)
    assert page.texts["h1"] == ["A <study>: 4 runs compared"]
    assert page.headings[0] == f"What was swept: {tmp_path.name}"
    assert page.figures[f"{tmp_path.name}[noise_multiplier=0].{RMSE}"] == 0.7
    charts = dict(re.findall(r"<figcaption>(rmse[^<]*)</figcaption>(.*?)</figure>", text, re.DOTALL))
    ways = ("rounds", "simulated time", "bytes sent", "energy", "ε (zero-out)")
    assert [name.rpartition(" against ")[2] for name in charts] == ["noise_multiplier", *ways]
    by_rounds = charts["rmse (test, seen users) against rounds"]
    assert by_rounds.count("<polyline") == by_rounds.count("<polygon") == 2
    assert "noise_multiplier=2: 0.75 after round 2" in by_rounds
    # An infinite epsilon has no place on an axis; the other cell looks as it does elsewhere.
    by_epsilon = charts["rmse (test, seen users) against ε (zero-out)"]
    assert by_epsilon.count("<polyline") == 1
    assert 'class="line s1"' in by_epsilon
