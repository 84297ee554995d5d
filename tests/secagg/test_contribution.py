"""A client update as the parts of a secure sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.crypto import errors
from edge.learning.updates import ClientUpdate
from edge.secagg.config import CountPart, RealPart
from edge.secagg.inputs import part_values

FACTORS = RealPart("factors", 6, 1.0)
TOUCHED = CountPart("touched", 3, 1)
EXAMPLES = CountPart("examples", 1, 100)
LOSS = RealPart("loss", 1, 5.0)
TABLE = np.arange(6, dtype=np.float32).reshape(2, 3)


def update(weight: float = 4.0, **arrays: Any) -> ClientUpdate:
    made = {"factors": 4 * TABLE, "touched": np.array([4, 0, 8])} | arrays
    return ClientUpdate({name: array for name, array in made.items() if array is not None}, weight, 12, 0.5)


def test_real_arrays_lose_the_weight_and_keep_their_dtype() -> None:
    values, weight = part_values((FACTORS, TOUCHED), update())
    assert weight == 4
    assert type(weight) is int
    assert list(values) == ["factors", "touched"]
    assert values["factors"].tolist() == [0, 1, 2, 3, 4, 5]
    assert values["factors"].dtype == np.float32
    assert values["touched"].tolist() == [4, 0, 8]
    assert values["touched"].dtype == np.int64
    assert part_values((FACTORS, TOUCHED), update(factors=8.0 * TABLE.astype(np.float64)))[0][
        "factors"
    ].dtype == np.float64  # fmt: skip


def test_examples_and_loss_are_taken_if_the_configuration_has_them() -> None:
    values, _ = part_values((LOSS, FACTORS, EXAMPLES, TOUCHED), update())
    assert list(values) == ["loss", "factors", "examples", "touched"]
    assert (values["examples"].tolist(), values["examples"].dtype) == ([12], np.int64)
    # Weighted by 4 this is the loss of 12 examples.
    assert (values["loss"].tolist(), values["loss"].dtype) == ([1.5], np.float64)


def test_columns_are_flattened_row_by_row() -> None:
    columns = np.asfortranarray(TABLE)
    assert part_values((FACTORS, TOUCHED), update(1.0, factors=columns))[0]["factors"].tolist() == list(
        range(6)
    )


def test_the_update_is_left_as_it_was() -> None:
    whole = update()
    part_values((FACTORS, TOUCHED), whole)
    np.testing.assert_array_equal(whole.arrays["factors"], 4 * TABLE)


def test_an_update_of_no_weight_is_taken_as_it_is() -> None:
    values, weight = part_values((FACTORS, TOUCHED), update(0.0, factors=0 * TABLE))
    assert weight == 0
    assert not values["factors"].any()


@pytest.mark.parametrize("weight", [0.5, -1.0, np.nan, np.inf])
def test_weights_are_whole_numbers(weight: float) -> None:
    with pytest.raises(errors.WeightError):
        part_values((FACTORS, TOUCHED), update(weight))


@pytest.mark.parametrize(
    ("parts", "arrays", "error"),
    [
        ((FACTORS,), {}, errors.MalformedMessageError),
        ((FACTORS, TOUCHED, RealPart("bias", 1, 1.0)), {}, errors.MalformedMessageError),
        ((FACTORS, TOUCHED), {"examples": np.zeros(1)}, errors.MalformedMessageError),
        ((FACTORS, TOUCHED), {"factors": np.zeros(5)}, errors.WrongLengthError),
        ((FACTORS, TOUCHED), {"touched": np.zeros(4, dtype=np.int64)}, errors.WrongLengthError),
    ],
)
def test_other_arrays_than_planned_are_refused(
    parts: tuple[Any, ...], arrays: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        part_values(parts, update(**arrays))
