"""What comes out of a round of secure aggregation."""

from __future__ import annotations

from typing import NamedTuple

from edge.crypto.errors import SumMismatchError
from edge.crypto.ring import RingVector
from edge.secagg.checks import DeviceIds
from edge.secagg.config import RealPart, SecAggConfig
from edge.secagg.inputs import read_tail


class SecAggResult(NamedTuple):
    """The outcome of a round.

    ``total`` is the sum in the ring, [L]; :func:`edge.secagg.inputs.decode_sum` gives its vectors. ``weight``
    and ``contributors`` are read from it. ``survivors`` are the ids of those whose inputs are in it, ``dead``
    of those that shared their secrets and did not contribute, int64, ascending.
    """

    total: RingVector
    weight: int
    contributors: int
    survivors: DeviceIds
    dead: DeviceIds


def read_sum(config: SecAggConfig, total: RingVector, survivors: DeviceIds, dead: DeviceIds) -> SecAggResult:
    """Return the outcome in an unmasked ``total``, [L].

    Raises ``SumMismatchError`` if it was not made from one input of each survivor: masks that do not cancel
    leave noise, which says so with probability 1 − 2**−bits. A total weight that somebody made too small for
    the updates is found by elements that are larger than so much weight allows.
    """
    weight, contributors = read_tail(config, total)
    if contributors != len(survivors) or not 0 <= weight <= len(survivors) * config.weight_max:
        raise SumMismatchError(
            f"the sum says {contributors} contributors of weight {weight}; {len(survivors)} inputs "
            f"were added, of weight up to {config.weight_max} each"
        )
    whole, start = config.ring.to_signed(total), 0
    for part in config.parts:
        values = whole[start : start + part.length]
        if isinstance(part, RealPart):
            quantizer = config.quantizers[part.name]
            largest = weight * quantizer.levels + contributors * quantizer.noise_levels
        else:
            largest = contributors * part.value_max
        if max(int(values.max()), -int(values.min())) > largest:
            raise SumMismatchError(f"part {part.name!r} of the sum is beyond what its inputs can add up to")
        start += part.length
    return SecAggResult(total, weight, contributors, survivors, dead)
