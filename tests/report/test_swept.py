"""The report of a sweep: metrics against what was swept, cells by their figures, repeats as one curve."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordinator.results.intervals import Estimate, estimate
from coordinator.results.report.blocks import Block, Fold, Plot, TableBlock, Views, at_first
from coordinator.results.report.sections.swept import swept
from coordinator.results.report.sweep_table import SweepTable, read_sweep_table
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


def every(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks with what is folded and all views of choices."""
    for block in blocks:
        yield block
        match block:
            case Fold():
                yield from every(block.blocks)
            case Views():
                for view in block.views.values():
                    yield from every(view)


def changes(sweep: SweepTable) -> list[Block]:
    section, *_ = swept(sweep)
    return list(every(section.blocks))


def plots_of(sweep: SweepTable) -> list[Plot]:
    return [block for block in changes(sweep) if isinstance(block, Plot)]


def tables_of(sweep: SweepTable) -> list[TableBlock]:
    return [block for block in changes(sweep) if isinstance(block, TableBlock)]


def test_what_thresholds_limit_is_drawn_in_its_unit_against_durations_in_any_unit(tmp_path: Path) -> None:
    late, refused, same = "device.latency p95", "device.declined rate", "round.completed rate"
    cells = [
        (
            {"rounds.deadline": text},
            {
                late: figure([seconds, seconds + 1], "duration"),
                refused: figure([share, share + 0.01], "share"),
                same: figure([1.0, 1.0], "event"),
                "round.duration p50": figure([seconds, seconds], "duration"),
            },
        )
        for text, seconds, share in (("2 min", 120.0, 0.02), ("30 s", 30.0, 0.03), ("500 ms", 0.5, 0.2))
    ]
    thresholds = [
        "device.latency: p95 < 60 s",
        "device.declined: rate < 5%",
        "round.completed: rate >= 90%",
    ]
    plots = plots_of(table_of(tmp_path, *cells, thresholds=thresholds))
    assert [(plot.title, plot.x.label) for plot in plots] == [
        (late, "deadline, logarithmic"),
        (refused, "deadline, logarithmic"),
    ]
    assert [[text for _, text in plot.x.ticks] for plot in plots] == [["500 ms", "30 s", "2 min"]] * 2
    assert [plot.y.label for plot in plots] == [f"{late} (min)", f"{refused} (%)"]
    assert "20" in [text for _, text in plots[1].y.ticks]
    assert plots_of(table_of(tmp_path, *cells)) == []


def test_a_metric_is_drawn_against_the_swept_value(tmp_path: Path) -> None:
    cells = [
        ({"privacy.noise_multiplier": text}, {RMSE: figure(values)})
        for text, values in (("0", [0.9, 0.92, 0.94]), ("5", [1.0, 1.0, 1.0]), ("1", [0.95, 0.95, 0.98]))
    ]
    (plot,) = plots_of(table_of(tmp_path, *cells))
    assert plot.title == "rmse at the end"
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
    assert plot.title == "rmse at the end"
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
    assert swept(table_of(tmp_path, ({"a.b": "1"}, {RMSE: figure([1.0])}), ({"a.b": "2"}, {}))) == []


TIME, WASTE = "round.duration p95", "device.wasted_work rate"


def over_selection(folder: Path, *cells: tuple[float, float, float], held: Sequence[int] = ()) -> SweepTable:
    """Return a sweep of round time, waste and rmse, three seeds a cell that scatter by 2 %.

    They scatter upwards in one cell and downwards in the next.
    """
    kinds = ((TIME, "duration"), (WASTE, "event"), (RMSE, "number"))
    written = []
    for at, values in enumerate(cells):
        scatter = (0.98, 1.0, 1.02) if at % 2 else (1.02, 1.0, 0.98)
        limit = {"threshold": "round.duration: p95 < 2 s", "held": 3 if at in held else 1, "of": 3}
        figures = {
            name: figure([value * factor for factor in scatter], unit)
            for (name, unit), value in zip(kinds, values, strict=True)
        }
        settings = {"rounds.over_select": f"{100 + 10 * at}%"}
        written.append({"settings": settings, "runs": [], "thresholds": [limit], "figures": figures})
    (folder / "sweep.json").write_text(json.dumps({"cells": written}), encoding="utf-8")
    table = read_sweep_table(folder)
    assert table is not None
    return table


def test_a_sweep_opens_with_what_it_changed(tmp_path: Path) -> None:
    section, *_ = swept(over_selection(tmp_path, (10.0, 0.07, 0.82), (1.0, 0.13, 0.82), (0.4, 0.17, 0.82)))
    said = [(tile.name, tile.text.replace("\N{NO-BREAK SPACE}", " "), tile.note) for tile in section.answers]
    assert said == [
        ("Round time, p95", "400 ms to 10 s", "best at over_select=120%"),
        ("Wasted work", "7 % to 17 %", "best at over_select=100%"),
        ("rmse", "0.82", "no difference beyond the intervals"),
    ]
    plots = [block.title for block in at_first(section.blocks) if isinstance(block, Plot)]
    assert plots == ["Round time, p95", "Wasted work", "rmse at the end"]


def test_the_pareto_front_has_what_nothing_beats(tmp_path: Path) -> None:
    cells = ((10.0, 0.07, 0.82), (1.0, 0.13, 0.82), (0.4, 0.17, 0.82), (1.2, 0.16, 0.82), (1.0, 0.13, 0.82))
    _, front, kept = swept(over_selection(tmp_path, *cells, held=(1, 2, 3)))
    (table,) = (block for block in front.blocks if isinstance(block, TableBlock))
    # The fourth wastes more and takes longer than the second; equals do not beat each other.
    assert [row[1].text for row in table.rows] == [
        "✓ worth choosing", "✓ worth choosing", "✓ worth choosing", "beaten by 2, 5", "✓ worth choosing",
    ]  # fmt: skip
    assert front.intro == (
        "4 of 5 settings are on the Pareto front, 2 of them hold every promise: over_select=110%; "
        "over_select=120%. Not weighed, as no settings differ beyond the intervals: rmse."
    )
    (chosen,) = (block for block in front.blocks if isinstance(block, Views))
    assert chosen.controls == (
        ("Axes", ("Round time, p95 × Wasted work", "Round time, p95 × rmse", "Wasted work × rmse")),
    )
    plot = chosen.views[0,][0]
    assert isinstance(plot, Plot)
    assert [text for _, _, text in plot.labels] == ["1", "2, 5", "3", "4"]
    assert [entry.name for entry in plot.legend] == ["worth choosing", "another is better"]
    assert kept.intro == "3 of 5 settings hold every threshold in every run."


def test_noise_makes_no_setting_better_than_another(tmp_path: Path) -> None:
    # The fourth is the worst, and worse than the second by all seeds; all else is as the seeds scatter.
    cells = ((1.0, 0.10, 0.82), (1.01, 0.101, 0.82), (0.4, 0.2, 0.82), (1.1, 0.11, 0.82))
    _, front, _ = swept(over_selection(tmp_path, *cells))
    (table,) = (block for block in front.blocks if isinstance(block, TableBlock))
    verdicts = [row[1].text for row in table.rows]
    assert verdicts == ["✓ worth choosing", "✓ worth choosing", "✓ worth choosing", "beaten by 2"]
