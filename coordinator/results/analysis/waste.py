"""Bytes and work that did not serve the model, by how the device round ended."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.results.analysis.rows import read_rows
from coordinator.results.tables.reader import RunTables
from edge.core.vocabulary import Outcome, label


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
