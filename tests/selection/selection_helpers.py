"""Fleets and histories for tests of selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.engine.fleet import Fleet, Makeup
from coordinator.engine.selection.base import Floats, Ids, Knowledge, Selector, make_selector
from coordinator.engine.selection.experience import Experience
from coordinator.scenario.registered_sections import SECTIONS
from device_profiles import catalogue
from device_profiles.availability import Always, AvailabilityProfile
from edge.device.availability.build import build


def fleet_of(n: int, availability: AvailabilityProfile | None = None, seed: int = 1) -> Fleet:
    """Return a fleet of ``n`` phones that are always available, unless an availability is given."""
    known = catalogue.load([])
    alike = np.zeros(n, np.uint8)
    makeup = Makeup(
        devices=(known.device("phone_mid_2020"),),
        networks=(known.network("wifi_home"),),
        device_class=alike,
        network=alike,
        traces=(),
        link=((0, -1),),
        link_kind=alike,
    )
    return Fleet(
        seed,
        makeup,
        alike,
        ("region-0",),
        lambda batteries: build(
            availability or Always("always"), seed, utc_offset_s=0.0, region=None, battery_j=None
        ),
    )


def knowledge_of(
    fleet: Fleet,
    *,
    seed: int = 1,
    examples: Ids | None = None,
    predicted_s: Floats | None = None,
    deadline_s: float = 60.0,
) -> Knowledge:
    """Return knowledge of a fleet, with 10 examples and 1 s a device where nothing else is said."""
    held = np.full(fleet.n, 10) if examples is None else examples
    predicted = np.ones(fleet.n) if predicted_s is None else predicted_s
    return Knowledge(
        seed,
        fleet,
        Experience(fleet.n),
        lambda ids: held[ids],
        lambda ids: predicted[ids],
        lambda number, now_s: deadline_s,
    )


def selector_of(policy: str, knowledge: Knowledge, **settings: Any) -> Selector:
    """Return the selector of a policy with settings as a scenario writes them."""
    return make_selector(SECTIONS[policy].model_validate({"policy": policy, **settings}), knowledge)


def report(
    experience: Experience,
    device: int,
    *,
    round_number: int = 1,
    examples: int = 10,
    loss: float = 1.0,
    duration_s: float = 1.0,
) -> None:
    """Let a report arrive."""
    experience.answered(device, round_number, duration_s)
    experience.reported(device, round_number, examples, loss)
