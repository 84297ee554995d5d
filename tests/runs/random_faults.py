"""Random faults of every registered kind for random scenarios."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from coordinator.swarm.storms import Stormy, fault
from edge.core.rng import Draws

PLAIN_STAGES = ("invite", "download", "report", "acknowledge")
"""Where frames can be struck in rounds whose updates are reported."""
_STORM_S = 6.0
_SHARES = ("20%", "50%", "100%")


def random_faults(
    generator: random.Random,
    stages: Sequence[str] = PLAIN_STAGES,
    most: int = 4,
    *,
    of_rounds: bool = True,
) -> str:
    """Return the section ``faults`` with one to ``most`` faults; frames are sent in each of ``stages``.

    Not ``of_rounds``, they are of kinds that strike single devices.
    """
    draws = Draws(generator.randrange(2**31), "faults")
    storm = Stormy(tuple(stages), _STORM_S, 1, 1, ("any",), ("any",), buffered=not of_rounds)
    made = [fault(draws, f"fault-{number}", storm) for number in range(generator.randint(1, most))]
    for one in made:
        one.pop("during", None)
        if "on" in one:
            one["on"] = {"fraction": draws.one(_SHARES)}
    return f"faults: {json.dumps(made)}\n"
