"""The roster of real devices: the public identity of each, fixed before the run and known by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from edge.core.errors import RecfleetError
from edge.crypto.keys import PUBLIC_BYTES, Identity

_LABEL: Final = b"recfleet/secagg/1/roster/"


class RosterError(RecfleetError):
    """A roster that is none, or not the one that a device was enrolled with; the message says what to do."""


class Enrolled(NamedTuple):
    """What devices of a process were given before the run: identities, and the hash of the roster, 32 bytes.

    ``identity_of`` raises an error for a device that has none.
    """

    identity_of: Callable[[int], Identity]
    roster_hash: bytes


class Roster(Mapping[int, bytes]):
    """The public identities of devices 0, 1, 2 and so on, 32 bytes each.

    Parameters
    ----------
    encoded : all of them, one behind the other.

    Raises
    ------
    RosterError : those are no identities, or one of them is there twice.
    """

    def __init__(self, encoded: bytes) -> None:
        count, rest = divmod(len(encoded), PUBLIC_BYTES)
        if rest or not count:
            raise RosterError(f"{len(encoded)} bytes are no roster: each identity has {PUBLIC_BYTES}")
        self.encoded = encoded
        self._count = count
        if len(set(self.values())) < count:
            raise RosterError("an identity is on the roster twice: somebody would be two devices")
        self.hash: bytes = hashlib.sha256(_LABEL + count.to_bytes(8, "big") + encoded).digest()
        """What devices know the roster by, 32 bytes."""

    @classmethod
    def of(cls, identities: Iterable[bytes]) -> Roster:
        """Return the roster of public identities, those of devices 0, 1, 2 and so on.

        Raises
        ------
        RosterError : see the class.
        """
        return cls(b"".join(identities))

    def __getitem__(self, device: int) -> bytes:
        """Return the public identity of a device."""
        if not 0 <= device < self._count:
            raise KeyError(device)
        return self.encoded[device * PUBLIC_BYTES : (device + 1) * PUBLIC_BYTES]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))

    def __len__(self) -> int:
        return self._count
