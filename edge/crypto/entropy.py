"""Where secret bytes come from: the operating system, or for runs that replay, a keystream of the seed.

Keys, self-mask seeds and the coefficients of shares are drawn through an :class:`Entropy` that is passed in,
so that no primitive decides by itself where its secrets come from.
"""

from __future__ import annotations

import builtins
import enum
import os
from typing import Protocol

from edge.core.errors import LocalProtocolError


class SecretSource(enum.Enum):
    """Where a coordinator's secrets come from."""

    SEED = "seed"
    """The run's seed, for simulations: whoever has the scenario can compute them."""
    SYSTEM = "system"
    """The operating system: nobody can, and no two runs have the same."""


_LABEL = b"recfleet/secagg/entropy/1"
_SMALLEST_KEY_BYTES = 16
_SEED_BYTES = 32


class Entropy(Protocol):
    """A source of secret bytes."""

    def bytes(self, n: int) -> builtins.bytes:
        """Return ``n`` fresh bytes, never the same ones again; ``n`` is not negative."""
        ...


class SystemEntropy:
    """The operating system's cryptographic generator: the one for every deployment."""

    def bytes(self, n: int) -> builtins.bytes:
        """Return ``n`` bytes of ``os.urandom``."""
        return os.urandom(n)


def fresh_seed() -> int:
    """Return an unpredictable seed for named streams, from the system's source of entropy."""
    return int.from_bytes(SystemEntropy().bytes(_SEED_BYTES))


class SeededEntropy:
    """AES-128-CTR keystream under a key derived by HKDF-SHA256 from the run's key, the device and the round.

    For simulation and tests only, so that a run replays byte by byte: whoever knows the run's seed knows
    every secret. Never use it in a deployment.

    Raises ``LocalProtocolError`` for a key shorter than 16 bytes, or a negative device or round.
    """

    def __init__(self, key: builtins.bytes, device: int, round_number: int) -> None:
        if len(key) < _SMALLEST_KEY_BYTES:
            raise LocalProtocolError(
                f"a key of {len(key)} bytes can be guessed; give at least {_SMALLEST_KEY_BYTES} bytes"
            )
        if device < 0 or round_number < 0:
            raise LocalProtocolError(f"device {device} and round {round_number} must not be negative")
        # Not above: every run knows where its secrets come from, and few have any.
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes  # noqa: PLC0415
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415

        info = _LABEL + device.to_bytes(8, "big") + round_number.to_bytes(8, "big")
        derived = HKDF(algorithm=hashes.SHA256(), length=16, salt=None, info=info).derive(key)
        self._stream = Cipher(algorithms.AES128(derived), modes.CTR(builtins.bytes(16))).encryptor()

    def bytes(self, n: int) -> builtins.bytes:
        """Return the next ``n`` bytes of the keystream."""
        return self._stream.update(builtins.bytes(n))
