"""Every number of a report has a range, and so has every sum: what is outside is refused by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from coordinator.engine.aggregation.ranges import LOSS_MAX, WEIGHT_MIN, ReportRanges
from edge.core.errors import RemoteProtocolError
from edge.learning.accumulators import VALUE_MAX, DenseAccumulator
from edge.learning.updates import Aggregate, UpdateBatch
from edge.wire.messages import Report

UNIFORM = ReportRanges(weight_max=1.0, examples_max=50)
COUNTED = ReportRanges(weight_max=50.0, examples_max=50)
BARE = dataclasses.replace(UNIFORM, bare=True)
SIGNED = dataclasses.replace(UNIFORM, signed_loss=True)
HONEST = Report("run", 1, 3, 20, 1.0, 0.5, {"w": np.ones(3)})
HIDDEN = HONEST._replace(examples=0, loss=0.0)


def refused(ranges: ReportRanges, report: Report) -> str | None:
    accumulator = DenseAccumulator({"w": (np.dtype(np.float64), (3,))})
    together = report.examples >= 2**63 or ranges.check_many(batch_of(ranges, report), accumulator)
    try:
        ranges.check(report, accumulator)
    except RemoteProtocolError as error:
        assert report.examples >= 2**63 or not together
        return error.reason
    assert together
    return None


def batch_of(ranges: ReportRanges, report: Report) -> UpdateBatch:
    """Return the update of a report among honest ones."""
    honest = HIDDEN if ranges.bare else HONEST
    reports = [honest, report, honest]
    return UpdateBatch(
        {"w": np.stack([one.arrays["w"] for one in reports])},
        {},
        np.zeros(4, np.int64),
        np.array([one.weight for one in reports], np.float64),
        np.array([min(one.examples, 2**62) for one in reports]),
        np.array([one.loss for one in reports]),
    )


@pytest.mark.parametrize(
    ("ranges", "report"),
    [
        (UNIFORM, HONEST),
        (UNIFORM, HONEST._replace(weight=0.25)),
        (UNIFORM, HONEST._replace(weight=WEIGHT_MIN)),
        (UNIFORM, HONEST._replace(weight=0.0, examples=0, loss=0.0)),
        (UNIFORM, HONEST._replace(examples=50, loss=LOSS_MAX)),
        (UNIFORM, HONEST._replace(arrays={"w": np.array([VALUE_MAX, -VALUE_MAX, 5e-324])})),
        (COUNTED, HONEST._replace(weight=50.0)),
        (BARE, HIDDEN),
        (SIGNED, HONEST._replace(loss=-LOSS_MAX)),
    ],
)
def test_what_an_honest_device_reports_is_taken(ranges: ReportRanges, report: Report) -> None:
    assert refused(ranges, report) is None


@pytest.mark.parametrize(
    ("ranges", "changes"),
    [
        *((UNIFORM, {"weight": weight}) for weight in (-8.0, -7.999999, 1.0000001, 1e308, 5e-324, math.nan)),
        *((UNIFORM, {"weight": weight}) for weight in (math.inf, -math.inf, 2**64 - 1)),
        (COUNTED, {"weight": 50.000001}),
        *((UNIFORM, {"examples": examples}) for examples in (0, 51, 2**32, 2**64 - 1)),
        *((UNIFORM, {"loss": loss}) for loss in (-1e-9, -1.7e308, 1.7e308, 1.01e12, math.nan, math.inf)),
        (SIGNED, {"loss": -1.01e12}),
        *((UNIFORM, {"arrays": {"w": np.array([0.0, x, 0.0])}}) for x in (1e308, -1e308, VALUE_MAX * 1.001)),
        (BARE, {"examples": 1, "loss": 0.0}),
        (BARE, {"examples": 0, "loss": 1e-9}),
        (BARE, {"examples": 0, "loss": math.nan}),
    ],
)
def test_a_number_outside_its_range_is_refused(ranges: ReportRanges, changes: dict[str, Any]) -> None:
    assert refused(ranges, HONEST._replace(**changes)) == "out-of-range"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_malformed(value: float) -> None:
    assert refused(UNIFORM, HONEST._replace(arrays={"w": np.array([0.0, value, 0.0])})) == "malformed-update"


SUM = Aggregate({"w": np.ones(3)}, 8.0, 8, 100, 0.5)


@pytest.mark.parametrize(
    ("ranges", "changes"),
    [
        (UNIFORM, {"weight": 0.0}),
        (UNIFORM, {"weight": -1.0}),
        (UNIFORM, {"weight": 9.0}),
        (COUNTED, {"weight": 401.0}),
        (UNIFORM, {"weight": math.nan}),
        (UNIFORM, {"examples": -1}),
        (UNIFORM, {"examples": 401}),
        (UNIFORM, {"loss": -0.5}),
        (UNIFORM, {"loss": math.nan}),
        (UNIFORM, {"sums": {"w": np.array([1.0, math.inf, 1.0])}}),
        (BARE, {}),
    ],
)
def test_a_sum_that_cannot_be_right_is_told(ranges: ReportRanges, changes: dict[str, Any]) -> None:
    assert UNIFORM.objection(SUM) is None
    assert COUNTED.objection(SUM) is None
    assert ranges.objection(dataclasses.replace(SUM, **changes)) is not None


def test_a_sum_of_what_is_kept_back_has_no_loss() -> None:
    assert BARE.objection(dataclasses.replace(SUM, examples=0, loss=math.nan)) is None
