"""The seeds of the masks, as device and coordinator both derive them.

Each seed serves one vector of one round: session and round are bound into it, and the two devices.
"""

from __future__ import annotations

from edge.crypto.keys import KeyPair, derive
from edge.crypto.prg import SEED_BYTES

VECTOR = "input"
"""The role of the one masked vector of a round."""


def pair_seed(
    mask_key: KeyPair, other_public: bytes, session: bytes, round_number: int, owner: int, other: int
) -> bytes:
    """Return s_uv, 16 bytes: the seed of the mask that ``owner`` of ``mask_key`` shares with ``other``.

    Both of the pair get the same. Raises ``LowOrderPointError``.
    """
    low, high = (owner, other) if owner < other else (other, owner)
    return derive(
        mask_key.agree(other_public),
        label="pairwise-mask",
        session=session,
        round_number=round_number,
        role=VECTOR,
        low=low,
        high=high,
        length=SEED_BYTES,
    )


def self_seed(secret: bytes, session: bytes, round_number: int, device: int) -> bytes:
    """Return the 16-byte seed of a device's self-mask from its 32-byte secret b_u."""
    return derive(
        secret,
        label="self-mask",
        session=session,
        round_number=round_number,
        role=VECTOR,
        low=device,
        high=device,
        length=SEED_BYTES,
    )
