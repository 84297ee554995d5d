"""Bounded updates: no accepted update has a norm above the bound, where somebody can look or nobody lies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.schema import ScenarioSettings
from coordinator.swarm.invariants.sums import decode
from coordinator.swarm.trial import Trial, rows
from edge.core.vocabulary import Reason
from edge.secagg.inputs import LOSS
from edge.wire.messages import Report

_ROUNDING: Final = 1e-9
_ROUNDING_OF_WEIGHTS: Final = 1e-6
"""What a secure sum takes is divided by its weight in floats of 32 bits, and multiplied with it again."""


def bounded_updates(trial: Trial) -> Iterator[str]:
    """Check the norms of all updates that were accepted, and of all inputs to secure sums.

    A device that ignores the bound is refused where its update comes in the clear. In a secure sum nobody
    sees it: these are looked at only where no device does.
    """
    scenario = trial.loaded.scenario
    bound = bound_of(scenario)
    if bound is None:
        return
    for one in trial.record.inputs:
        if one.reason is Reason.NONE and one.report is not None:
            norm = _norm_of(one.report)
            if not norm <= bound * (1 + _ROUNDING):
                yield f"round {one.round_number}: the update of device {one.device} has the norm {norm:g}"
    if any(fault.kind.exceeds_bound for fault in scenario.faults):
        return
    phase_of = {row["round"]: row["phase"] for row in rows(trial.tables, "rounds", "round", "phase")}
    for (number, device), vector in trial.record.vectors.items():
        sums = trial.secure_sums[phase_of[number]]
        assert sums is not None, "updates are hidden where they are summed securely"
        reals = [real for name, real in decode(sums, vector).reals.items() if name != LOSS]
        norm = math.sqrt(sum(float(real.values @ real.values) for real in reals))
        # Elements are rounded to units of the encoding.
        room = _ROUNDING_OF_WEIGHTS * bound + math.sqrt(
            sum(real.unit**2 * len(real.values) for real in reals)
        )
        if not norm <= bound + room:
            yield f"round {number}: the hidden update of device {device} has the norm {norm:g}"


def bound_of(scenario: ScenarioSettings) -> float | None:
    """Return the largest norm of what a device may add; None where there is none, or noise is beyond it."""
    if scenario.privacy is None:
        return scenario.aggregation.norm_bound
    return scenario.privacy.clip_norm if isinstance(scenario.privacy, CentralGaussian) else None


def _norm_of(report: Report) -> float:
    flat = [array.ravel().astype(np.float64) for array in report.arrays.values() if array.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        return math.sqrt(sum(float(values @ values) for values in flat))
