from __future__ import annotations

import numpy as np
import pytest
from swarm_helpers import (
    ENCRYPTED,
    MASKED,
    OF_METHODS,
    PLAIN,
    REGRESSION,
    BrokenTables,
    breakable,
    said,
    trial_of,
)

from coordinator.swarm.invariants.steps import one_move
from coordinator.swarm.invariants.sums import survivors_of
from coordinator.swarm.trial import Trial
from edge.learning.registry import METHODS

PERSONAL = (
    "privacy: {mechanism: personal-gaussian, clip_norm: 1, accounting: false, shrinkage: 25%, tiers: "
    "[{name: few, up_to: 3, noise_multiplier: 2}, {name: many, noise_multiplier: 1}]}\n"
)
DENSE = PLAIN.replace("weighting: uniform", "weighting: uniform, upload: dense")
ALL = {
    **OF_METHODS,
    "plain": PLAIN,
    "linear-regression": REGRESSION,
    "masked": MASKED,
    "encrypted": ENCRYPTED,
    "personal budgets": DENSE + PERSONAL,
    "personal budgets of fedmf": OF_METHODS["fedmf"].replace(
        "item_bias", "upload: dense, weighting: uniform, item_bias"
    )
    + PERSONAL,
    "a median": DENSE + "aggregation: {rule: median}\n",
}


@pytest.fixture(scope="module", params=sorted(ALL))
def trial(request: pytest.FixtureRequest) -> Trial:
    return trial_of(ALL[request.param])


def test_every_method_is_looked_at() -> None:
    assert set(METHODS) <= set(ALL)


def test_a_run_without_bugs_keeps_it(trial: Trial) -> None:
    assert trial.record.moves
    assert said(one_move, trial) == []


def test_each_array_of_a_model_that_moved_once_more(trial: Trial) -> None:
    for name in trial.last:
        broken, _ = breakable(trial)
        move = broken.record.moves[-1]
        step = move.after[name] - move.before[name]
        again = {**move.after, name: move.after[name] + np.where(step == 0, 1, step).astype(step.dtype)}
        broken.record.moves[-1] = move._replace(after=again)
        broken.last = again
        assert f"after round {move.round_number} '{name}'" in said(one_move, broken)[0]


def test_a_model_that_moved_between_rounds(trial: Trial) -> None:
    if not trial.last:
        return  # a method without a model
    broken, _ = breakable(trial)
    broken.last = {name: array + 1 for name, array in trial.last.items()}
    assert "the model changed after round" in said(one_move, broken)[0]
    broken.last = trial.last
    broken.first = {name: array + 1 for name, array in trial.first.items()}
    assert "the model changed between the start and the end of round" in said(one_move, broken)[0]


def test_a_sum_that_was_applied_in_no_round(trial: Trial) -> None:
    broken, _ = breakable(trial)
    broken.record.moves.append(broken.record.moves[-1])
    assert "sums were applied in the rounds" in said(one_move, broken)[0]


def test_an_abandoned_round_has_no_survivors() -> None:
    broken, tables = breakable(trial_of(PLAIN))
    assert isinstance(tables, BrokenTables)
    tables.change("rounds", 0, "outcome", lambda _: "abandoned")
    assert 1 not in survivors_of(broken)
    assert "sums were applied in the rounds [1, 2, 3]; completed were the rounds [2, 3]" in said(
        one_move, broken
    )
