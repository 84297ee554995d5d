"""What a report in the clear tells, and what sums and models tell of what one device alone touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from run_helpers import run_text

from coordinator.engine.active_round import Channel
from coordinator.engine.actor import Coordinator
from coordinator.engine.aggregation.ranges import ReportRanges
from coordinator.engine.training import Training
from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from coordinator.simulation.backend import SimulatedCohort
from edge.core.vocabulary import Reason
from edge.learning.updates import Aggregate
from edge.wire.messages import AnyMessage, Report

DEVICES = 12
SCENARIO = f"""
format: 2
seed: 5
data: {{source: synthetic-ratings, users: {DEVICES}, items: 60, ratings_per_user: 12, split: {{kind: none}}}}
fleet: {{mix: global_android_2024, availability: always_on}}
learning: {{algorithm: fedrecon, factors: 3, learning_rate: 0.01}}
rounds: {{count: 1, cohort: {DEVICES}, quorum: 50%, deadline: 120 s, selection: random}}
evaluation: {{final: false}}
"""
NOISE = "privacy={mechanism: %s, clip_norm: 0.5, noise_multiplier: 1, accounting: false}"
Sees = list[Report]


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> Sees:
    """Return the reports that the coordinator is sent."""
    found: Sees = []
    judge = Coordinator.frame_received

    def received(self: Coordinator, channel: Channel, message: AnyMessage) -> Reason:
        if isinstance(message, Report):
            found.append(message)
        return judge(self, channel, message)

    # The reports of a wave do not come one by one.
    monkeypatch.setattr(SimulatedCohort, "foreseeable", False)
    monkeypatch.setattr(Coordinator, "frame_received", received)
    return found


def ratings(folder: Path, device: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return items and ratings of a device."""
    (folder / "data.yaml").write_text(SCENARIO)
    workload = assemble(load(folder / "data.yaml")).workload
    assert isinstance(workload, RatingWorkload)
    held = workload.split.train.gather(np.array([device]))
    return held.items, held.ratings


def test_a_sparse_report_names_the_items_and_its_rows_rank_their_ratings(sees: Sees, tmp_path: Path) -> None:
    run_text(tmp_path, SCENARIO, [])
    assert len(sees) > DEVICES // 2
    for report in sees:
        items, given = ratings(tmp_path, report.device)
        (named,) = [array for array in report.arrays.values() if array.dtype.kind in "iu"]
        (rows,) = [array for array in report.arrays.values() if array.dtype.kind == "f"]
        assert sorted(named.tolist()) == sorted(items.tolist())
        assert report.examples == len(items)
        # The row of an item is the error of its rating, times what all rows of a device share.
        _, sizes, sides = np.linalg.svd(rows.astype(np.float64))
        assert sizes[1] < 0.2 * sizes[0]
        errors = rows @ sides[0]
        of_item = dict(zip(items.tolist(), given.tolist(), strict=True))
        true = [of_item[item] for item in named.tolist()]
        assert abs(np.corrcoef(errors, true)[0, 1]) > 0.9


def test_a_dense_report_shows_the_items_by_what_is_not_zero(sees: Sees, tmp_path: Path) -> None:
    run_text(tmp_path, SCENARIO, ["learning.upload=dense"])
    assert sees
    for report in sees:
        items, _ = ratings(tmp_path, report.device)
        changed = np.zeros(60, np.bool_)
        for array in report.arrays.values():
            changed |= array.reshape(60, -1).any(axis=1)
        assert np.flatnonzero(changed).tolist() == sorted(items.tolist())


@pytest.mark.parametrize("mechanism", ["central-gaussian", "local-gaussian"])
def test_noise_of_the_coordinator_hides_no_report_from_it_and_noise_of_devices_does(
    mechanism: str, sees: Sees, tmp_path: Path
) -> None:
    run_text(tmp_path, SCENARIO, ["learning.upload=dense", "learning.weighting=uniform", NOISE % mechanism])
    assert sees
    for report in sees:
        items, _ = ratings(tmp_path, report.device)
        changed = {name: int(np.count_nonzero(array)) for name, array in report.arrays.items()}
        whole = sum(array.size for array in report.arrays.values())
        if mechanism == "central-gaussian":
            assert report.examples == len(items)
            assert sum(changed.values()) <= whole * len(items) / 60
        else:
            assert (report.examples, report.loss) == (0, 0.0)
            assert sum(changed.values()) > 0.9 * whole


def lone_rows(reports: Sees) -> dict[int, npt.NDArray[np.float64]]:
    """Return what a device sent for an item, by item, of those that no other device has rated."""
    tables = [
        np.concatenate([array.reshape(60, -1) for array in one.arrays.values()], axis=1) for one in reports
    ]
    senders = sum(table.any(axis=1).astype(int) for table in tables)
    return {
        item: sum(table[item].astype(np.float64) for table in tables)
        for item in np.flatnonzero(senders == 1).tolist()
    }


DENSE = ["learning.upload=dense", "learning.weighting=uniform"]
SUMS = ["secure_aggregation={mode: secagg-plus, clip: 1}"]


@pytest.mark.parametrize("noise", [False, True], ids=["no noise", "noise in shares"])
def test_a_secure_sum_has_the_row_of_an_item_as_the_only_device_that_rated_it_sent_it(
    noise: bool, sees: Sees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_text(tmp_path, SCENARIO, DENSE, "clear")
    alone = lone_rows(sees)
    assert len(alone) > 3
    sums: list[npt.NDArray[np.float64]] = []
    refuses = Training._refuses

    def looked_at(self: Training, aggregate: Aggregate, number: int, ranges: ReportRanges) -> bool:
        sums.append(np.concatenate([one.reshape(60, -1) for one in aggregate.sums.values()], axis=1))
        return refuses(self, aggregate, number, ranges)

    monkeypatch.setattr(Training, "_refuses", looked_at)
    shares = [NOISE % "distributed-discrete-gaussian"] if noise else []
    run_text(tmp_path, SCENARIO, [*DENSE, *SUMS, *shares], "secure")
    gaps = np.array([np.abs(sums[0][item] - row).max() for item, row in alone.items()])
    peaks = np.array([np.abs(row).max() for row in alone.values()])
    assert np.median(gaps / peaks) > 3 if noise else (gaps < 1e-4).all() and (gaps < 0.01 * peaks).all()


def test_two_models_differ_in_the_row_of_an_item_by_what_the_only_device_that_rated_it_sent(
    sees: Sees, tmp_path: Path
) -> None:
    def model(rate: str) -> npt.NDArray[np.float64]:
        settings = [*DENSE, "learning.optimizer={kind: sgd}", f"learning.learning_rate={rate}"]
        outcome = run_text(tmp_path, SCENARIO, settings, f"rate{rate}")
        with np.load(outcome.directory / "model.npz") as file:
            # A row of a report has the factors of an item, then its bias.
            tables = [file[name].reshape(60, -1) for name in ("item_factors", "item_bias")]
        return np.concatenate(tables, axis=1).astype(np.float64)

    before = model("1e-12")
    alone = lone_rows(sees)
    after = model("1")
    assert len(alone) > 3
    for item, row in alone.items():
        step = after[item] - before[item]
        cosine = step @ row / np.linalg.norm(step) / np.linalg.norm(row)
        assert abs(cosine) > 0.999
