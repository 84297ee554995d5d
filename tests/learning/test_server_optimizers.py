from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from edge.learning import server_optimizers
from edge.learning.server_optimizers import (
    AdagradSettings,
    AdamSettings,
    CosineSchedule,
    Schedule,
    ServerOptimizer,
    SgdSettings,
)
from edge.learning.tables import TableRows

START = {"w": np.array([1.0, -2.0])}
UPDATES = [{"w": np.array([0.5, -1.0])}, {"w": np.array([0.25, 2.0])}]


def run(optimizer: Any, rate: float) -> list[Any]:
    parameters, state = START, optimizer.initial(START)
    out = []
    for update in UPDATES:
        before = {name: array.copy() for name, array in {**parameters, **state}.items()}
        after, new_state = optimizer.apply(parameters, state, update, rate)
        for name, array in {**parameters, **state}.items():
            assert (array == before[name]).all(), "an optimiser wrote to its arguments"
        parameters, state = after, new_state
        out.append(parameters["w"])
    return out


def test_sgd_adds_the_update() -> None:
    first, second = run(SgdSettings(kind="sgd"), 0.1)
    np.testing.assert_allclose(first, [1.05, -2.1])
    np.testing.assert_allclose(second, [1.075, -1.9])


def test_momentum_keeps_a_share_of_the_last_step() -> None:
    _, second = run(SgdSettings(kind="sgd", momentum=0.5), 0.1)
    # v = [0.5, -1] then [0.25 + 0.25, -0.5 + 2].
    np.testing.assert_allclose(second, [1.05 + 0.05, -2.1 + 0.15])


def test_adagrad_divides_by_the_root_of_the_sum_of_squares() -> None:
    first, second = run(AdagradSettings(kind="adagrad", initial_accumulator=0.75, epsilon=1e-12), 0.1)
    np.testing.assert_allclose(first, [1 + 0.05 / 1.0, -2 - 0.1 / math.sqrt(1.75)])
    np.testing.assert_allclose(
        second, [first[0] + 0.025 / math.sqrt(1.0625), first[1] + 0.2 / math.sqrt(5.75)]
    )


def test_adam_corrects_its_bias() -> None:
    first, second = run(AdamSettings(kind="adam", beta1=0.5, beta2=0.75, epsilon=1e-12), 0.1)
    # Corrected, the first step has length η whatever the size of the update.
    np.testing.assert_allclose(first, [1.1, -2.1])
    # m = .5·.25 + .5·.25 = .25, m̂ = .25/.75; v = .75·.0625 + .25·.0625 = .0625, v̂ = .0625/.4375
    assert second[0] == pytest.approx(1.1 + 0.1 * (0.25 / 0.75) / math.sqrt(0.0625 / 0.4375))


def test_adams_epsilon_is_added_to_the_corrected_root() -> None:
    parameters, _ = AdamSettings(kind="adam", epsilon=0.5).apply(
        START, AdamSettings(kind="adam", epsilon=0.5).initial(START), UPDATES[0], 0.1
    )
    np.testing.assert_allclose(parameters["w"], [1 + 0.1 * 0.5 / 1.0, -2 - 0.1 * 1.0 / 1.5])


@pytest.mark.parametrize(
    "optimizer",
    [
        SgdSettings(kind="sgd"),
        SgdSettings(kind="sgd", momentum=0.9),
        AdagradSettings(kind="adagrad"),
        AdamSettings(kind="adam"),
    ],
)
def test_blocks_and_changes_by_rows_make_no_difference(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, index = np.random.default_rng(3), np.array([0, 5, 6, 12])
    start = {
        "table": rng.standard_normal((13, 3)).astype(np.float32),
        "row": rng.standard_normal(13).astype(np.float32),
    }
    results = []
    for numbers, by_rows in ((10**6, False), (10**6, True), (9, False), (9, True)):
        monkeypatch.setattr(server_optimizers, "_BLOCK_NUMBERS", numbers)
        parameters, state = start, optimizer.initial(start)
        changes = np.random.default_rng(4)
        for _ in range(3):
            rows = {
                "table": TableRows(index, changes.standard_normal((4, 3)).astype(np.float32), 13),
                "row": TableRows(index, changes.standard_normal(4).astype(np.float32), 13),
            }
            update = rows if by_rows else {name: table.whole() for name, table in rows.items()}
            parameters, state = optimizer.apply(parameters, state, update, 0.1)
        results.append({**parameters, **state})
    first, *others = results
    assert not np.array_equal(first["table"], start["table"])
    for other in others:
        assert first.keys() == other.keys()
        assert all(first[name].tobytes() == other[name].tobytes() for name in first)


@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_float32_stays_float32(kind: str) -> None:
    optimizer: Any = TypeAdapter(ServerOptimizer).validate_python({"kind": kind})
    start = {"w": np.ones(3, np.float32)}
    parameters, state = optimizer.apply(start, optimizer.initial(start), {"w": np.ones(3, np.float32)}, 0.1)
    assert parameters["w"].dtype == np.float32
    assert all(array.dtype == np.float32 for name, array in state.items() if name != "updates")


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({"kind": "constant"}, [1.0, 1.0, 1.0]),
        ({"kind": "inverse-time", "half_after": "10"}, [1.0, 0.5, 1 / 3]),
        ({"kind": "step", "every": "10", "factor_per_step": "10%"}, [1.0, 0.1, 0.01]),
        ({"kind": "exponential", "factor_per_round": "0.9"}, [1.0, 0.9**10, 0.9**20]),
        ({"kind": "cosine", "rounds": "20", "final": "20%"}, [1.0, 0.6, 0.2]),
    ],
)
def test_schedules_at_rounds_0_10_and_20(settings: dict[str, str], factors: list[float]) -> None:
    schedule: Any = TypeAdapter(Schedule).validate_python(settings)
    assert [schedule.factor(t) for t in (0, 10, 20)] == pytest.approx(factors)


def test_a_cosine_stays_at_its_end() -> None:
    schedule = CosineSchedule(kind="cosine", rounds=20, final=0.2)
    assert schedule.factor(1000) == pytest.approx(0.2)


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "sgd", "momentum": "1"},
        {"kind": "adam", "beta1": "100%"},
        {"kind": "adam", "epsilon": "0"},
        {"kind": "adam", "momentum": "0.1"},
        {"kind": "lion"},
    ],
)
def test_bad_optimizers_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(ServerOptimizer).validate_python(settings)
