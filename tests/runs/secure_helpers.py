"""Small scenarios whose updates are summed securely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from run_helpers import IDEAL_PROFILES, rows_of, tables_of

from coordinator.results.tables.schemas import SCHEMAS, deterministic_fields
from coordinator.run.runner import RunOutcome
from edge import homomorphic

PHONES = "{mix: global_android_2024, availability: always_on}"
"""Phones that differ, and that nothing but a fault takes away."""
IDEAL_WIRE = (
    f"{{devices: {{ideal_device: 100%}}, networks: {{ideal_wire: 100%}}, profiles: [{IDEAL_PROFILES}]}}"
)
"""Devices that are all alike, without chance."""
MIXED_WIRES = IDEAL_WIRE.replace("ideal_wire: 100%", "ideal_wire: 50%, slow_wire: 50%")
"""Half of them behind a slow line."""

MASKING_STAGES = ("download", "compute", "advertise-keys", "share-keys", "masked-input", "unmask")
STAGES = {
    "secagg": MASKING_STAGES,
    "secagg-plus": MASKING_STAGES,
    "active": (*MASKING_STAGES[:-1], "consistency", "unmask"),
    "ckks": ("download", "compute", "masked-input", "unmask"),
}
"""Where a device can be struck, in order, by mode."""

with_tenseal = pytest.mark.skipif(not homomorphic.available(), reason="needs the extra he")


def faults(**fraction_of_stage: str) -> str:
    """Return the section with one fault per stage, ``masked_input="10%"``."""
    lines = [
        f"  - {{name: {stage}, at_stage: {stage.replace('_', '-')}, on: {{fraction: {share}}}, vanish: {{}}}}"
        for stage, share in fraction_of_stage.items()
    ]
    return "\n".join(["faults:", *lines, ""])


def secure(
    section: str,
    *,
    rounds: str = "count: 1, cohort: 12, deadline: 60 s",
    fleet: str = PHONES,
    data: str = "source: synthetic-ratings, users: 120, items: 60, ratings_per_user: 10",
    learning: str = "algorithm: fedrecon, factors: 4, upload: dense, learning_rate: 0.05",
    more: str = "",
    seed: int = 3,
) -> str:
    """Return a scenario; ``section`` is the inside of ``secure_aggregation``, ``more`` adds sections."""
    return f"""
format: 2
seed: {seed}
data: {{{data}}}
fleet: {fleet}
learning: {{{learning}}}
rounds: {{{rounds}}}
secure_aggregation: {{{section}}}
evaluation: {{every: 1000}}
{more}"""


def differing_columns(first: RunOutcome, second: RunOutcome) -> dict[str, list[str]]:
    """Return by table the columns that differ in some row, those that were measured left out."""
    found = {}
    for table in SCHEMAS:
        one, other = tables_of(first).read(table), tables_of(second).read(table)
        names = [field.name for field in deterministic_fields(table)]
        found[table] = [name for name in names if one[name].to_pylist() != other[name].to_pylist()]
    return found


def endings(rows: Sequence[dict[str, Any]]) -> Counter[tuple[str, str | None, str]]:
    """Count outcome, stage and reason of rows of ``device_rounds``."""
    return Counter((row["outcome"], row["stage"], row["reason"]) for row in rows)


def endings_of(outcome: RunOutcome, round_number: int = 1) -> Counter[tuple[str, str | None, str]]:
    """Count how the devices of a round ended."""
    return endings([row for row in rows_of(outcome, "device_rounds") if row["round"] == round_number])
