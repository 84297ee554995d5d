"""Random rounds: how many devices are invited, which, and how long they are waited for."""

from __future__ import annotations

import math
from typing import Any, Final

from coordinator.scenario.model import random_settings
from coordinator.scenario.registered_sections import SECTIONS
from edge.core.rng import Draws

Settings = dict[str, Any]

_OFTEN: Final = {"random": 4.0, "availability-aware": 3.0}
"""How often a policy is drawn; others are as 1.0."""


def rounds(draws: Draws, devices: int, *, least: int, least_quorum: int) -> Settings:
    """Return cohort, deadline, over-selection, quorum and retries.

    ``least`` are the fewest devices of a cohort, ``least_quorum`` the fewest reports that may be enough.
    """
    cohort = draws.whole(least, max(least, min(devices, 12)))
    made: Settings = {"cohort": cohort, "deadline": f"{draws.between(1, 600):.4g} s"}
    most = devices / cohort
    if most > 1 and draws.chance(0.5):
        # Rounded down: more devices than there are must not be invited.
        made["over_select"] = f"{int(100 * min(draws.between(1.0, 3.0), most))}%"
    if least_quorum > 1:
        made["quorum"] = draws.whole(least_quorum, cohort)
    elif draws.chance(0.7):
        made["quorum"] = draws.whole(1, cohort) if draws.chance(0.5) else f"{draws.whole(5, 100)}%"
    if draws.chance(0.3):
        made["retry"] = {
            "attempts": draws.whole(1, 5),
            "first_backoff": f"{draws.between(0.05, 20):.4g} s",
            "factor": draws.between(1, 4),
        }
    return made


def quorum_reports(made: Settings) -> int:
    """Return how many reports a round needs, at least."""
    quorum = made.get("quorum", 1)
    return quorum if isinstance(quorum, int) else math.ceil(int(quorum[:-1]) * made["cohort"] / 100)


def selection(draws: Draws, *, losses_seen: bool, speeds_seen: bool) -> Settings:
    """Return who is invited; some policies look at the losses or the speeds that devices report."""
    fitting = [
        (section.needs_losses, section.by_reports, name)
        for name, section in SECTIONS.items()
        if (speeds_seen or not section.by_reports) and (losses_seen or not section.needs_losses)
    ]
    # Those that look at nothing come first: which one is drawn follows from the order.
    ordered = [name for _, _, name in sorted(fitting, key=lambda one: one[:2])]
    policy = draws.weighted({name: _OFTEN.get(name, 1.0) for name in ordered})
    section = SECTIONS[policy]
    required = [name for name, info in section.model_fields.items() if info.is_required()]
    return {"selection": random_settings(section, draws) if required[1:] else policy}


def pacing(
    draws: Draws,
    made: Settings,
    devices: int,
    *,
    clear: bool,
    in_part: bool,
    without_rounds: bool,
    speeds_seen: bool,
) -> Settings:
    """Return how rounds wait for their devices, and take out of the rounds ``made`` what does not go with it.

    ``clear`` says whether updates are reported in the clear, ``in_part`` whether a part of one is of use,
    ``without_rounds`` whether there need not be rounds, ``speeds_seen`` whether it may look at who was fast.
    """
    modes = {"synchronous": 8}
    if in_part:
        modes["partial-work"] = 2
    reports = quorum_reports(made)
    if speeds_seen and devices // reports >= 2:
        modes["tiers"] = 2
    if without_rounds:
        modes["buffered"] = 1
    mode = draws.weighted(modes)
    found: Settings = {"mode": mode}
    if mode == "buffered":
        made.pop("over_select", None)
        found |= {"concurrency": draws.whole(1, devices), "staleness_limit": draws.whole(0, 5)}
        return {"pacing": found}
    if mode == "tiers":
        found["tiers"] = draws.whole(2, min(4, devices // reports))
        found |= {key: draws.whole(1, 3) for key in ("profiling", "every", "credits")}
    if clear and draws.chance(0.3):
        found["grace"] = f"{draws.between(0.05, 60):.4g} s"
    return {} if found == {"mode": "synchronous"} else {"pacing": found}


def is_buffered(made: Settings) -> bool:
    """Return whether there are no rounds but a buffer."""
    return "concurrency" in made.get("pacing", {})
