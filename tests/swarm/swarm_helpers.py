"""Runs of a swarm that are broken by hand, to see that somebody notices."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from coordinator.results.tables.writer import TablesInMemory
from coordinator.swarm.trial import Trial, run_trial

PLAIN = """
format: 2
seed: 3
data: {source: synthetic-ratings, users: 12, items: 10, ratings_per_user: 4, min_ratings_per_user: 2}
fleet: {mix: uk_mobile_2024, availability: always_on}
learning: {algorithm: fedrecon, factors: 2, optimizer: {kind: sgd}, learning_rate: 0.1, weighting: uniform}
rounds: {cohort: 5, over_select: 120%, quorum: 1, deadline: 60 s}
phases: [{name: storm, rounds: 1}, {name: quiet, rounds: 2}]
faults: [{name: v, during: storm, at_stage: download, on: {devices: [0, 1]}, vanish: {}}]
evaluation: {every: 100, final: false}
"""
"""Three rounds in the clear; all of them close."""

REGRESSION = """
format: 2
seed: 5
data: {source: synthetic-regression, clients: 6, samples_per_client: 8, features: 2}
fleet: {devices: {minipc_n100: 100%}, networks: {wifi_enterprise: 100%}}
learning: {algorithm: linear-regression, learning_rate: 0.5}
rounds: {count: 2, cohort: 4, quorum: 1, deadline: 60 s}
evaluation: {every: 100, final: false}
"""

MASKED = PLAIN.replace("weighting: uniform", "weighting: uniform, upload: dense") + (
    "secure_aggregation: {mode: secagg, crypto: modelled}\n"
)
ENCRYPTED = MASKED.replace("mode: secagg", "mode: ckks")
PRIVATE = PLAIN + "privacy: {mechanism: central-gaussian, clip_norm: 1, noise_multiplier: 2}\n"


_LEARNING = PLAIN[PLAIN.index("learning:") : PLAIN.index("rounds:")]
_METHODS = {
    "fedrecon": "factors: 2",
    "fedmf": "factors: 2, item_bias: true",
    "fedavg-mf": "factors: 2",
    "fedrec": "factors: 2",
    "pfedme": "factors: 2",
    "blur": "factors: 2, norm_bound: 0.5",
    "lipm": "factors: 2, interest_width: 2",
    "fedncf": "gmf_factors: 2, mlp_factors: 1, layers: [2]",
    "fedrecgel": "base: {algorithm: fedncf, gmf_factors: 2, mlp_factors: 1, layers: [2], optimizer: "
    "{kind: sgd}, learning_rate: 0.1}",
    "fcf": "factors: 2",
    "dp-mf": "factors: 2, upload: dense",
    "pfedrec": "factors: 2",
    "gpfedrec": "factors: 2, layers: [3], item_learning_rate: 0.05, user_learning_rate: 0.1",
    "fedrap": "factors: 2, item_learning_rate: 0.05",
    "colr": "factors: 3, rank: 2, item_bias: true",
    "fedmmf": "factors: 2, mask: {kind: zero-order}",
    "federated-context": "model: {kind: linear}",
    "local-context": "model: {kind: zero-order}",
}
OF_METHODS = {
    name: PLAIN.replace(
        _LEARNING,
        f"learning: {{algorithm: {name}, {settings}"
        + (
            ""
            if name in ("fedrecgel", "local-context", "gpfedrec", "dp-mf")
            else ", optimizer: {kind: sgd}, learning_rate: 0.1"
        )
        + "}\n",
    )
    .replace("ratings_per_user: 4", "ratings_per_user: 4, timestamps: true, features: {kind: synthetic}")
    .replace("final: false", "final: false, ranking: {}")
    for name, settings in _METHODS.items()
}
"""The same rounds with every method of ratings; all of them close."""


class BrokenTables(TablesInMemory):
    """Tables in which somebody has changed a value."""

    def __init__(self, whole: TablesInMemory) -> None:
        super().__init__()
        self._tables = {table: whole.read(table) for table in self._batches}

    def read(self, table: str, columns: Sequence[str] | None = None) -> Any:
        whole = self._tables[table]
        return whole if columns is None else whole.select(list(columns))

    def rows(self, table: str) -> int:
        return int(self._tables[table].num_rows)

    def change(self, table: str, row: int, column: str, change: Callable[[Any], Any]) -> None:
        """Change one value."""
        whole = self._tables[table]
        values = whole[column].to_pylist()
        values[row] = change(values[row])
        field = whole.schema.field(column)
        array = pa.array(values, pa.string()).dictionary_encode() if pa.types.is_dictionary(field.type) else (
            pa.array(values, field.type)
        )  # fmt: skip
        place = whole.column_names.index(column)
        self._tables[table] = whole.set_column(place, pa.field(column, array.type), array)

    def drop(self, table: str, row: int) -> None:
        """Leave a row out."""
        whole = self._tables[table]
        self._tables[table] = pa.concat_tables([whole.slice(0, row), whole.slice(row + 1)])

    def find(self, table: str, **values: Any) -> int:
        """Return the first row with these values."""
        for number, row in enumerate(self._tables[table].to_pylist()):
            if all(row[name] == value for name, value in values.items()):
                return number
        raise LookupError(f"no row of {table} has {values}")


def trial_of(text: str) -> Trial:
    """Run a scenario, which must go well."""
    trial = run_trial(text, "test")
    assert trial.error is None
    return trial


def breakable(trial: Trial) -> tuple[Trial, BrokenTables]:
    """Return a copy of a run whose tables can be changed; its record can be, too."""
    tables = BrokenTables(trial.tables)
    record = copy.copy(trial.record)
    for name in ("deliveries", "sizes", "inputs", "decrypted", "vectors", "sums", "moves", "left"):
        setattr(record, name, copy.copy(getattr(record, name)))
    return dataclasses.replace(trial, tables=tables, record=record), tables


def said(check: Callable[[Trial], Any], trial: Trial) -> list[str]:
    """Return what an invariant says of a run."""
    return list(check(trial))
