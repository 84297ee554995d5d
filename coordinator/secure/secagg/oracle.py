"""The sum in the clear, beside the protocol: what secure aggregation must give, for tests and metrics only.

A simulation sees every device's input and every released share. The coordinator of a deployment sees neither,
and nothing here is on the protocol's path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from edge.core.errors import LocalProtocolError
from edge.crypto.ring import RingVector
from edge.secagg.config import SecAggConfig


class Oracle:
    """Watches one round.

    Parameters
    ----------
    config : of the round.
    """

    def __init__(self, config: SecAggConfig) -> None:
        self._ring = config.ring
        self._length = config.length
        self._inputs: dict[int, RingVector] = {}
        self._arrived: set[int] = set()
        self._total: RingVector | None = None
        """The sum of the inputs that arrived; those are kept no longer."""
        self._seeds: defaultdict[int, set[int]] = defaultdict(set)
        self._keys: defaultdict[int, set[int]] = defaultdict(set)

    def watch(self, device: int, vector: RingVector) -> None:
        """Keep a copy of a device's encoded input, [L], before it is masked."""
        self._inputs[device] = vector.copy()

    def arrived(self, device: int) -> None:
        """Add the input of ``device``, which the coordinator took; from now on only the sum is kept."""
        vector = self._inputs.pop(device)
        if self._total is None:
            self._total = vector
        else:
            self._ring.add_into(self._total, vector)
        self._arrived.add(device)

    def expected(self, survivors: Iterable[int]) -> RingVector:
        """Return the sum of the inputs of ``survivors`` in the ring, [L].

        Raises ``LocalProtocolError`` if an input that was taken is not among them.
        """
        listed = set(survivors)
        if not self._arrived <= listed:
            missing = sorted(self._arrived - listed)[:5]
            raise LocalProtocolError(f"inputs of devices {missing} were taken and are not in the sum")
        total = self._ring.zeros(self._length) if self._total is None else self._total.copy()
        for device in listed - self._arrived:
            self._ring.add_into(total, self._inputs[device])
        return total

    def sum_error(self, total: RingVector, survivors: Iterable[int]) -> int:
        """Return the largest absolute difference of ``total`` from the sum in the clear, in ring units.

        The difference is taken in the ring and read as a signed number: 0 is bit-exact.
        """
        difference = total.copy()
        self._ring.subtract_into(difference, self.expected(survivors))
        signed = self._ring.to_signed(difference)
        # The most negative number has no positive counterpart in its own dtype.
        return max(int(signed.max()), -int(signed.min()))

    def released(self, holder: int, owners: Iterable[int], dead: frozenset[int]) -> None:
        """Count a share of each of ``owners`` that ``holder`` released: of the mask key if in ``dead``."""
        for owner in owners:
            (self._keys if owner in dead else self._seeds)[owner].add(holder)

    def double_reveals(self, threshold: int) -> int:
        """Return of how many devices both secrets could be rebuilt from what was released."""
        both = self._keys.keys() & self._seeds.keys()
        return sum(min(len(self._keys[owner]), len(self._seeds[owner])) >= threshold for owner in both)
