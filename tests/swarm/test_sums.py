from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from swarm_helpers import ENCRYPTED, MASKED, OF_METHODS, PLAIN, REGRESSION, breakable, said, trial_of

from coordinator.swarm.invariants.sums import exact_sums, survivors_of
from coordinator.swarm.record import Summed
from coordinator.swarm.trial import Trial
from edge.core.vocabulary import Outcome, label
from edge.learning.updates import Aggregate

ALL = {"plain": PLAIN, "regression": REGRESSION, "masked": MASKED, "encrypted": ENCRYPTED}


@pytest.fixture(scope="module", params=sorted(ALL))
def trial(request: pytest.FixtureRequest) -> Trial:
    return trial_of(ALL[request.param])


def first_sum(trial: Trial, change: Callable[[Aggregate], Aggregate]) -> Trial:
    """Return the run with another sum in its first completed round."""
    broken, _ = breakable(trial)
    number = min(broken.record.sums)
    made = broken.record.sums[number][0]
    broken.record.sums[number] = [made._replace(aggregate=change(made.aggregate))]
    return broken


def bent(aggregate: Aggregate) -> Aggregate:
    name, array = next(iter(aggregate.sums.items()))
    array = array.copy()
    array.reshape(-1)[np.abs(array).argmax()] *= 1.001
    return dataclasses.replace(aggregate, sums={**aggregate.sums, name: array})


def test_a_run_without_bugs_keeps_it(trial: Trial) -> None:
    assert survivors_of(trial)
    assert all(survivors_of(trial).values())
    assert said(exact_sums, trial) == []


def test_a_sum_that_is_a_little_wrong(trial: Trial) -> None:
    assert "is wrong in 1 of" in said(exact_sums, first_sum(trial, bent))[0]


@pytest.mark.parametrize(
    ("field", "what"), [("weight", "weight"), ("clients", "devices"), ("examples", "exam")]
)
def test_numbers_of_a_sum_that_are_wrong(trial: Trial, field: str, what: str) -> None:
    broken = first_sum(trial, lambda sum_: dataclasses.replace(sum_, **{field: getattr(sum_, field) + 1}))
    assert what in said(exact_sums, broken)[0]


def test_a_survivor_too_many_in_the_table(trial: Trial) -> None:
    broken, tables = breakable(trial)
    number, survivors = next(iter(survivors_of(trial).items()))
    rows = tables.read("device_rounds").to_pylist()
    others = [i for i, row in enumerate(rows) if row["round"] == number and row["device"] not in survivors]
    if not others:
        pytest.skip("everybody survived")
    tables.change("device_rounds", others[0], "outcome", lambda _: label(Outcome.COMPLETED))
    assert said(exact_sums, broken)


def test_a_survivor_too_few_in_the_table(trial: Trial) -> None:
    broken, tables = breakable(trial)
    number = min(survivors_of(trial))
    row = tables.find("device_rounds", round=number, outcome=label(Outcome.COMPLETED))
    tables.change("device_rounds", row, "outcome", lambda _: label(Outcome.LATE))
    assert said(exact_sums, broken)


def test_a_sum_made_twice_or_never(trial: Trial) -> None:
    broken, _ = breakable(trial)
    number = min(broken.record.sums)
    broken.record.sums[number] = broken.record.sums[number] * 2
    assert f"round {number} was completed and 2 sums were made in it" in said(exact_sums, broken)
    del broken.record.sums[number]
    assert f"round {number} was completed and 0 sums were made in it" in said(exact_sums, broken)


def test_a_ring_that_is_off_by_one() -> None:
    broken, _ = breakable(trial_of(MASKED))
    number, (made,) = next(iter(broken.record.sums.items()))
    assert made.total is not None
    total = made.total.copy()
    total[0] += 1
    broken.record.sums[number] = [Summed(made.aggregate, total, made.survivors)]
    assert "modulo 2^32 is wrong in 1 of" in said(exact_sums, broken)[0]


def test_a_protocol_with_another_survivor_set() -> None:
    broken, _ = breakable(trial_of(MASKED))
    number, (made,) = next(iter(broken.record.sums.items()))
    assert made.survivors is not None
    broken.record.sums[number] = [made._replace(survivors=made.survivors[1:])]
    assert "in the table" in said(exact_sums, broken)[0]


def test_a_decrypted_sum_of_others() -> None:
    broken, _ = breakable(trial_of(ENCRYPTED))
    number = min(broken.record.decrypted)
    broken.record.decrypted[number] = [2 * broken.record.decrypted[number][0]]
    assert "no decrypted sum" in said(exact_sums, broken)[0]


def test_a_row_of_another_user() -> None:
    broken = first_sum(
        trial_of(OF_METHODS["fedavg-mf"]),
        lambda sum_: dataclasses.replace(sum_, sums={**sum_.sums, "users": sum_.sums["users"] + 1}),
    )
    assert "'users' is wrong" in said(exact_sums, broken)[0]


def test_a_row_too_many() -> None:
    def more(aggregate: Aggregate) -> Aggregate:
        own = {name: np.repeat(aggregate.sums[name], 2, axis=0) for name in ("users", "user_row")}
        return dataclasses.replace(aggregate, sums={**aggregate.sums, **own})

    broken = first_sum(trial_of(OF_METHODS["fedavg-mf"]), more)
    assert "the sum of 'users' is [10], not [5]" in said(exact_sums, broken)[0]


@pytest.mark.parametrize("name", sorted(OF_METHODS))
def test_sums_of_every_method(name: str) -> None:
    trial = trial_of(OF_METHODS[name])
    assert survivors_of(trial)
    assert said(exact_sums, trial) == []
    if name not in ("local-context", "gpfedrec"):  # nothing is added up there
        assert "is wrong in 1 of" in said(exact_sums, first_sum(trial, bent))[0]
