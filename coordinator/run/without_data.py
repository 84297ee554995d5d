"""What a coordinator works with that has no data: method and fleet, from what is public.

Devices bring their ratings. The coordinator knows how many devices and items there are from the scenario
(``data.public``, or the section of synthetic ratings, which says as much), and so the mean rating where the
method begins with it, unless devices are asked (``data.mean_query``). What it cannot do without the ratings
is refused, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

from coordinator.engine.assembly import Assembly
from coordinator.engine.device_evaluation import MeasuredElsewhere
from coordinator.engine.workload import RemoteWorkload
from coordinator.run.assembling import begins_with_mean, complete, known_mean
from coordinator.scenario.data_section import (
    NoSplit,
    PublicFacts,
    SyntheticRatingsSection,
    SyntheticRegression,
    TemporalSplit,
    UserSplit,
)
from coordinator.scenario.errors import ScenarioError
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.privacy_section import PersonalGaussian
from coordinator.scenario.registered_sections import fitting_policies
from coordinator.simulation.fleet_assembly import build_fleet
from device_profiles.errors import DocumentError, Path
from edge.learning.base import Problem, Recommender
from edge.learning.registry import create

_ADVICE = "or let the service read the data: 'recfleet serve --with-data'"


def assemble_without_data(loaded: LoadedScenario) -> Assembly:
    """Return what a coordinator works with whose devices bring the data; no data is read or made.

    Raises
    ------
    ScenarioError : it needs the data, or does not say what must be known of it.
    """
    start_s = time.perf_counter()
    errors = [
        DocumentError(loaded.document.position(path), path, f"without the data: {message}", hint)
        for path, message, hint in _problems(loaded)
    ]
    if errors:
        raise ScenarioError(errors)
    scenario = loaded.scenario
    data = scenario.data
    assert not isinstance(data, SyntheticRegression), "refused"
    public = public_facts(loaded)
    assert public is not None, "refused"
    each = 1 + (data.negatives or 0)
    mean = known_mean(scenario, public, None)
    begins = begins_with_mean(scenario)
    if begins and mean.value is None and scenario.mean_query is None:
        path = ("data", "public")
        message = "without the data: this method begins with the mean rating, which is not said"
        hint = f"write 'rating_mean', which 'recfleet data' prints, or 'mean_query' in data, {_ADVICE}"
        raise ScenarioError([DocumentError(loaded.document.position(path), path, message, hint)])
    problem = Problem(n_items=public.items, rating_mean=mean.number, n_users=public.clients)
    algorithm = cast(Recommender, create(scenario.learning, problem))
    facts = {"clients": public.clients, "items": public.items, "split": data.split.kind}
    kept = not isinstance(data.split, NoSplit)
    evaluator = MeasuredElsewhere(
        None if kept else "the split keeps nothing back for test (data.split: none)"
    )
    assembly = Assembly(
        # Nobody has rated more items than there are.
        RemoteWorkload(algorithm, public.clients, each * public.items),
        build_fleet(loaded, public.clients),
        evaluator,
        facts,
        catalogue={"labels": None, "rating_range": None, "titles": None},
        known_mean=mean if begins else None,
    )
    complete(loaded, assembly)
    assembly.wall_s = time.perf_counter() - start_s
    return assembly


def public_facts(loaded: LoadedScenario) -> PublicFacts | None:
    """Return what a scenario says of its ratings; None where that is not enough."""
    data = loaded.scenario.data
    if isinstance(data, SyntheticRegression):
        return None
    if data.public is None and isinstance(data, SyntheticRatingsSection):
        if isinstance(data.split, UserSplit | TemporalSplit):
            return None  # who has ratings to train on follows from them
        return PublicFacts(clients=data.client_count, items=data.items, rating_mean=data.mean_rating)
    return data.public


def _problems(loaded: LoadedScenario) -> Iterator[tuple[Path, str, str]]:
    scenario = loaded.scenario
    data = scenario.data
    if isinstance(data, SyntheticRegression):
        message = "clients of a regression keep nothing back, so that nobody could measure the model"
        yield ("data", "source"), message, f"use ratings, {_ADVICE}"
        return
    public = public_facts(loaded)
    if public is None:
        message = "how many devices and items there are is not said"
        yield ("data",), message, f"write 'public', which 'recfleet data' prints, {_ADVICE}"
    elif scenario.rounds.invited > public.clients:
        message = f"{scenario.rounds.invited} devices would be invited, and there are {public.clients}"
        yield ("rounds", "cohort"), message, "write less"
    if data.features is not None:
        message = "which row of the model an item's features belong to follows from the ratings"
        yield ("data", "features"), message, f"leave them out, {_ADVICE}"
    if isinstance(scenario.privacy, PersonalGaussian):
        message = "the tier of a device follows from how many ratings it holds"
        yield ("privacy", "mechanism"), message, f"write another mechanism, {_ADVICE}"
    if scenario.inference is not None:
        yield ("inference",), "devices' own models are made of their ratings", f"leave it out, {_ADVICE}"
    if scenario.audit is not None:
        yield ("audit",), "an audit compares masks with ratings", f"leave it out, {_ADVICE}"
    if scenario.rounds.selection.by_examples:
        message = "this policy draws by how many ratings a device has"
        yield ("rounds", "selection"), message, f"write {fitting_policies('by_reports')}, {_ADVICE}"
