"""Whether selection and pacing suit what else a scenario asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator.scenario.data_section import SyntheticRatings, SyntheticRegression
from coordinator.scenario.errors import Problem
from coordinator.scenario.learning_section import method_name
from coordinator.scenario.pacing_section import Buffered, PartialWork, Tiers
from coordinator.scenario.privacy_section import CentralGaussian
from coordinator.scenario.protection import secure_sections
from coordinator.scenario.selection_section import fitting_policies
from edge.learning.registry import METHODS

if TYPE_CHECKING:
    from coordinator.scenario.schema import Scenario

_PLACE = ("rounds", "pacing")
_UNNOISED = "what devices reported without noise, of which no epsilon counts what the choice of a round shows"


def pacing_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield what keeps devices from being selected and waited for as the scenario says."""
    yield from _selection_problems(scenario)
    pacing = scenario.rounds.pacing
    if isinstance(pacing, Buffered):
        yield from _buffered_problems(scenario, pacing)
        return
    if isinstance(pacing, PartialWork):
        yield from _partial_work_problems(scenario)
    elif isinstance(pacing, Tiers):
        yield from _tier_problems(scenario, pacing)
    if pacing.grace is not None and _sums_securely(scenario):
        message = "under secure aggregation every stage has a deadline of its own; leave it out"
        yield Problem((*_PLACE, "grace"), message, None, of_key=True)


def _selection_problems(scenario: Scenario) -> Iterator[Problem]:
    selection = scenario.rounds.selection
    place = ("rounds", "selection")
    if selection.by_reports and _noise_on_sums(scenario):
        message = f"{selection.name!r} looks at {_UNNOISED}"
        yield Problem(place, message, _advice("by_reports"))
        return
    if not selection.needs_losses:
        return
    hint = _advice("needs_losses")
    message = f"{selection.name!r} looks at the losses of single devices, which nobody sees"
    if _sums_securely(scenario):
        yield Problem(place, f"{message} under secure aggregation", hint)
    elif scenario.privacy is not None and not isinstance(scenario.privacy, CentralGaussian):
        yield Problem(place, f"{message} where noise is added on the device", hint)


def _advice(unfit: str) -> str:
    first, rest = fitting_policies(unfit).split("'", 2)[1:]
    return f"write 'selection: {first}'{rest}"


def _noise_on_sums(scenario: Scenario) -> bool:
    privacy = scenario.privacy
    return isinstance(privacy, CentralGaussian) and privacy.multiplier > 0


def _sums_securely(scenario: Scenario) -> bool:
    return any(section.mode != "off" for _, section in secure_sections(scenario))


def _buffered_problems(scenario: Scenario, pacing: Buffered) -> Iterator[Problem]:
    """Yield what cannot be had without rounds."""
    rounds, mode = scenario.rounds, (*_PLACE, "mode")
    if _sums_securely(scenario):
        message = "a secure sum is over devices that began with the same model; a buffer mixes models"
        yield Problem(mode, message, "write another mode, or 'mode: off' in secure_aggregation")
    if scenario.privacy is not None:
        message = "what privacy has been spent is accounted for by rounds, which a buffer does not have"
        yield Problem(mode, message, "write another mode, or leave privacy out")
    if METHODS[method_name(scenario.learning)].user_rows:
        message = "a user's row on the coordinator could change under its own device"
        yield Problem(mode, message, "write another mode, or another algorithm in learning")
    if getattr(scenario.learning, "stop_gradient_norm", 0.0) > 0:
        message = "reports on several models do not add up to a gradient, whose norm could be looked at"
        yield Problem(("learning", "stop_gradient_norm"), message, "leave it out, or write another pacing")
    if rounds.over_select > 1:
        message = "nobody is invited in vain with buffered pacing; leave it out"
        yield Problem(("rounds", "over_select"), message, None, of_key=True)
    if rounds.interval > 0:
        message = "there is no pause between the steps of buffered pacing; leave it out"
        yield Problem(("rounds", "interval"), message, None, of_key=True)
    yield from _fault_problems(scenario)
    clients = _clients(scenario)
    if clients is not None and pacing.concurrency > clients:
        message = f"{pacing.concurrency} devices at work, but the data has {clients} clients"
        yield Problem((*_PLACE, "concurrency"), f"{message}; write {clients} or less")


def _fault_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield the faults that are about the devices of one round together."""
    for index, fault in enumerate(scenario.faults):
        if fault.kind.of_rounds:
            message = "strikes the devices of a round together, and a buffer has no rounds"
            path = ("faults", index, fault.key)
            yield Problem(path, message, "write another fault, or another pacing", of_key=True)
        if fault.on.slowest is not None:
            message = "no round says who is slowest in it: a buffer has none; leave it out"
            yield Problem(("faults", index, "on", "slowest"), message, None, of_key=True)


def _partial_work_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield why devices cannot do a part of their work."""
    mode = (*_PLACE, "mode")
    if not METHODS[method_name(scenario.learning)].stepwise(scenario.learning):
        message = "an update of this method is not made of local steps, of which a part could be done"
        yield Problem(mode, message, "write another mode, or 'method: gradient-steps' in learning.local")
    elif getattr(scenario.learning, "stop_gradient_norm", 0.0) > 0:
        message = "the norm of an update says nothing of the gradient when devices take fewer steps"
        yield Problem(("learning", "stop_gradient_norm"), message, "leave it out, or write another pacing")
    if not isinstance(scenario.data, SyntheticRegression) and scenario.data.grouped:
        message = "devices that hold several users do not share their time among them"
        yield Problem(mode, message, "write another mode, or one user a client in data")
    if _sums_securely(scenario) or scenario.privacy is not None:
        what = "secure sums" if _sums_securely(scenario) else "privacy"
        message = f"partial work weighs a part of an update, and {what} need whole weights"
        yield Problem(mode, message, "write another mode")


def _tier_problems(scenario: Scenario, pacing: Tiers) -> Iterator[Problem]:
    """Yield why there may be no tiers, or why none could ever fill a round."""
    if _noise_on_sums(scenario):
        message = f"tiers are by speed: {_UNNOISED}"
        yield Problem((*_PLACE, "mode"), message, "write another mode, or leave privacy out")
    clients, needed = _clients(scenario), scenario.rounds.quorum_reports
    if clients is not None and clients // pacing.tiers < needed:
        message = (
            f"a tier would have {clients // pacing.tiers} of the {clients} devices, fewer than the quorum of"
            f" {needed}"
        )
        yield Problem((*_PLACE, "tiers"), message, "write fewer tiers, or a lower quorum")


def _clients(scenario: Scenario) -> int | None:
    """Return how many clients there are, where the scenario alone says so."""
    data = scenario.data
    return data.client_count if isinstance(data, SyntheticRatings | SyntheticRegression) else None
