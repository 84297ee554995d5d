"""Standard deviations of noise: what a sum has, and each share of it.

Apart from the noise itself, so that a scenario is checked without cryptography.
"""

from __future__ import annotations

import math

from edge.core.errors import LocalProtocolError


def share_sd(sum_sd: float, contributors: int) -> float:
    """Return the standard deviation of each share of noise whose sum over ``contributors`` has ``sum_sd``.

    Raises ``LocalProtocolError`` for less than one contributor, or a ``sum_sd`` that is negative or not
    finite.
    """
    check_sd(sum_sd)
    if contributors < 1:
        raise LocalProtocolError(f"noise is shared by 1 or more contributors, not {contributors}")
    return sum_sd / math.sqrt(contributors)


def check_sd(sd: float) -> None:
    """Raise ``LocalProtocolError`` for a standard deviation of noise that is negative or not finite."""
    if not 0 <= sd < math.inf:
        raise LocalProtocolError(f"a standard deviation of noise is 0 or more and finite, not {sd}")
