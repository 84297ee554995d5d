"""A device's vectors to the one ring vector that is masked, and the sum back to vectors.

The parts lie one after the other in the order of the configuration. Behind them come the weight and a one, so
that the sum says the total weight and over how many devices it was made.

Where the configuration has noise on a part, every device adds its own share before masking: discrete
Gaussian, in ring units, after rounding. Counts, the weight and the one get none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edge.crypto.entropy import Entropy
from edge.crypto.errors import MalformedMessageError, WeightError, WrongDtypeError, WrongLengthError
from edge.crypto.noise import discrete_gaussian
from edge.crypto.prg import SEED_BYTES, Keystream
from edge.crypto.ring import RingVector
from edge.learning.updates import ClientUpdate
from edge.secagg.config import CountPart, RealPart, SecAggConfig
from edge.secagg.quantize import Quantized, encode_integers

EXAMPLES = "examples"
"""The part of whole numbers that counts examples, [1]."""
LOSS = "loss"
"""The real part that holds the training loss, [1], so that the sum has it times the examples."""


class Sums(NamedTuple):
    """A decoded sum over ``contributors`` devices of total weight ``weight``.

    ``reals`` holds Σ weight·value plus the devices' noise for each real part, float64[length], ``counts``
    Σ value for each part of whole numbers, int64[length].
    """

    reals: dict[str, npt.NDArray[np.float64]]
    counts: dict[str, npt.NDArray[np.int64]]
    weight: int
    contributors: int


def encode_input(
    config: SecAggConfig, values: Mapping[str, npt.NDArray[Any]], weight: int, entropy: Entropy
) -> Quantized:
    """Return a device's input as elements of the ring, [L], and counts of its values.

    Parameters
    ----------
    config : the round's configuration.
    values : an array for each of its parts: float32 or float64 for real ones, signed integers for counts.
    weight : a whole number from 0 to ``weight_max``; real parts are multiplied by it.
    entropy : where the randomness of stochastic rounding comes from, and that of the noise. A draw beyond
        the room that the plan left for noise (12 standard deviations) is drawn again.

    Raises ``WeightError``, ``NotFiniteError``, ``ValueRangeError``, ``WrongDtypeError``,
    ``WrongLengthError``, and ``MalformedMessageError`` for missing or unknown parts.
    """
    names = {part.name for part in config.parts}
    if values.keys() != names:
        raise MalformedMessageError(f"the input has the parts {sorted(values)!s:.80}, not {sorted(names)}")
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= config.weight_max:
        raise WeightError(f"the weight {weight!r:.40} is not a whole number from 0 to {config.weight_max}")
    vector = config.ring.zeros(config.length)
    clipped = nonzero = 0
    start = 0
    for part in config.parts:
        value = values[part.name]
        if value.shape != (part.length,):
            raise WrongLengthError(f"part {part.name!r} has shape {value.shape}, not ({part.length},)")
        room = vector[start : start + part.length]
        if isinstance(part, RealPart):
            quantizer = config.quantizers[part.name]
            rounding = Keystream(entropy.bytes(SEED_BYTES))
            quantized = quantizer.quantize(value, rounding.words, weight=weight, out=room)
            clipped += quantized.clipped
            nonzero += quantized.nonzero
            if part.noise_sd:
                noise = discrete_gaussian(
                    entropy.bytes(SEED_BYTES),
                    part.noise_sd * quantizer.scale,
                    part.length,
                    largest=quantizer.noise_levels,
                )
                config.ring.add_into(room, config.ring.from_signed(noise))
        else:
            if value.dtype.kind != "i":
                raise WrongDtypeError(f"part {part.name!r} holds signed integers, not {value.dtype}")
            room[:] = encode_integers(value, config.ring, n_max=config.n_max, value_max=part.value_max)
        start += part.length
    vector[start:] = (weight, 1)
    return Quantized(vector, clipped, nonzero)


def decode_sum(config: SecAggConfig, total: RingVector) -> Sums:
    """Return the vectors, weight and number of contributors of an unmasked sum ``total`` of the ring, [L].

    Raises ``WrongDtypeError`` and ``WrongLengthError``.
    """
    weight, contributors = read_tail(config, total)
    whole = config.ring.to_signed(total)
    reals: dict[str, npt.NDArray[np.float64]] = {}
    counts: dict[str, npt.NDArray[np.int64]] = {}
    start = 0
    for part in config.parts:
        end = start + part.length
        if isinstance(part, RealPart):
            reals[part.name] = config.quantizers[part.name].dequantize(total[start:end])
        else:
            counts[part.name] = whole[start:end].astype(np.int64)
        start = end
    return Sums(reals, counts, weight, contributors)


def read_tail(config: SecAggConfig, total: RingVector) -> tuple[int, int]:
    """Return total weight and number of contributors of a sum, without decoding its vectors.

    Raises ``WrongDtypeError`` and ``WrongLengthError``.
    """
    config.ring.check(total, config.length)
    weight, contributors = config.ring.to_signed(total)[-2:].tolist()
    return weight, contributors


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
