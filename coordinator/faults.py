"""Faults of a scenario, applied to what a round will be like for its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.metrics.schemas import SUM_STAGES
from coordinator.scenario.faults_section import Fault, stages_of
from coordinator.scenario.schema import Scenario
from edge.device.round_services import CohortPlan
from edge.rng import hashed_uniform, stream_key
from edge.vocabulary import Stage, Way, label

Ids = npt.NDArray[np.int64]

_STAGE_OF_LABEL: Final = {label(stage): stage for stage in Stage}
_ORDER: Final = (
    Stage.INVITE,
    Stage.DOWNLOAD,
    Stage.COMPUTE,
    Stage.REPORT,
    Stage.ADVERTISE_KEYS,
    Stage.SHARE_KEYS,
    Stage.MASKED_INPUT,
    Stage.CONSISTENCY,
    Stage.UNMASK,
    Stage.ACKNOWLEDGE,
)
"""The stages as a device comes to them."""
_WAY_OF_STAGE: Final = {Stage.REPORT: Way.CLEAR, **dict.fromkeys(SUM_STAGES, Way.SECURE)}
"""The stages that are those of one way."""
_RANK: Final = {int(stage): rank for rank, stage in enumerate(_ORDER)}


def faults_by_phase(scenario: Scenario) -> dict[str, tuple[Fault, ...]]:
    """Return the faults that can strike in each phase: those meant for it at a stage that its rounds have."""
    found = {}
    for phase in [phase.name for phase in scenario.phases] or [""]:
        stages = stages_of(scenario.secure_in(phase))
        meant = (fault for fault in scenario.faults if fault.during in (None, phase))
        found[phase] = tuple(fault for fault in meant if fault.at_stage in stages)
    return found


def strike(faults: Sequence[Fault], plan: CohortPlan, seed: int, ids: Ids, round_number: int) -> None:
    """Let faults strike: note in ``plan`` who vanishes, at which stage and how far into it.

    Exactly the fault's share of the ``ids`` (int64 [n]) is drawn, anew in every round. A device that would go
    away sooner anyway does, and one that does not come to the stage is spared: where some report in the
    clear and others sum securely, these have stages of their own.
    """
    for fault in faults:
        stage = _STAGE_OF_LABEL[fault.at_stage]
        key = stream_key(seed, "fault", fault.name)
        # Rounded before anything else: 30% of 10 is 3, whatever 0.3 * 10 is in binary.
        count = round(round(fault.on.fraction * len(ids), 9))
        drawn = np.argsort(hashed_uniform(key, ids, round_number, 0), kind="stable")[:count]
        fractions: list[float] = hashed_uniform(key, ids, round_number, 1).tolist()
        way = _WAY_OF_STAGE.get(stage)
        for slot in np.sort(drawn).tolist():
            if plan.shielded and way is not None and plan.shielded[slot] != (way is Way.CLEAR):
                continue
            planned = plan.drop_stage[slot]
            when = (_RANK[stage], fractions[slot])
            if planned < 0 or when < (_RANK[planned], plan.drop_fraction[slot]):
                plan.drop_stage[slot] = int(stage)
                plan.drop_fraction[slot] = fractions[slot]
        if _RANK[stage] <= _RANK[Stage.COMPUTE]:
            plan.computes[drawn] = False
