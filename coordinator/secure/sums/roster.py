"""The roster of a simulated fleet, for the active mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edge.crypto.entropy import SeededEntropy
from edge.crypto.keys import Identity

_DRAWS_OF_ROSTER = 0
"""The round whose entropy makes a device's identity; rounds count from 1."""


class SeededRoster(Mapping[int, bytes]):
    """The identities of a fleet, made from the run's seed when they are first asked for.

    Parameters
    ----------
    key : 32 bytes.
    devices : how many there are.
    """

    def __init__(self, key: bytes, devices: int) -> None:
        self._key = key
        self._devices = devices
        self._identities: dict[int, Identity] = {}

    def identity(self, device: int) -> Identity:
        """Return the identity of a device, which only it should ever hold."""
        found = self._identities.get(device)
        if found is None:
            if not 0 <= device < self._devices:
                raise KeyError(device)
            entropy = SeededEntropy(self._key, device, _DRAWS_OF_ROSTER)
            found = self._identities[device] = Identity.generate(entropy)
        return found

    def __getitem__(self, device: int) -> bytes:
        """Return the public identity of a device."""
        return self.identity(device).public

    def __contains__(self, device: object) -> bool:
        return isinstance(device, int) and 0 <= device < self._devices

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._devices))

    def __len__(self) -> int:
        return self._devices
