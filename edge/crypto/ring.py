"""Vectors modulo 2**32 or 2**64, the ring in which masks cancel.

numpy's unsigned integers wrap around, which is the addition of the ring for free. Elements are
little-endian, as they travel and as mask bytes are read, so every host computes the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError
from edge.crypto.errors import ValueRangeError, WrongDtypeError, WrongLengthError

RingVector = npt.NDArray[np.unsignedinteger[Any]]
"""uint32[L] or uint64[L], little-endian: elements of a ring."""


@dataclass(frozen=True)
class Ring:
    """The integers modulo ``2**bits``; ``bits`` is 32 or 64.

    Raises ``LocalProtocolError`` for other sizes: only these two wrap around by themselves.
    """

    bits: int = 32

    def __post_init__(self) -> None:
        if self.bits not in (32, 64):
            raise LocalProtocolError(f"a ring has 32 or 64 bits, not {self.bits}")

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Little-endian uint32 or uint64."""
        return np.dtype("<u4" if self.bits == 32 else "<u8")

    @cached_property
    def signed_dtype(self) -> np.dtype[np.signedinteger[Any]]:
        """Little-endian int32 or int64."""
        return np.dtype("<i4" if self.bits == 32 else "<i8")

    @property
    def largest(self) -> int:
        """The largest sum that :meth:`to_signed` gives back: ``2**(bits − 1) − 1``."""
        return int(2 ** (self.bits - 1)) - 1

    def zeros(self, length: int) -> RingVector:
        """Return the zero vector of ``length`` elements."""
        return np.zeros(length, dtype=self.dtype)

    def check(self, vector: npt.NDArray[Any], length: int) -> None:
        """Refuse what is not a vector of ``length`` elements of this ring.

        Raises ``WrongDtypeError`` and ``WrongLengthError``.
        """
        if vector.dtype != self.dtype:
            raise WrongDtypeError(f"a masked vector is {self.dtype}, not {vector.dtype}")
        if vector.shape != (length,):
            raise WrongLengthError(f"a masked vector has shape ({length},), not {vector.shape}")

    def add_into(self, total: RingVector, vector: RingVector) -> None:
        """Add ``vector`` to ``total`` in place, modulo ``2**bits``; both are checked."""
        self._check_pair(total, vector)
        np.add(total, vector, out=total)

    def subtract_into(self, total: RingVector, vector: RingVector) -> None:
        """Subtract ``vector`` from ``total`` in place, modulo ``2**bits``; both are checked."""
        self._check_pair(total, vector)
        np.subtract(total, vector, out=total)

    def to_signed(self, vector: RingVector) -> npt.NDArray[np.signedinteger[Any]]:
        """Return ``vector`` read as signed integers, a view: the upper half of the ring is negative."""
        self.check(vector, vector.size)
        return vector.view(self.signed_dtype)

    def from_signed(self, values: npt.NDArray[np.signedinteger[Any]]) -> RingVector:
        """Return signed integers (any signed dtype, one dimension) as elements of the ring, a new array.

        Raises ``WrongDtypeError`` for another kind of dtype, ``WrongLengthError`` for another number of
        dimensions, and ``ValueRangeError`` for a value that :meth:`to_signed` could not give back.
        """
        if values.dtype.kind != "i":
            raise WrongDtypeError(f"whole numbers have a signed integer dtype, not {values.dtype}")
        if values.ndim != 1:
            raise WrongLengthError(f"whole numbers come in one dimension, not {values.ndim}")
        if values.size and (int(values.max()) > self.largest or int(values.min()) < -self.largest - 1):
            raise ValueRangeError(
                f"values from {values.min()} to {values.max()} do not fit into {self.bits} signed bits"
            )
        return values.astype(self.signed_dtype).view(self.dtype)

    def _check_pair(self, total: RingVector, vector: RingVector) -> None:
        self.check(total, total.size)
        self.check(vector, total.size)
