"""A sweep: what its settings changed, which of them are worth choosing, and what each cell came to."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.learning_curves import AUDIT_PREFIX
from coordinator.results.intervals import CONFIDENCE, Estimate, difference
from coordinator.results.report.axes import Scale, around, bytes_axis, duration_axis, energy_axis, number_axis
from coordinator.results.report.blocks import (
    Axis,
    Block,
    Fold,
    Plot,
    SectionBlock,
    TableBlock,
    TableCell,
    Tile,
    choice,
)
from coordinator.results.report.charts import Line, line_plot
from coordinator.results.report.people import UNITS, interval, percent, show
from coordinator.results.report.sweep_table import SweepTable, SweptCell, SweptFigure
from coordinator.scenario.metric_names import MetricKind, higher_is_better, is_accuracy
from device_profiles.units import UnitError

Floats = npt.NDArray[np.float64]

_NUMBER: Final = re.compile(r"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(\S*)", re.IGNORECASE)
_MODEL, _LAST = "model.", " last"
_WIDE_RANGE: Final = 10.0
"""Values that differ by more than this factor have a logarithmic axis."""
_APART: Final = 4.5
"""Ticks closer than this, in percent of the axis, would run into each other."""
_CALLED: Final = {
    "round.duration p95": "Round time, p95",
    "device.wasted_work rate": "Wasted work",
    "epsilon zero-out": "Privacy spent, ε",
}
"""What people weigh against what the model is worth, all the less the better, and what it is called."""
_NAMED: Final = 4
"""Settings of the front that are named, at most."""
_MOST_ROWS: Final = 10
"""Cells below each other in one chart, at most."""


@dataclass(frozen=True, slots=True)
class _Swept:
    """A setting whose values are numbers in every cell, without a unit or in units of one kind."""

    path: str
    values: dict[str, float]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


def _swept(sweep: SweepTable) -> list[_Swept]:
    """Return the settings that differ between cells and can be an axis."""
    found = []
    for path in sweep.telling:
        texts = [cell.settings.get(path, "") for cell in sweep.cells]
        values = _numbers(texts)
        if values is not None and len(values) > 1:
            found.append(_Swept(path, values))
    return found


def _numbers(texts: Sequence[str]) -> dict[str, float] | None:
    """Return the values that texts stand for; None where some are no numbers or of another kind."""
    matches = [_NUMBER.fullmatch(text) for text in texts]
    known = [match for match in matches if match is not None]
    if len(known) < len(texts):
        return None
    if len({match[2] for match in known}) == 1:
        return {text: float(match[1]) for text, match in zip(texts, known, strict=True)}
    for kind in (MetricKind.DURATION, MetricKind.BYTES):
        with contextlib.suppress(UnitError):
            return {text: kind.parse_limit(text) for text in texts}
    return None


def _finite(cell: SweptCell, name: str) -> SweptFigure | None:
    figure = cell.figures.get(name)
    return figure if figure is not None and np.isfinite([figure.found.mean, *figure.values]).all() else None


def _scale(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    if low > 0 and high / low >= _WIDE_RANGE:
        room = (high / low) ** 0.06
        return Scale(low / room, high * room, logarithmic=True)
    room = (high - low) * 0.06
    return Scale(low - room, high + room)


def _axis(swept: _Swept, scale: Scale) -> Axis:
    """Return an axis with a tick at each value that was swept, where there is room."""
    ticks: list[tuple[float, str]] = []
    for text, value in sorted(swept.values.items(), key=lambda each: each[1]):
        at = scale.percent(value)
        if not ticks or at - ticks[-1][0] >= _APART:
            ticks.append((at, text))
    return Axis(swept.name + (", logarithmic" if scale.logarithmic else ""), tuple(ticks))


def _half_width(figure: SweptFigure) -> float:
    """Return the half width of the interval; 0 where one run allows none."""
    half_width = figure.found.half_width
    return half_width if half_width is not None and np.isfinite(half_width) else 0.0


def _edges(figures: Sequence[SweptFigure]) -> Floats:
    """Return what a scale must hold: intervals, and the value of each run."""
    sides = [figure.found.mean + side * _half_width(figure) for figure in figures for side in (-1, 1)]
    return np.array([*sides, *(value for figure in figures for value in figure.values)])


def _against(sweep: SweepTable, name: str, swept: _Swept, table: TableBlock) -> Plot | None:
    """Return a figure against a setting, a line for each combination of the others."""
    groups: dict[str, list[tuple[float, str, SweptFigure]]] = {}
    for cell in sweep.cells:
        figure = _finite(cell, name)
        if figure is not None:
            group = sweep.label(cell, without=swept.path)
            text = f"{sweep.label(cell)}: {interval(figure.found, figure.unit)}"
            if sweep.goal is not None:
                # Trials differ in all settings at once: each is a point of its own.
                group = text
            groups.setdefault(group, []).append((swept.values[cell.settings[swept.path]], text, figure))
    known = [figure for points in groups.values() for _, _, figure in points]
    if len({at for points in groups.values() for at, _, _ in points}) < 2:
        return None
    horizontal, vertical = _scale(list(swept.values.values())), around(_edges(known))
    lines = []
    for group, unsorted in groups.items():
        points = sorted(unsorted, key=lambda point: point[0])
        x, figures = np.array([at for at, _, _ in points]), [figure for _, _, figure in points]
        mean = np.array([figure.found.mean for figure in figures])
        half = np.array([_half_width(figure) for figure in figures])
        counts = [len(figure.values) for figure in figures]
        dots = (np.repeat(x, counts), np.array([value for figure in figures for value in figure.values]))
        tips = [text for _, text, _ in points]
        spread = (mean - half, mean + half)
        look = None if sweep.goal is None else "trials"
        lines.append(Line(group, x, mean, tips, group=look, marks=True, spread=spread, bars=True, dots=dots))
    said = _said(name)
    return line_plot(
        said,
        f"Chart of {said} against {swept.path}. " + "; ".join(text for line in lines for text in line.tips),
        lines,
        (horizontal, vertical),
        (_axis(swept, horizontal), _figure_axis(vertical, name, known[0].unit)),
        table,
    )


def _said(name: str) -> str:
    """Return a figure as titles have it: ``rmse at the end``, ``Round time, p95``."""
    return f"{_called(name)} at the end" if _is_of_model(name) else _CALLED.get(name, name)


def _called(name: str) -> str:
    return name.removeprefix(_MODEL).removesuffix(_LAST) if _is_of_model(name) else name


def _is_of_model(name: str) -> bool:
    return name.startswith(_MODEL) and name.endswith(_LAST)


def _figure_axis(scale: Scale, name: str, unit: str, most: int | None = None) -> Axis:
    """Return the axis of a figure by its unit; ``most`` steps at most where that is a plain number."""
    called = _called(name)
    match unit:
        case MetricKind.DURATION.value:
            return duration_axis(scale, called)
        case MetricKind.BYTES.value:
            return bytes_axis(scale, called)
        case MetricKind.ENERGY.value:
            return energy_axis(scale, called)
        case MetricKind.SHARE.value | MetricKind.EVENT.value:
            scale, called = Scale(scale.low * 100, scale.high * 100), f"{called} (%)".strip()
    return number_axis(scale, called) if most is None else number_axis(scale, called, most=most)


def _by_cell(sweep: SweepTable, name: str, table: TableBlock) -> Plot | None:
    """Return a figure of every cell, the cells below each other."""
    known = [(cell, figure) for cell in sweep.cells if (figure := _finite(cell, name)) is not None]
    if not 2 <= len(known) <= _MOST_ROWS:
        return None
    horizontal, vertical = around(_edges([figure for _, figure in known])), Scale(0.0, float(len(known)))
    ticks, lines = [], []
    for row, (cell, figure) in enumerate(known):
        y = len(known) - row - 0.5
        label, mean, half = sweep.label(cell), figure.found.mean, _half_width(figure)
        text = f"{label}: {interval(figure.found, figure.unit)}"
        ticks.append((vertical.percent(y), label))
        dots = (np.array(figure.values), np.full(len(figure.values), y))
        ends = Line(label, np.array([mean - half, mean + half]), np.array([y, y]), [text] * 2, group="cells")
        lines += [ends, Line(label, np.array([mean]), np.array([y]), [text], group="cells", dots=dots)]
    said = _said(name)
    return line_plot(
        said,
        f"Chart of {said}. " + "; ".join(line.tips[0] for line in lines[::2]),
        lines,
        (horizontal, vertical),
        # Names of cells leave a narrow chart little room.
        (_figure_axis(horizontal, name, known[0][1].unit, most=4), Axis("", tuple(ticks))),
        table,
    )


def _table(sweep: SweepTable, names: Sequence[str], caption: str) -> TableBlock:
    rows = []
    for cell in sweep.cells:
        label = sweep.label(cell)
        cells = []
        for name in names:
            figure = cell.figures.get(name)
            if figure is None:
                cells.append(TableCell("–"))
                continue
            mean = figure.found.mean
            number = mean if np.isfinite(mean) else None
            shown = interval(figure.found, figure.unit)
            cells.append(TableCell(shown, number, f"{sweep.name}[{label}].{name}"))
        rows.append((TableCell(label), *cells))
    return TableBlock(caption, ("cell", *names), tuple(rows), wide=True)


def _all_settings(sweep: SweepTable) -> TableBlock | None:
    """Return the settings of each cell; None where their names say it all."""
    paths = list(dict.fromkeys(path for cell in sweep.cells for path in cell.settings))
    varying = [path for path in paths if len({cell.settings.get(path) for cell in sweep.cells}) > 1]
    if set(varying) <= set(sweep.telling):
        return None
    rows = tuple(
        (TableCell(sweep.label(cell)), *(TableCell(cell.settings.get(path, "–")) for path in varying))
        for cell in sweep.cells
    )
    caption = "All settings in which the cells differ; they are called by those that tell them apart."
    return TableBlock(caption, ("cell", *varying), rows, text_columns=1 + len(varying), wide=True)


@dataclass(frozen=True, slots=True)
class _Aim:
    """A figure that people weigh against others: what it is called, and which way is better."""

    name: str
    called: str
    higher: bool = False


def _aims(sweep: SweepTable) -> list[_Aim]:
    """Return round time, waste, what the model is worth and ε, as far as the sweep knows and changes them.

    Of a tuning first comes what it was for.
    """
    known = dict.fromkeys(name for cell in sweep.cells for name in cell.figures)
    models = [name for name in known if _is_of_model(name) and is_accuracy(_called(name))]
    model = next((name for name in models if name in sweep.limited), models[0] if models else None)
    found = []
    for name in _CALLED:
        found += [_Aim(name, _CALLED[name])] if name in _differing(sweep) else []
    if model is not None:
        found.append(_Aim(model, _called(model), higher_is_better(_called(model))))
    goal = sweep.goal
    if goal is None or goal.figure not in known:
        return found
    called = _called(goal.figure) if _is_of_model(goal.figure) else _CALLED.get(goal.figure, goal.figure)
    others = [aim for aim in found if aim.name != goal.figure]
    return [_Aim(goal.figure, called, goal.maximise), *others]


def _differing(sweep: SweepTable) -> list[str]:
    """Return the figures in which finished cells differ."""
    found: dict[str, set[Estimate]] = {}
    for cell in sweep.cells:
        for name, figure in cell.figures.items():
            found.setdefault(name, set()).add(figure.found)
    return [name for name, estimates in found.items() if len(estimates) > 1]


def _gain(first: SweptFigure, second: SweptFigure, aim: _Aim) -> int:
    """Return 1 where the second is better by more than the interval between them, -1 where worse, or 0."""
    change = difference(first.by_seed, second.by_seed).estimate
    if abs(change.mean) <= (change.half_width or 0.0):
        return 0
    return 1 if (change.mean > 0) == aim.higher else -1


def _weighed(cells: Mapping[int, SweptCell], aims: Sequence[_Aim]) -> list[_Aim]:
    """Return the aims in which some cells differ by more than the interval between them."""
    pairs = list(itertools.combinations(cells.values(), 2))
    return [
        aim for aim in aims if any(_gain(a.figures[aim.name], b.figures[aim.name], aim) for a, b in pairs)
    ]


def _beaten_by(cells: Mapping[int, SweptCell], aims: Sequence[_Aim]) -> dict[int, list[int]]:
    """Return by which others each cell is beaten: of means nowhere worse, and somewhere surely better."""

    def beats(one: SweptCell, other: SweptCell) -> bool:
        pairs = [(other.figures[aim.name], one.figures[aim.name], aim) for aim in aims]
        worse = any(
            (new.found.mean - old.found.mean) * (1 if aim.higher else -1) < 0 for old, new, aim in pairs
        )
        return not worse and any(_gain(*pair) > 0 for pair in pairs)

    return {
        at: [other for other, found in cells.items() if other != at and beats(found, cell)]
        for at, cell in cells.items()
    }


def _answer(sweep: SweepTable, aim: _Aim) -> Tile:
    """Return from where to where a figure goes, and which cell is best.

    Of the figure of a tuning it is the best that held every threshold.
    """
    known = [(figure, cell) for cell in sweep.cells if (figure := _finite(cell, aim.name)) is not None]
    if not known:
        return Tile(aim.called, "no number", mood="bad")
    ordered = sorted(known, key=lambda pair: pair[0].found.mean)
    (low, _), (high, _) = ordered[0], ordered[-1]
    best, worst = (ordered[-1], ordered[0]) if aim.higher else (ordered[0], ordered[-1])
    unit = UNITS.get(low.unit, "")
    texts = show(low.found.mean, unit), show(high.found.mean, unit)
    text = texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
    goal = sweep.goal
    if goal is not None and aim.name == goal.figure:
        if goal.best is None:
            return Tile(aim.called, text, note="no trial held every threshold", mood="bad")
        cell = sweep.cells[goal.best]
        at_best = show(cell.figures[aim.name].found.mean, unit)
        return Tile(
            aim.called, at_best, note=f"tuned: trial {goal.best + 1}, {sweep.label(cell)}", mood="good"
        )
    if _gain(worst[0], best[0], aim) <= 0:
        return Tile(aim.called, text, note="no difference beyond the intervals")
    return Tile(aim.called, text, note=f"best at {sweep.label(best[1])}")


def _changes(sweep: SweepTable, aims: Sequence[_Aim]) -> SectionBlock:
    """Return the figures that count against the settings, as small charts."""
    names = list(dict.fromkeys(name for cell in sweep.cells for name in cell.figures))
    differing = _differing(sweep)
    counted = [aim.name for aim in aims]
    counted += [
        name
        for name in differing
        if name not in counted and (name in sweep.limited or name.startswith(AUDIT_PREFIX))
    ]
    others = [name for name in names if _is_of_model(name) and name not in counted]
    blocks: list[Block] = [*_multiples(sweep, counted, "swept-against")]
    if others:
        blocks.append(Fold("Other metrics of the model", _multiples(sweep, others, "others-against")))
    caption = f"Mean ± {percent(CONFIDENCE)} interval over the seeds, of all figures in which cells differ"
    blocks.append(Fold("All figures of the cells", (_table(sweep, differing, caption),)))
    settings = _all_settings(sweep)
    if settings is not None:
        blocks.append(Fold("All settings of the cells", (settings,)))
    intro = f"Bars are {percent(CONFIDENCE)} intervals of the mean over the seeds, small dots single runs."
    if not any(one.found.half_width is not None for cell in sweep.cells for one in cell.figures.values()):
        intro = "Each point is one run: without repeats there are no intervals."
    answers = tuple(_answer(sweep, aim) for aim in aims)
    title = f"What did the {'sweep' if sweep.goal is None else 'tuning'} {sweep.name} change?"
    return SectionBlock(f"sweep-{sweep.name}", title, tuple(blocks), intro, wide=True, answers=answers)


def _multiples(sweep: SweepTable, names: Sequence[str], key: str) -> tuple[Block, ...]:
    """Return a small chart of each figure, against a setting that a control chooses, or else by cell."""
    tables = {name: _table(sweep, [name], f"{name}, mean ± {percent(CONFIDENCE)} interval") for name in names}
    axes = _swept(sweep)
    if not axes:
        plots = [_by_cell(sweep, name, tables[name]) for name in names]
        return tuple(plot for plot in plots if plot is not None)
    options: dict[str, tuple[Block, ...]] = {}
    for axis in axes:
        found = [_against(sweep, name, axis, tables[name]) for name in names]
        if any(plot is not None for plot in found):
            options[axis.name] = tuple(plot for plot in found if plot is not None)
    return choice(f"{key}-{sweep.name}", "Against", options)


_WORTH, _BEATEN = "worth choosing", "another is better"


def _worth(sweep: SweepTable, aims: Sequence[_Aim]) -> SectionBlock | None:
    """Return the Pareto front of the cells; None where there is nothing to weigh."""
    cells = {
        at: cell
        for at, cell in enumerate(sweep.cells, start=1)
        if all(_finite(cell, aim.name) is not None for aim in aims)
    }
    if len(aims) < 2 or len(cells) < 2:
        return None
    weighed = _weighed(cells, aims)
    beaten = _beaten_by(cells, weighed)
    rows = []
    for at, cell in cells.items():
        figures = [cell.figures[aim.name] for aim in aims]
        beaters = ", ".join(map(str, beaten[at]))
        rows.append(
            (
                TableCell(f"{at}: {sweep.label(cell)}"),
                TableCell(f"beaten by {beaters}") if beaters else TableCell(f"✓ {_WORTH}", mood="good"),
                *(TableCell(interval(one.found, one.unit), one.found.mean) for one in figures),
                _kept(cell),
            )
        )
    headers = ("settings", "verdict", *(aim.called for aim in aims), "promises")
    caption = (
        "A setting is beaten where another is better in one of these by more than the interval between them, "
        "and in none worse; the rest are the Pareto front."
    )
    table = TableBlock(caption, headers, tuple(rows), text_columns=2, wide=True)
    options: dict[str, tuple[Block, ...]] = {}
    for x, y in itertools.combinations(aims, 2):
        options[f"{x.called} × {y.called}"] = (_front(sweep, cells, beaten, (x, y)),)
    intro = _recommended(sweep, [cell for at, cell in cells.items() if not beaten[at]], len(cells))
    unweighed = [aim.called for aim in aims if aim not in weighed]
    if unweighed:
        intro += f" Not weighed, as no settings differ beyond the intervals: {', '.join(unweighed)}."
    blocks = (*choice(f"front-{sweep.name}", "Axes", options), table)
    title = "Which settings are worth choosing?"
    return SectionBlock(f"front-of-{sweep.name}", title, blocks, intro, wide=True)


def _recommended(sweep: SweepTable, front: Sequence[SweptCell], of: int) -> str:
    """Return which settings are on the front, and which of these hold what was promised."""
    said = f"{len(front)} of {of} settings are on the Pareto front"
    named = list(front)
    if any(cell.thresholds for cell in front):
        named = [cell for cell in front if _holds(cell)]
        said += f", {len(named)} of them hold every promise"
    labels = [sweep.label(cell) for cell in named[:_NAMED]]
    if len(named) > _NAMED:
        labels.append(f"and {len(named) - _NAMED} more")
    return f"{said}: {'; '.join(labels)}." if labels else f"{said}."


def _kept(cell: SweptCell) -> TableCell:
    """Return whether every run of a cell held every threshold."""
    if not cell.thresholds:
        return TableCell("–")
    held = _holds(cell)
    return TableCell("✓ all" if held else "✗ missed", mood="good" if held else "bad")


def _holds(cell: SweptCell) -> bool:
    return bool(cell.thresholds) and all(held == of for held, of in cell.thresholds.values())


def _front(
    sweep: SweepTable,
    cells: Mapping[int, SweptCell],
    beaten: Mapping[int, Sequence[int]],
    aims: tuple[_Aim, _Aim],
) -> Plot:
    """Return the cells as points, by two figures, with the intervals of both."""
    x, y = aims
    figures = {at: (cell.figures[x.name], cell.figures[y.name]) for at, cell in cells.items()}
    scales = (
        around(_edges([one for one, _ in figures.values()])),
        around(_edges([one for _, one in figures.values()])),
    )
    units = [one.unit for one in next(iter(figures.values()))]
    lines: list[Line] = []
    places: dict[tuple[int, int], list[str]] = {}
    for at, (across, up) in figures.items():
        mean = np.array([across.found.mean]), np.array([up.found.mean])
        half = _half_width(across), _half_width(up)
        said = f"{at}: {sweep.label(cells[at])}: {x.called} {interval(across.found, across.unit)}, " \
               f"{y.called} {interval(up.found, up.unit)}"  # fmt: skip
        group = _BEATEN if beaten[at] else _WORTH
        lines.append(
            Line(said, *mean, [said], group=group, spread=(mean[1] - half[1], mean[1] + half[1]), bars=True)
        )
        ends = np.array([mean[0][0] - half[0], mean[0][0] + half[0]])
        lines.append(Line(said, ends, np.repeat(mean[1], 2), [said] * 2, group=group, thin=True))
        place = (round(scales[0].percent(float(mean[0][0]))), round(scales[1].percent(float(mean[1][0]))))
        places.setdefault(place, []).append(str(at))
    plot = line_plot(
        f"{y.called} against {x.called}",
        "Chart of the settings as numbered points. " + "; ".join(line.name for line in lines[::2]),
        lines,
        scales,
        (_figure_axis(scales[0], x.name, units[0]), _figure_axis(scales[1], y.name, units[1])),
        order=(_WORTH, _BEATEN),
    )
    return replace(plot, labels=tuple((*place, ", ".join(names)) for place, names in places.items()))


def _promises(sweep: SweepTable) -> SectionBlock | None:
    """Return in how many runs of each cell each threshold held."""
    names = list(dict.fromkeys(name for cell in sweep.cells for name in cell.thresholds))
    if not names:
        return None

    def shown(found: tuple[int, int] | None) -> TableCell:
        if found is None:
            return TableCell("–")
        held, of = found
        good = held == of
        return TableCell(
            f"{'✓' if good else '✗'} {held} of {of}", held / max(of, 1), mood="good" if good else "bad"
        )

    rows = tuple(
        (TableCell(sweep.label(cell)), *(shown(cell.thresholds.get(name)) for name in names))
        for cell in sweep.cells
    )
    kept = sum(map(_holds, sweep.cells))
    text = f"held by {kept} of {len(sweep.cells)}"
    table = TableBlock("Runs in which each threshold held", ("settings", *names), rows, wide=True)
    note = "settings in which every run held them all"
    answer = Tile("Promises", text, note=note, mood="" if kept else "bad")
    intro = f"{kept} of {len(sweep.cells)} settings hold every threshold in every run."
    title = "Which settings hold what was promised?"
    return SectionBlock(f"promises-of-{sweep.name}", title, (table,), intro, wide=True, answers=(answer,))


def swept(sweep: SweepTable) -> list[SectionBlock]:
    """Return what a sweep shows: what it changed, what is worth choosing, and what was held.

    What counts is round time, waste, what the model is worth, ε, and what thresholds limit or audits find,
    where it differs. Nothing is shown of fewer than two finished cells.
    """
    if len([cell for cell in sweep.cells if cell.figures]) < 2:
        return []
    aims = _aims(sweep)
    found = (_changes(sweep, aims), _worth(sweep, aims), _promises(sweep))
    return [section for section in found if section is not None]
