"""Phases and faults over the rounds of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.results.report.axes import round_axis
from coordinator.results.report.blocks import Lanes, Span, TableBlock, TableCell
from coordinator.results.report.people import show
from coordinator.results.report.view import RunView
from edge.core.vocabulary import RoundOutcome, label

Wholes = npt.NDArray[np.int64]


def _runs(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of each run of equal values."""
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *cuts.tolist(), len(values)]
    yield from ((a, b - 1) for a, b in itertools.pairwise(edges) if b > a)


def _stretches(on: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the first and the last position of each stretch that is on."""
    return [(first, last) for first, last in _runs(on) if on[first]]


@dataclass(frozen=True, slots=True)
class FaultLane:
    """A fault over the rounds of a run.

    Attributes
    ----------
    name : in the scenario.
    on : bool [rounds], where it struck.
    devices : int64 [rounds], how many devices it struck; the coordinator is none.
    times : int64 [rounds], how often it struck.
    what : its settings, in words.
    late : whether it struck after the last round, too, as a crash of the coordinator can.
    """

    name: str
    on: npt.NDArray[np.bool_]
    devices: Wholes
    times: Wholes
    what: str
    late: bool


def fault_lanes(view: RunView) -> list[FaultLane]:
    """Return the faults of a run, those of its scenario first, and where the tables say that they struck."""
    strikes = view.read("faults", ("round", "fault", "device", "count"))
    rounds = view.rounds.numbers["round"].astype(np.int64)
    written = {
        str(fault.get("name")): _what(fault)
        for fault in view.scenario.get("faults") or ()
        if isinstance(fault, Mapping)
    }
    names = strikes.names["fault"]
    # A scenario that was changed or lost afterwards does not hide what the tables say.
    for name in sorted(set(names) - set(written)):
        written[name] = ""
    at = np.searchsorted(rounds, strikes.numbers["round"])
    lanes = []
    for name, what in written.items():
        struck = strikes.equal("fault", name)
        mine = struck & (at < len(rounds))
        is_device = mine & ~np.isnan(strikes.numbers["device"].astype(np.float64))
        pairs = np.unique(np.stack((at[is_device], strikes.numbers["device"][is_device])), axis=1)
        devices = np.bincount(pairs[0].astype(np.int64), minlength=len(rounds))
        times = np.bincount(at[mine], strikes.numbers["count"][mine], minlength=len(rounds)).astype(np.int64)
        lanes.append(FaultLane(name, times > 0, devices, times, what, bool((struck & ~mine).any())))
    return lanes


def _what(fault: Mapping[str, Any]) -> str:
    """Return a fault in words: every setting but its name."""
    said = []
    for key, value in fault.items():
        if key == "name":
            continue
        inner = value if isinstance(value, Mapping) else {"": _words(value)}
        settings = ", ".join(f"{name} {_words(text)}".strip() for name, text in inner.items())
        said.append(f"{key} {settings}".strip().replace("_", " "))
    return "; ".join(said)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _struck(lane: FaultLane, first: int, last: int) -> str:
    """Return how many device rounds of a stretch a fault struck, or how often it struck the coordinator."""
    devices = int(lane.devices[first : last + 1].sum())
    times = int(lane.times[first : last + 1].sum())
    if devices == 0:
        return f"{times} ×"
    return f"{devices} device {'round' if devices == 1 else 'rounds'}, {times} ×"


def timeline(view: RunView) -> Lanes | None:
    """Return lanes of phases, faults and abandoned rounds; None for one phase without either."""
    rounds = view.rounds
    n = len(rounds)
    if n == 0:
        return None
    phases = [rounds.label("phase", row) for row in range(n)]
    numbers = rounds.numbers["round"].astype(np.int64)
    abandoned = rounds.equal("outcome", label(RoundOutcome.ABANDONED))
    faults = fault_lanes(view)
    if len(set(phases)) < 2 and not faults and not abandoned.any():
        return None

    def span(first: int, last: int, text: str, style: str) -> Span:
        return Span(first / n * 100, (last - first + 1) / n * 100, text, style)

    lanes: list[tuple[str, tuple[Span, ...]]] = []
    rows: list[tuple[TableCell, ...]] = []
    codes = rounds.codes["phase"]
    pieces = []
    for at, (first, last) in enumerate(_runs(codes)):
        name = str(phases[first])
        where = _rounds(numbers, first, last)
        pieces.append(span(first, last, name, f"phase{at % 2}"))
        spent_s = float(rounds.numbers["end_s"][last] - rounds.numbers["start_s"][first])
        rows.append(
            (
                TableCell("phase"),
                TableCell(name),
                TableCell(where),
                TableCell(f"took {show(spent_s, 's')}"),
                TableCell(""),
            )
        )
    lanes.append(("phase", tuple(pieces)))
    for fault in faults:
        stretches = _stretches(fault.on)
        strikes = tuple(
            span(
                first,
                last,
                f"{fault.name}: {_rounds(numbers, first, last)}, {_struck(fault, first, last)}",
                "fault",
            )
            for first, last in stretches
        )
        lanes.append((fault.name, strikes))
        where = "; ".join(_rounds(numbers, first, last) for first, last in stretches)
        figures = f"struck {_struck(fault, 0, n - 1)}" if stretches else ""
        never = "after the last round" if fault.late else "never"
        rows.append(
            (
                TableCell("fault"),
                TableCell(fault.name),
                TableCell(where or never),
                TableCell(figures),
                TableCell(fault.what),
            )
        )
    if abandoned.any():
        ended = tuple(
            span(first, last, f"abandoned: {_rounds(numbers, first, last)}", "abandoned")
            for first, last in _stretches(abandoned)
        )
        lanes.append(("abandoned", ended))
    headers = ("kind", "name", "rounds", "figures", "settings")
    table = TableBlock("Phases and faults", headers, tuple(rows), text_columns=len(headers))
    return Lanes(
        "Phases and faults over the rounds",
        f"Lanes over {n} rounds: {len(pieces)} phases, {len(faults)} faults, "
        f"{int(abandoned.sum())} rounds abandoned.",
        tuple(lanes),
        round_axis(numbers),
        table,
    )


def _rounds(numbers: Wholes, first: int, last: int) -> str:
    return f"round {numbers[first]}" if first == last else f"rounds {numbers[first]}–{numbers[last]}"
