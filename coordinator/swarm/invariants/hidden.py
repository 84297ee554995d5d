"""What devices put into a secure sum, read as the numbers that it stands for."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.engine.secure_sums import SecureSums
from coordinator.secure.sums.encrypted import EncryptedSums
from coordinator.secure.sums.masked import MaskedSums
from edge.secagg.config import RealPart
from edge.secagg.inputs import EXAMPLES

Floats = npt.NDArray[np.float64]


class Real(NamedTuple):
    """Real numbers of an input or a sum, [length], and what one ``unit`` of their encoding stands for."""

    values: Floats
    unit: float


class Decoded(NamedTuple):
    """One input, or a sum of some: the arrays by name, and the counts beside them."""

    reals: dict[str, Real]
    examples: int
    weight: int
    contributors: int


def decode(sums: SecureSums, encoded: npt.NDArray[Any]) -> Decoded:
    """Return what an input to ``sums`` stands for, or a sum of inputs.

    Parameters
    ----------
    sums : how updates are summed.
    encoded : whole numbers [L], of a sum beyond the ring as they are.
    """
    if isinstance(sums, MaskedSums):
        modulus, parts = 2**sums.config.bits, sums.config.parts
        units = {name: 1.0 / quantizer.scale for name, quantizer in sums.config.quantizers.items()}
        whole = [(int(value) + modulus // 2) % modulus - modulus // 2 for value in encoded]
    else:
        assert isinstance(sums, EncryptedSums)
        parts = sums.config.parts
        reals = (part for part in parts if isinstance(part, RealPart))
        units = {part.name: part.clip / sums.config.levels for part in reals}
        whole = [int(value) for value in encoded]
    found, examples, start = {}, 0, 0
    for part in parts:
        values = whole[start : start + part.length]
        start += part.length
        if isinstance(part, RealPart):
            found[part.name] = Real(np.array(values, np.float64) * units[part.name], units[part.name])
        elif part.name == EXAMPLES:
            examples = values[0]
    weight, contributors = whole[start : start + 2]
    return Decoded(found, examples, weight, contributors)
