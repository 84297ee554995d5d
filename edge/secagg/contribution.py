"""A client update as the values that a secure sum takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.crypto.errors import MalformedMessageError, WeightError, WrongLengthError
from edge.learning.updates import ClientUpdate
from edge.secagg.config import CountPart, RealPart

EXAMPLES = "examples"
"""The part of whole numbers that counts examples, [1]."""
LOSS = "loss"
"""The real part that holds the training loss, [1], so that the sum has it times the examples."""


def part_values(
    parts: Sequence[RealPart | CountPart], update: ClientUpdate
) -> tuple[dict[str, npt.NDArray[Any]], int]:
    """Return a value for each part, neither clipped nor weighted, and the weight.

    The arrays of an update are multiplied by its weight already; a secure sum multiplies after clipping, so
    here floats are divided by it. Whole numbers are taken as they are: no weight applies to them. An array
    becomes one dimension, row by row, and keeps its dtype. The sum of losses is one over examples, whatever
    the weight.

    Parameters
    ----------
    parts : of the configuration: one named like each array of the update, and ``EXAMPLES`` and ``LOSS`` if
        they shall be summed, too.
    update : the update.

    Raises
    ------
    ``WeightError`` for a weight that is negative or no whole number, ``MalformedMessageError`` for arrays
    without a part or parts without a value, ``WrongLengthError`` for an array of another size than its part.
    """
    if not (update.weight >= 0 and float(update.weight).is_integer()):
        raise WeightError(f"the weight {update.weight} is not a whole number; a secure sum takes no other")
    weight = int(update.weight)
    values: dict[str, npt.NDArray[Any]] = {}
    for part in parts:
        if part.name in update.arrays:
            array = update.arrays[part.name]
            if array.size != part.length:
                raise WrongLengthError(
                    f"array {part.name!r} has {array.size} elements; its part {part.length}"
                )
            flat = array.reshape(-1)
            weighted = flat.dtype.kind == "f" and weight > 1
            values[part.name] = flat / flat.dtype.type(weight) if weighted else flat
        elif part.name == EXAMPLES:
            values[part.name] = np.array([update.examples], np.int64)
        elif part.name == LOSS:
            # The sum multiplies by the weight, and the loss is a mean over examples, which may be more.
            per_weight = update.examples / weight if weight else 0.0
            values[part.name] = np.array([update.loss * per_weight], np.float64)
    missing = [part.name for part in parts if part.name not in values]
    unknown = sorted(update.arrays.keys() - values.keys())
    if missing or unknown:
        raise MalformedMessageError(
            f"parts without a value: {missing!s:.60}; arrays without a part: {unknown}"
        )
    return values, weight
