"""What chance draws for the frames of a round, on either clock.

Frame ``n`` of a device in a round (counted in both directions together, in the order of their sending) has
the key ``hash(link key, device, round, n)``, with the link key of the stream ``"link", "frames"``. So what is
drawn for a frame depends on nothing but its place in the device's round.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from edge.core.rng import hashed_bits_scalar, uniform_source

JITTER = 0
LOSS = 1 << 32
HANDSHAKE = 2 << 32
"""Where the counters of a frame's draws begin: its jitter, its losses, those of the handshake before."""
REPEATED = 1 << 20
"""Added to the number of a frame that is sent again; a device sends fewer frames than this in a round."""


def frame_draws(round_key: int, number: int, first: int) -> Callable[[], float]:
    """Return the source of uniforms in (0, 1) of frame ``number`` in a device's round, from ``first`` on."""
    return uniform_source(hashed_bits_scalar(round_key, number), first)


def frame_jitter(round_key: int, number: int, mean_s: float) -> float:
    """Return the jitter of frame ``number`` in a device's round: exponential, of ``mean_s`` seconds."""
    return -mean_s * math.log(frame_draws(round_key, number, JITTER)())
