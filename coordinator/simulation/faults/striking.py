"""Faults of a scenario on their way into a round: which can strike it, and whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coordinator.scenario.faults_section import Fault, Victims, stages_of
from coordinator.scenario.rounds_section import Buffered
from coordinator.scenario.schema import ScenarioSettings
from coordinator.simulation.faults.base import FaultKind, FleetView, Ids, Setting, Strike
from edge.core.rng import hashed_uniform, stream_key

if TYPE_CHECKING:
    from edge.device.round_faults import RoundFaults
    from edge.learning.promotion import PromotedItem

Mask = npt.NDArray[np.bool_]
Drawn = Sequence[tuple[int, Ids]]
"""Numbers of faults, and the ids of the devices that each strikes."""


class FaultsOfRun:
    """The faults of a scenario, and the devices of those that strike the same ones in every round.

    Parameters
    ----------
    scenario : what goes wrong in which phase.
    fleet : whom it can strike.
    target : the item that faults promote; None where none does.
    """

    def __init__(
        self, scenario: ScenarioSettings, fleet: FleetView, target: PromotedItem | None = None
    ) -> None:
        self._seed = scenario.seed
        self._target = target
        self.faults: tuple[Fault, ...] = scenario.faults
        self._of_phase = {phase: faults_of_phase(scenario, phase) for phase in _phase_names(scenario)}
        self.crashes = tuple(
            (number, fault.at, fault.lasts_s)
            for number, fault in enumerate(scenario.faults)
            if fault.kind.crashes and fault.at is not None and fault.lasts_s is not None
        )
        """Crashes of the coordinator that have a time of their own: number of the fault, when, how long."""
        self.crashing = any(fault.kind.crashes for fault in scenario.faults)
        """Whether the coordinator ever crashes."""
        self._exact = not isinstance(scenario.rounds.pacing, Buffered)
        """Whether a fault strikes an exact share of a round; else each device with that probability."""
        self._fixed = {
            number: _fixed_victims(fault, scenario.seed, fleet)
            for number, fault in enumerate(scenario.faults)
            if fault.on.fixed
        }
        self.drawn: Drawn | None = None
        """Of a part of a round: whom faults strike in all of it; None: they are drawn for each round."""

    def strike(self, phase: str, setting: Setting) -> RoundFaults | None:
        """Let the faults of a phase strike a round; None where none has an effect on it.

        Faults that change the plan of the round do so here. A fault draws its exact share anew in every
        round, unless its victims are fixed.
        """
        found: RoundFaults | None = None
        drawn = self.draw(phase, setting) if self.drawn is None else _within(self.drawn, setting.ids)
        for number, slots in drawn:
            fault = self.faults[number]
            if found is None:
                from edge.device.round_faults import RoundFaults  # noqa: PLC0415 - most runs do without

                found = RoundFaults()
            if len(slots) or not fault.kind.of_devices:
                strike = Strike(fault, number, setting, slots, found, self._target)
                for kind in fault.kinds:
                    assert isinstance(kind, FaultKind)
                    if not kind.neutral:
                        kind.strike(strike)
        # A round in which nothing goes wrong is one without faults.
        return None if found is None or found.empty else found

    def draw(self, phase: str, setting: Setting) -> Iterator[tuple[int, Ids]]:
        """Yield the number of each fault that can strike a round of a phase, and the slots of its victims."""
        for number in self._of_phase[phase]:
            fault = self.faults[number]
            timed_crash = fault.kind.crashes and fault.at is not None
            if timed_crash or fault.window_s[1] < setting.now_s:
                continue
            yield number, victims(fault, setting, self._fixed.get(number), exact=self._exact)


def _within(drawn: Drawn, ids: Ids) -> Iterator[tuple[int, Ids]]:
    """Yield the number of each fault that was drawn, and the slots of its victims among ``ids``."""
    for number, struck in drawn:
        yield number, np.flatnonzero(np.isin(ids, struck))


def _phase_names(scenario: ScenarioSettings) -> Sequence[str]:
    return [phase.name for phase in scenario.phases] or [""]


def faults_of_phase(scenario: ScenarioSettings, phase: str) -> tuple[int, ...]:
    """Return the numbers of the faults that can strike in a phase: meant for it, at a stage that it has."""
    stages = stages_of(scenario.secure_in(phase))
    return tuple(
        number
        for number, fault in enumerate(scenario.faults)
        if (fault.during is None or phase in fault.during)
        and (fault.at_stage is None or fault.at_stage in stages)
    )


def exact_count(share: float, n: int) -> int:
    """Return how many of ``n`` a share is."""
    # Rounded before anything else: 30% of 10 is 3, whatever 0.3 * 10 is in binary.
    return round(round(share * n, 9))


def victims(fault: Fault, setting: Setting, fixed: Mask | None = None, *, exact: bool = True) -> Ids:
    """Return the slots of the devices that a fault strikes in a round, int64, increasing.

    ``fixed`` bool [devices of the fleet] says who it is where that was drawn for the whole run. Not
    ``exact``, each device is struck with a probability that is the share: where devices are invited one by
    one, there is nothing to take a share of.
    """
    on, ids = fault.on, setting.ids
    if fixed is not None:
        return np.flatnonzero(fixed[ids])
    slots = np.flatnonzero(_admitted(on, setting.fleet, ids))
    if on.slowest is not None:
        seconds = setting.plan.compute_s[slots]
        # Of two that are alike the one with the lower number; slots have no meaning.
        order = np.lexsort((ids[slots], -seconds))
        slots = slots[order[: exact_count(on.slowest, len(slots))]]
    key = stream_key(setting.seed, "fault", fault.name)
    draws = hashed_uniform(key, ids[slots], setting.round_number, 0)
    if not exact:
        return np.asarray(slots[draws < on.fraction])
    return np.sort(slots[np.argsort(draws, kind="stable")[: exact_count(on.fraction, len(slots))]])


def _fixed_victims(fault: Fault, seed: int, fleet: FleetView) -> Mask:
    """Draw a fault's share of the whole fleet, bool [devices]."""
    everybody = np.arange(fleet.n, dtype=np.int64)
    candidates = np.flatnonzero(_admitted(fault.on, fleet, everybody))
    draws = hashed_uniform(stream_key(seed, "fault", fault.name, "fixed"), candidates)
    count = exact_count(fault.on.fraction, len(candidates))
    struck = np.zeros(fleet.n, dtype=np.bool_)
    struck[candidates[np.argsort(draws, kind="stable")[:count]]] = True
    return struck


def _admitted(on: Victims, fleet: FleetView, ids: Ids) -> Mask:
    """Return whether the filters admit each of ``ids``, but for who is slowest."""
    admitted = np.ones(len(ids), dtype=np.bool_)
    names = fleet.names
    filters: Mapping[str, tuple[str | None, tuple[str, ...], npt.NDArray[np.uint8]]] = {
        "class": (on.device_class, names.classes, fleet.device_class),
        "network": (on.network, names.networks, fleet.network),
        "region": (on.region, names.regions, fleet.region),
    }
    for wanted, known, codes in filters.values():
        if wanted is not None:
            admitted &= codes[ids] == known.index(wanted)
    if on.devices is not None:
        admitted &= np.isin(ids, on.devices)
    return admitted
