"""Random faults for random scenarios."""

from __future__ import annotations

import random
from collections.abc import Sequence

PLAIN_STAGES = ("invite", "download", "report", "acknowledge")
"""Where frames can be struck in rounds whose updates are reported."""
_KINDS = (
    "vanish: {}",
    "reset: {}",
    "reset: {probability: 5%}",
    "slowdown: {factor: 30}",
    "bandwidth: {up: 30 kbit/s, down: 60 kbit/s}",
    "bandwidth: {scale: 10%}",
    "latency: {mean: 400 ms, jitter: 100 ms}",
    "loss: {probability: 25%}",
    "blackout: {}",
    "flapping: {period: 3 s, up: 50%}",
    "late: {by: 4 s, probability: 40%}",
    "duplicate: {probability: 40%}",
    "reorder: {wait: 1 s, probability: 40%}",
    "corrupt: {probability: 10%}",
    "battery_drain: {level: 0%}",
    "memory_pressure: {factor: 0.0001%}",
    "clock_skew: {ahead: 1 s}",
    "clock_skew: {behind: 3 s}",
    "flash_crowd: {after: 2 s}",
    "poisoned_updates: {kind: nan}",
    "poisoned_updates: {kind: huge-norm}",
    "coordinator_slow: {handling: 30 ms}",
    "coordinator_crash: {}",
)
_PINNED = ("vanish", "reset: {}", "blackout", "late", "duplicate", "reorder", "corrupt", "loss", "latency")
_OF_COORDINATOR = ("coordinator_slow", "coordinator_crash")
_OF_ROUNDS = (*_OF_COORDINATOR, "flash_crowd")


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
    kinds = [kind for kind in _KINDS if of_rounds or not kind.startswith(_OF_ROUNDS)]
    lines = ["faults:"]
    for number in range(generator.randint(1, most)):
        kind = generator.choice(kinds)
        parts = [f"name: fault-{number}", kind]
        name = kind.split(":", maxsplit=1)[0]
        if not kind.startswith(_OF_COORDINATOR):
            parts.append(f"on: {{fraction: {generator.choice(['20%', '50%', '100%'])}}}")
        must_begin = kind in ("vanish: {}", "reset: {}", "coordinator_crash: {}")
        how = generator.choice(["stage", "time"] if must_begin else ["stage", "time", "always"])
        if how == "stage" and kind.startswith(_PINNED):
            parts.append(f"at_stage: {generator.choice(stages)}")
        elif how == "time" or must_begin:
            parts += [f"at: {generator.uniform(0.0, 6.0):.2f} s", f"for: {generator.uniform(0.2, 5.0):.2f} s"]
        if name in ("blackout", "late", "corrupt", "loss", "latency") and generator.random() < 0.4:
            parts.append(f"direction: {generator.choice(['up', 'down'])}")
        lines.append(f"  - {{{', '.join(parts)}}}")
    return "\n".join([*lines, ""])
