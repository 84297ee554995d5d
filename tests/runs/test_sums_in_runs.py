"""Runs whose sums and server steps are made by rows, and how many updates are computed together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_helpers import run_text, tables_of

from coordinator.run.assembling import assemble
from coordinator.run.virtual_time import batch_of
from coordinator.scenario.load import load_text
from edge.learning import accumulators

TEXT = """
format: 2
seed: 3
data: {{source: synthetic-ratings, users: 120, items: 150, ratings_per_user: 20}}
fleet: {{mix: global_android_2024}}
learning: {learning}
rounds: {rounds}
evaluation: {{every: 2, users: 20}}
"""
STRAGGLERS = "{count: 6, cohort: 15, over_select: 160%, deadline: 30 s}"
BUFFERED = "{count: 6, cohort: 6, deadline: 30 s, pacing: {mode: buffered, concurrency: 20}}"


@pytest.mark.parametrize(
    ("learning", "rounds"),
    [
        ("{algorithm: fedrecon, factors: 4, optimizer: {kind: sgd}, learning_rate: 0.2}", STRAGGLERS),
        ("{algorithm: fedrecon, factors: 4, optimizer: {kind: sgd}, learning_rate: 0.2}", BUFFERED),
        ("{algorithm: fedrecon, factors: 4, optimizer: {kind: adam}}", STRAGGLERS),
        ("{algorithm: fedavg-mf, factors: 4}", STRAGGLERS),
        ("{algorithm: fedmf, factors: 4}", STRAGGLERS),
    ],
)
@pytest.mark.few(2)
def test_a_run_by_rows_is_that_of_whole_tables(
    learning: str, rounds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, whole_bytes in (("whole", 1 << 40), ("rows", 0)):
        monkeypatch.setattr(accumulators, "WHOLE_BYTES", whole_bytes)
        run = run_text(tmp_path, TEXT.format(learning=learning, rounds=rounds), name=name)
        with np.load(run.directory / "model.npz") as model:
            found.append(({key: model[key].tobytes() for key in model}, tables_of(run).manifest["digest"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("learning", "compute", "expected"),
    [
        # Of tables that are uploaded whole a batch has the rows of some 20 ratings, 1,206 bytes each; the
        # matrices of the second are whole.
        ("{algorithm: fedrecon, factors: 300, upload: dense}", "{}", range(60, 100)),
        ("{algorithm: lipm, factors: 300}", "{}", range(10, 30)),
        ("{algorithm: lipm, factors: 1000}", "{}", [8]),
        ("{algorithm: lipm, factors: 1000}", "{batch: 3}", [3]),
        ("{algorithm: fedrecon, factors: 4}", "{}", [256]),
        ("{algorithm: fedrecon, factors: 4}", "{batch: 7}", [7]),
        ("{algorithm: lipm, factors: 300}", "{workers: 2}", [256]),
    ],
)
def test_so_many_updates_are_computed_together_as_stay_in_the_cache(
    learning: str, compute: str, expected: range | list[int]
) -> None:
    text = TEXT.format(learning=learning, rounds="{count: 1, cohort: 2, deadline: 30 s}")
    text = text.replace("ratings_per_user: 20", "ratings_per_user: 20, timestamps: true")
    loaded = load_text(f"{text}compute: {compute}\n", "batches")
    assert batch_of(loaded.scenario.compute, assemble(loaded).workload) in expected
