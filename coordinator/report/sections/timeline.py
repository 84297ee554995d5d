"""Phases and faults over the rounds of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.report.axes import round_axis, show
from coordinator.report.blocks import Cell, Lanes, Section, Span, Table
from coordinator.report.view import RunView
from device_profiles.quantities import UnitError
from device_profiles.units import parse_duration_s
from edge.vocabulary import RoundOutcome, label

Wholes = npt.NDArray[np.int64]


def _runs(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of each run of equal values."""
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *cuts.tolist(), len(values)]
    yield from ((a, b - 1) for a, b in itertools.pairwise(edges) if b > a)


@dataclass(frozen=True, slots=True)
class FaultLane:
    """A fault over the rounds: its name, bool [rounds] when it was on, and what it is in words."""

    name: str
    on: npt.NDArray[np.bool_]
    what: str


def fault_lanes(view: RunView, phases: list[str | None]) -> list[FaultLane]:
    """Return the faults of a run, from its scenario: they are on in the rounds that they are meant for.

    Parameters
    ----------
    phases : of every round.
    """
    faults = view.scenario.get("faults") or []
    return [
        FaultLane(str(fault.get("name", "fault")), _when(fault, phases, view), _what(fault))
        for fault in faults
        if isinstance(fault, Mapping)
    ]


def _what(fault: Mapping[str, Any]) -> str:
    """Return a fault in words: every setting but its name and its phase."""
    said = []
    for key, value in fault.items():
        if key in ("name", "during"):
            continue
        inner = value if isinstance(value, Mapping) else {"": value}
        settings = ", ".join(f"{name} {text}".strip() for name, text in inner.items())
        said.append(f"{key} {settings}".strip().replace("_", " "))
    return "; ".join(said)


def _when(fault: Mapping[str, Any], phases: list[str | None], view: RunView) -> npt.NDArray[np.bool_]:
    """Return in which rounds a fault was on, bool [rounds]."""
    numbers = view.rounds.numbers
    on = np.ones(len(view.rounds), dtype=np.bool_)
    during = fault.get("during")
    if during is not None:
        named = {during} if isinstance(during, str) else set(during)
        on &= np.array([phase in named for phase in phases], dtype=np.bool_)
    if isinstance(fault.get("at"), str):
        try:
            at_s = parse_duration_s(fault["at"])
            for_s = parse_duration_s(fault["for"]) if isinstance(fault.get("for"), str) else np.inf
        except UnitError:
            return on  # a time in a form of its own: the table says what was written
        on &= (numbers["end_s"] >= at_s) & (numbers["start_s"] < at_s + for_s)
    return on


def timeline(view: RunView) -> Section | None:
    """Return lanes of phases, faults and abandoned rounds; None for one phase without either."""
    rounds = view.rounds
    n = len(rounds)
    if n == 0:
        return None
    phases = [rounds.label("phase", row) for row in range(n)]
    numbers = rounds.numbers["round"].astype(np.int64)
    abandoned = rounds.equal("outcome", label(RoundOutcome.ABANDONED))
    faults = fault_lanes(view, phases)
    if len(set(phases)) < 2 and not faults and not abandoned.any():
        return None

    def spans(on: npt.NDArray[np.bool_], style: str, text: str) -> tuple[Span, ...]:
        return tuple(
            Span(
                first / n * 100,
                (last - first + 1) / n * 100,
                f"{text}: {_rounds(numbers, first, last)}",
                style,
            )
            for first, last in _runs(on)
            if on[first]
        )

    lanes: list[tuple[str, tuple[Span, ...]]] = []
    rows: list[tuple[Cell, ...]] = []
    codes = rounds.codes["phase"]
    pieces = []
    for at, (first, last) in enumerate(_runs(codes)):
        name = str(phases[first])
        where = _rounds(numbers, first, last)
        pieces.append(Span(first / n * 100, (last - first + 1) / n * 100, name, f"phase{at % 2}"))
        spent_s = float(rounds.numbers["end_s"][last] - rounds.numbers["start_s"][first])
        rows.append((Cell("phase"), Cell(name), Cell(where), Cell(show(spent_s, "s"))))
    lanes.append(("phase", tuple(pieces)))
    for fault in faults:
        lanes.append((fault.name, spans(fault.on, "fault", fault.name)))
        where = "; ".join(_rounds(numbers, first, last) for first, last in _runs(fault.on) if fault.on[first])
        rows.append((Cell("fault"), Cell(fault.name), Cell(where or "never"), Cell(fault.what)))
    if abandoned.any():
        lanes.append(("abandoned", spans(abandoned, "abandoned", "abandoned")))
    table = Table("Phases and faults", ("", "name", "rounds", "what"), tuple(rows), text_columns=4)
    drawn = Lanes(
        "Phases and faults over the rounds",
        f"Lanes over {n} rounds: {len(pieces)} phases, {len(faults)} faults, "
        f"{int(abandoned.sum())} rounds abandoned.",
        tuple(lanes),
        round_axis(numbers),
        table,
    )
    return Section("timeline", "Timeline", (drawn,), wide=True)


def _rounds(numbers: Wholes, first: int, last: int) -> str:
    return f"round {numbers[first]}" if first == last else f"rounds {numbers[first]}–{numbers[last]}"
