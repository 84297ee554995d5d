"""Participation by class of device, what it spent and wasted, and how good the model is for each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.results.analysis.rows import Rows, read_rows
from coordinator.results.tables.reader import RunTables
from edge.core.vocabulary import Outcome, label


@dataclass(frozen=True, slots=True)
class ClassShares:
    """Who was invited, and whose updates were applied.

    Attributes
    ----------
    devices : devices that were invited at least once.
    invited, completed : device rounds by device class.
    jain_devices : Jain index of the completed rounds of each of these devices; None: nothing was completed.
    jain_classes : Jain index of the share of invitations that each class completed; None likewise. Shares,
        because classes are not of one size.
    """

    devices: int
    invited: dict[str, int]
    completed: dict[str, int]
    jain_devices: float | None
    jain_classes: float | None


def jain_index(shares: npt.NDArray[np.float64]) -> float | None:
    """Return (Σx)² / (n·Σx²) of float64 [n]; None when nobody has anything.

    1 when all have the same, 1/n when one has all (Jain, Chiu and Hawe 1984, "A Quantitative Measure of
    Fairness and Discrimination for Resource Allocation in Shared Computer Systems", equation 1).
    """
    squares = float(np.square(shares).sum()) * len(shares)
    return float(shares.sum()) ** 2 / squares if squares > 0 else None


def participation(run: RunTables) -> ClassShares:
    """Return who took part in a run, by device class."""
    rows = read_rows(run, "device_rounds", ["device", "class", "outcome"])
    done = rows.equal("outcome", label(Outcome.COMPLETED))
    invited = rows.counts("class")
    of_completed = rows.where(done).counts("class")
    completed = {name: of_completed.get(name, 0) for name in invited}
    _, device = np.unique(rows.numbers["device"], return_inverse=True)
    per_device = np.bincount(device[done], minlength=int(device.max(initial=-1)) + 1)
    shares = np.array([completed[name] / count for name, count in invited.items()], dtype=np.float64)
    return ClassShares(
        len(per_device), invited, completed, jain_index(per_device.astype(np.float64)), jain_index(shares)
    )


def accuracy_by_class(run: RunTables) -> list[dict[str, Any]]:
    """Return the last value of each metric for each device class, where it was evaluated by class.

    A row has ``metric``, ``split``, ``population``, ``by_class`` (value by class) and ``spread``: the largest
    value minus the smallest.
    """
    rows = read_rows(run, "evaluations", ["metric", "split", "population", "tag", "group", "value", "round"])
    chosen = rows.where(rows.equal("tag", "class") & ~np.isnan(rows.numbers["value"]))
    last: dict[tuple[str, ...], dict[str, float]] = {}
    for row in range(len(chosen)):  # rows of evaluations are few; a later one takes the place of an earlier
        key = tuple(_label(chosen, name, row) for name in ("metric", "split", "population"))
        last.setdefault(key, {})[_label(chosen, "group", row)] = float(chosen.numbers["value"][row])
    return [
        {
            "metric": metric,
            "split": split,
            "population": population,
            "by_class": dict(sorted(values.items())),
            "spread": max(values.values()) - min(values.values()),
        }
        for (metric, split, population), values in last.items()
    ]


def _label(rows: Rows, column: str, row: int) -> str:
    return rows.names[column][int(rows.codes[column][row])]


def waste_by_outcome(run: RunTables) -> dict[str, dict[str, Any]]:
    """Return what was spent and wasted, by outcome of the device round; outcomes that never came left out.

    Each has ``device_rounds``, ``bytes`` (sent either way), ``wasted_bytes``, ``compute_s``,
    ``wasted_compute_s`` and ``energy_j``. Of completed device rounds only what was lost or discarded is
    wasted, of the others everything. What is kept back of any device is None.
    """
    rows = read_rows(
        run,
        "device_rounds",
        ["outcome", "down_bytes", "up_bytes", "wasted_bytes", "compute_s", "wasted_compute_s",
         "energy_compute_j", "energy_radio_j"],
    )  # fmt: skip
    numbers = rows.numbers
    found = {}
    for name in (label(outcome) for outcome in Outcome):
        chosen = np.flatnonzero(rows.equal("outcome", name))
        if len(chosen):
            total = {column: values[chosen].sum() for column, values in numbers.items()}
            found[name] = {
                "device_rounds": len(chosen),
                "bytes": int(total["down_bytes"] + total["up_bytes"]),
                "wasted_bytes": int(total["wasted_bytes"]),
                **{
                    column: None if np.isnan(value) else float(value)
                    for column, value in (
                        ("compute_s", total["compute_s"]),
                        ("wasted_compute_s", total["wasted_compute_s"]),
                        ("energy_j", total["energy_compute_j"] + total["energy_radio_j"]),
                    )
                },
            }
    return found
