"""Devices that send nonsense: what it does to rounds in the clear, buffered, robust, and under secure sums.

    python benchmarks/hostile.py [--rounds 5000] [--seed 1]

Every run is one of the product's own on the virtual clock, in which one to three of twelve devices are
hostile: what they send is changed in one field on its way to the coordinator, in every round that they are
invited to. A row of the table is a mode and a field: rounds with a hostile device in them, what became of its
frames by reason, rounds abandoned by reason, hostile devices suspended (of those in the runs), and how far a
sum was from what was promised, at most:

* in the clear and buffered: from the sum of the honest updates, as a share of its largest element;
* robust: beyond the largest and smallest of the honest updates, likewise;
* under secure sums: the largest element of a mean as a share of the clip, which promises 1 at most.

The benchmark fails if a run does not come to its end, an honest device is suspended, or a sum is further
away.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from coordinator.active_round import Channel
from coordinator.actor import Coordinator
from coordinator.metrics.reader import open_run
from coordinator.progress import SilentProgress
from coordinator.runner import run_scenario
from coordinator.scenario.load import load
from coordinator.training import Training
from edge.learning.updates import Aggregate
from edge.message_kinds import AnyMessage
from edge.messages import Report
from edge.secagg_messages import (
    AdvertiseKeys,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    UnmaskShares,
)
from edge.vocabulary import Reason

DEVICES = 12
ROUNDS_OF_RUN = 5
CLIP = 1.0
TEXT = f"""
format: 2
data: {{source: synthetic-ratings, users: {DEVICES}, items: 20, ratings_per_user: 8}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: fedrecon, factors: 2, learning_rate: 0.01, upload: dense}}
rounds: {{count: {ROUNDS_OF_RUN}, cohort: {DEVICES}, quorum: 50%, deadline: 120 s, selection: random}}
evaluation: {{final: false}}
record: {{events: none}}
"""
MODES = {
    "clear": "",
    "buffered": "",
    "robust": "aggregation: {rule: trimmed-mean, trim: 30%}\n",
    "secagg": f"secure_aggregation: {{mode: secagg-plus, clip: {CLIP}}}\n",
    "active": f"secure_aggregation: {{mode: active, clip: {CLIP}}}\n",
}
Change = Callable[[Any, np.random.Generator], Any]


def _field(name: str, *values: object) -> Change:
    return lambda message, draw: message._replace(**{name: values[draw.integers(len(values))]})


def _arrays(change: Callable[[npt.NDArray[Any], np.random.Generator], npt.NDArray[Any]]) -> Change:
    def changed(message: Any, draw: np.random.Generator) -> Any:
        name = sorted(message.arrays)[draw.integers(len(message.arrays))]
        return message._replace(arrays={**message.arrays, name: change(message.arrays[name].copy(), draw)})

    return changed


def _one_element(*values: float) -> Change:
    def put(array: npt.NDArray[Any], draw: np.random.Generator) -> npt.NDArray[Any]:
        array.flat[draw.integers(array.size)] = values[draw.integers(len(values))]
        return array

    return _arrays(put)


def _random_bytes(array: npt.NDArray[Any], draw: np.random.Generator) -> npt.NDArray[Any]:
    drawn = np.frombuffer(draw.bytes(array.nbytes), array.dtype)
    return drawn.reshape(array.shape)


def _tail(place: int, *values: int) -> Change:
    def moved(array: npt.NDArray[Any], draw: np.random.Generator) -> npt.NDArray[Any]:
        array[place] += np.array(values[draw.integers(len(values))]).astype(array.dtype)
        return array

    return _arrays(moved)


SHAPES: dict[str, Change] = {
    "arrays: none": lambda message, _: message._replace(arrays={}),
    "arrays: another name": lambda message, _: message._replace(arrays={"x": np.zeros(3)}),
    "arrays: cut off": _arrays(lambda array, _: array[:-1]),
    "arrays: another dtype": _arrays(lambda array, _: array.astype(np.int64)),
}
REPORTS: dict[str, Change] = {
    "weight": _field("weight", -8.0, -7.999999, 1e308, -1e308, 5e-324, 1e3, 2**64 - 1, np.nan, np.inf),
    "examples": _field("examples", 0, 2**31, 2**32, 2**63, 2**64 - 1),
    "loss": _field("loss", -1.7e308, 1.7e308, -1e-9, 2e12, np.nan, -np.inf),
    "elements": _one_element(1e10, -1e30, 3e38, np.nan, np.inf, -np.inf),
    "round": _field("round_number", 0, 2**40, 2**64 - 1),
    "run": _field("run_id", "", "another run"),
    "device": _field("device", 99, 2**64 - 1),
    **SHAPES,
}
OF_SUMS: dict[str, tuple[type[Any], dict[str, Change]]] = {
    kind.__name__: (kind, {**SHAPES, "arrays: random bytes": _arrays(_random_bytes)})
    for kind in (AdvertiseKeys, SealedShares, MaskedInput, ConsistencySignature, UnmaskShares)
}
OF_SUMS["tail"] = (MaskedInput, {"weight": _tail(-2, -11, -8, -5, 1, 7, 2**31), "count": _tail(-1, -1, 1)})


def cases() -> Iterator[tuple[str, str, type[Any], Change]]:
    """Yield mode, field, type of the message, and what is done to it."""
    for mode in MODES:
        if mode not in ("secagg", "active"):
            for name, change in REPORTS.items():
                yield mode, name, Report, change
            continue
        for group, (kind, changes) in OF_SUMS.items():
            if kind is not ConsistencySignature or mode == "active":
                for name, change in changes.items():
                    yield mode, f"{group}, {name}", kind, change


@dataclasses.dataclass
class Row:
    """What came of one mode and field."""

    rounds: int = 0
    judged: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    abandoned: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    hostile: int = 0
    suspended: int = 0
    worst: float = 0.0
    endings: set[str] = dataclasses.field(default_factory=set)


class Hostility:
    """Changes what hostile devices send, and looks at the sums that are applied."""

    def __init__(
        self, mode: str, kind: type[Any], change: Change, draw: np.random.Generator, row: Row
    ) -> None:
        self._mode, self._kind, self._change, self._draw, self._row = mode, kind, change, draw, row
        self.devices = set(draw.choice(DEVICES, int(draw.integers(1, 4)), replace=False).tolist())
        self._honest: list[tuple[int, dict[str, npt.NDArray[Any]]]] = []
        self._seen: set[int] = set()

    def received(
        self,
        judge: Callable[[Coordinator, Channel, AnyMessage], Reason],
        coordinator: Coordinator,
        channel: Channel,
        message: AnyMessage,
    ) -> Reason:
        """Judge a frame, changed if a hostile device sends it."""
        hostile = channel.device in self.devices and isinstance(message, self._kind)
        if hostile and message.round_number not in self._seen:
            self._seen.add(message.round_number)
            self._row.rounds += 1
        reason = judge(coordinator, channel, self._change(message, self._draw) if hostile else message)
        if hostile:
            self._row.judged[reason.name.lower().replace("_", "-")] += 1
        elif isinstance(message, Report) and reason is Reason.NONE:
            self._honest.append((message.round_number, message.arrays))
        return reason

    def looked_at(
        self, refuses: Callable[..., bool], training: Training, aggregate: Aggregate, number: int
    ) -> bool:
        """Measure a sum that may be applied."""
        taken, self._honest = self._honest, []
        # A step of a buffer takes reports on whatever model.
        honest = [arrays for of, arrays in taken if of == number or self._mode == "buffered"]
        refused = refuses(training, aggregate, number)
        if not refused:
            self._row.worst = max(self._row.worst, self._away(aggregate, honest))
        return refused

    def _away(self, aggregate: Aggregate, honest: list[dict[str, npt.NDArray[Any]]]) -> float:
        found = 0.0
        for name, total in aggregate.sums.items():
            if self._mode in ("secagg", "active"):
                found = max(found, float(np.abs(total).max()) / aggregate.weight / CLIP)
                continue
            each = np.stack([arrays[name] for arrays in honest]).astype(np.float64)
            if self._mode == "robust":
                mean = total / aggregate.weight
                gap = np.maximum(mean - each.max(axis=0), each.min(axis=0) - mean).max()
            else:
                gap = np.abs(total - each.sum(axis=0)).max()
            found = max(found, float(gap) / float(np.abs(each).max()))
        return found


def run(case: tuple[str, str, type[Any], Change], seed: int, row: Row, folder: Path) -> None:
    """Run one scenario with hostile devices, and add what came of it to ``row``."""
    mode, _, kind, change = case
    text = f"seed: {seed}\n{TEXT}{MODES[mode]}"
    if mode == "buffered":
        text = text.replace(
            "selection:", "pacing: {mode: buffered, concurrency: 12, staleness_weight: constant}, selection:"
        )
    file = folder / "run.yaml"
    file.write_text(text)
    hostility = Hostility(mode, kind, change, np.random.default_rng(seed), row)
    judge, refuses = Coordinator.frame_received, Training._refuses
    target = folder / f"{mode}-{seed}"
    with (
        mock.patch.object(Coordinator, "frame_received", lambda *args: hostility.received(judge, *args)),
        mock.patch.object(Training, "_refuses", lambda *args: hostility.looked_at(refuses, *args)),
    ):
        outcome = run_scenario(load(file), target=target, observer=SilentProgress())
    tables = open_run(outcome.directory)
    for ended in tables.read("rounds").to_pylist():
        if ended["outcome"] == "abandoned":
            row.abandoned[ended["reason"]] += 1
    row.hostile += len(hostility.devices)
    row.suspended += len(hostility.devices & set(tables.manifest["suspended_devices"]))
    wrongly = set(tables.manifest["suspended_devices"]) - hostility.devices
    if wrongly:
        row.endings.add(f"suspended honest {sorted(wrongly)}")
    row.endings.add(str(tables.manifest["status"]))


def campaign(
    rounds: int, seed: int, chosen: list[tuple[str, str, type[Any], Change]]
) -> dict[tuple[str, str], Row]:
    """Run the cases in turn until so many rounds have had a hostile device in them, each once at least."""
    table: dict[tuple[str, str], Row] = {}
    done = number = 0
    while done < rounds or number < len(chosen):
        case = chosen[number % len(chosen)]
        row = table.setdefault(case[:2], Row())
        before = row.rounds
        with tempfile.TemporaryDirectory() as folder:
            run(case, seed + number, row, Path(folder))
        done += row.rounds - before
        number += 1
    return table


def broken(table: dict[tuple[str, str], Row]) -> list[str]:
    """Return the promises that were not kept."""
    found = []
    for (mode, field), row in table.items():
        most = 1.0 + 1e-6 if mode in ("secagg", "active") else 1e-5
        if not row.worst <= most:
            found.append(f"{mode}, {field}: a sum was {row.worst:g} away")
        if row.endings - {"finished", "no-round-completed"}:
            found.append(f"{mode}, {field}: {sorted(row.endings)}")
        if not row.rounds:
            found.append(f"{mode}, {field}: nothing was sent")
    return found


def main() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5000, help="rounds with a hostile device in them")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    table = campaign(args.rounds, args.seed, list(cases()))
    print("| mode | field | rounds | its frames | abandoned | suspended | worst |\n" + "| --- " * 7 + "|")
    for (mode, field), row in table.items():
        judged, abandoned = (
            ", ".join(f"{k} {v}" for k, v in sorted(c.items())) for c in (row.judged, row.abandoned)
        )
        print(
            f"| {mode} | {field} | {row.rounds} | {judged} | {abandoned} "
            f"| {row.suspended} of {row.hostile} | {row.worst:.3g} |"
        )
    print(f"{sum(row.rounds for row in table.values())} rounds with hostile devices")
    failures = broken(table)
    print("\n".join(failures) or "every promise was kept")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
