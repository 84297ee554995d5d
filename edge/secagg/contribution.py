"""A client update as the parts of a secure sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.learning.base import ClientUpdate
from edge.secagg.config import CountPart, RealPart
from edge.secagg.errors import MalformedMessageError, WeightError, WrongLengthError

EXAMPLES = "examples"
"""The part that takes the update's number of examples, if a configuration has it."""
LOSS = "loss"
"""The part that takes the update's loss, if a configuration has it."""


def part_values(
    parts: Sequence[RealPart | CountPart], update: ClientUpdate
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """Return the values of each part, [length], and the weight that real ones are to be multiplied by.

    Parameters
    ----------
    parts : of the round's configuration. Each is named after an array of the update, ``EXAMPLES`` or
        ``LOSS``; the latter two may be left out.
    update : its arrays are already multiplied by its weight, as everywhere. Floats are divided by it again,
        because values are clipped without their weight; whole numbers are taken as they are.

    Arrays are flattened in C order and keep their dtype; ``EXAMPLES`` is int64[1], ``LOSS`` float64[1].
    Nothing is clipped.

    Raises ``WeightError`` for a weight that is not a whole number from 0 up, ``MalformedMessageError`` for
    other names than those of the parts, ``WrongLengthError`` for an array of another size.
    """
    if not (update.weight >= 0 and float(update.weight).is_integer()):
        raise WeightError(f"the weight {update.weight} is not a whole number; secure sums take no others")
    weight = int(update.weight)
    names = {part.name for part in parts}
    scalars: dict[str, npt.NDArray[Any]] = {
        EXAMPLES: np.array([update.examples], dtype=np.int64),
        LOSS: np.array([update.loss], dtype=np.float64),
    }
    if update.arrays.keys() != names - scalars.keys():
        raise MalformedMessageError(
            f"the update has the arrays {sorted(update.arrays)!s:.80}, not {sorted(names - scalars.keys())}"
        )
    values: dict[str, npt.NDArray[Any]] = {}
    for part in parts:
        if part.name in scalars:
            value = scalars[part.name]
        else:
            value = update.arrays[part.name].reshape(-1)
            # An update of weight 0 is 0 already.
            if value.dtype.kind == "f" and weight > 1:
                value = value / weight
        if value.size != part.length:
            raise WrongLengthError(f"part {part.name!r} has {value.size} elements, not {part.length}")
        values[part.name] = value
    return values, weight
