"""Differential privacy of a run: what devices add, what the coordinator adds, and the ε that was spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.personal_budgets import PersonalBudgets
from coordinator.scenario.privacy_section import (
    CentralGaussian,
    DistributedDiscreteGaussian,
    LocalGaussian,
    PersonalGaussian,
)
from coordinator.scenario.schema import Scenario
from coordinator.sums.base import SecureSums
from edge.learning.updates import Aggregate
from edge.privacy.accounting import (
    Accountant,
    DiscreteGaussianRelease,
    GaussianRelease,
    Neighbours,
    Release,
    Sampling,
)
from edge.privacy.noise import with_gaussian
from edge.privacy.protection import Protection
from edge.rng import stream_bytes
from edge.secagg.entropy import Entropy, SecretSource, SeededEntropy, SystemEntropy

_COORDINATOR = 0
"""Whose entropy the noise on the sum comes from; devices have keys of their own."""


class RunPrivacy:
    """The privacy of one run.

    Parameters
    ----------
    scenario : with a section ``privacy``.
    devices : how many the fleet has.
    activity : int64 [devices], how many ratings each trains on; needed for personal budgets only.

    Raises ``MissingExtraError`` if ε is asked for and cannot be computed.
    """

    def __init__(
        self, scenario: Scenario, devices: int, activity: npt.NDArray[np.int64] | None = None
    ) -> None:
        section = scenario.privacy
        assert section is not None
        self.section = section
        self._invited = min(scenario.rounds.invited, devices)
        self._devices = devices
        self._central_key = stream_bytes(scenario.seed, "privacy", "central")
        self._local_key = stream_bytes(scenario.seed, "privacy", "local")
        self._budgets: PersonalBudgets | None = None
        self._accountant: Accountant | None = None
        if isinstance(section, PersonalGaussian):
            assert activity is not None, "the tiers go by it"
            self._budgets = PersonalBudgets(section, activity)
            return
        noise_sd = section.multiplier * section.clip_norm if isinstance(section, LocalGaussian) else 0.0
        bare = not isinstance(section, CentralGaussian)
        self._protection = Protection(section.clip_norm, noise_sd, bare)
        if section.accounting:
            self._accountant = Accountant(self._neighbours())

    def entropy(self, device: int, round_number: int) -> SeededEntropy:
        """Return where the noise of a device comes from in a round."""
        return SeededEntropy(self._local_key, device, round_number)

    def protection(self, device: int) -> Protection:
        """Return what a device does to its update before anybody sees it."""
        return self._protection if self._budgets is None else self._budgets.protection(device)

    def noised(
        self, aggregate: Aggregate, round_number: int, devices: frozenset[int], secrets: SecretSource
    ) -> Aggregate:
        """Return the sum as it may be applied: with the coordinator's noise, where that is the mechanism.

        ``secrets`` is where that noise comes from: with the seed it is the same whenever a round is repeated,
        with the system it is fresh, for the same noise on two sums would show their difference. With personal
        budgets, as heavy as the updates of ``devices``, those in the sum, and to be shrunk.
        """
        section = self.section
        if isinstance(section, PersonalGaussian):
            assert self._budgets is not None
            weight = self._budgets.weight(devices)
            return dataclasses.replace(aggregate, weight=weight, shrinkage=section.shrinkage)
        if not isinstance(section, CentralGaussian) or section.multiplier == 0:
            return aggregate
        entropy: Entropy = SystemEntropy()
        if secrets is SecretSource.SEED:
            entropy = SeededEntropy(self._central_key, _COORDINATOR, round_number)
        sums = with_gaussian(aggregate.sums, section.multiplier * section.clip_norm, entropy)
        return dataclasses.replace(aggregate, sums=sums)

    def spend(
        self,
        sums: SecureSums | None,
        *,
        completed: bool,
        invited: npt.NDArray[np.int64] | None = None,
    ) -> float | None:
        """Count a round and return the ε of everything so far; None if it is not asked for.

        A round counts for everybody, as if all had taken part; with personal budgets for those who were
        ``invited``, int64, or None: everybody. ``sums`` is how its updates were summed; None for in the
        clear. An abandoned round revealed no sum, but what devices reported with local noise.
        """
        if self._budgets is not None:
            self._budgets.count(invited)
            return max(self._budgets.epsilons()) if self.section.accounting else None
        if self._accountant is None:
            return None
        if completed or isinstance(self.section, LocalGaussian):
            self._accountant.compose(self._release(sums))
        return self._accountant.epsilon(self.section.delta)

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what has been spent, as arrays by name; nothing where nobody counts."""
        if self._budgets is not None:
            return {"reports": self._budgets.reports}
        if self._accountant is None:
            return {}
        return {"spent": self._accountant.spent, "gaussian": self._accountant.gaussian}

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        if self._budgets is not None:
            self._budgets.reports[:] = memory["reports"]
        if self._accountant is not None:
            self._accountant.spent[:] = memory["spent"]
            self._accountant.gaussian[:] = memory["gaussian"]

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says: the mechanism, δ, what is claimed, what tiers have spent."""
        section = self.section
        claimed = None if isinstance(section, PersonalGaussian) else section.claimed_epsilon
        counted = self._budgets is not None and section.accounting
        return {
            "mechanism": section.mechanism,
            "delta": section.delta,
            "claimed_epsilon": claimed,
            "tiers": self._budgets.facts() if self._budgets is not None and counted else {},
        }

    def _neighbours(self) -> Neighbours:
        section = self.section
        sampled = isinstance(section, CentralGaussian) and section.amplification == "sampling"
        replace = sampled or isinstance(section, LocalGaussian)
        return Neighbours.REPLACE_ONE if replace else Neighbours.ZERO_OUT

    def _release(self, sums: SecureSums | None) -> Release:
        section = self.section
        assert not isinstance(section, PersonalGaussian), "tiers count for themselves"
        if section.multiplier == 0:
            return GaussianRelease(0.0)
        if isinstance(section, DistributedDiscreteGaussian):
            config = None if sums is None else sums.masked
            assert config is not None, "the scenario was checked"
            return DiscreteGaussianRelease.of(config, section.clip_norm, config.honest_contributors)
        if isinstance(section, LocalGaussian):
            return GaussianRelease(section.multiplier)
        # What rounding adds to an update, it adds to what one user can do to the sum.
        rounding = 0.0 if sums is None else sums.rounding_norm
        multiplier = section.multiplier * section.clip_norm / (section.clip_norm + rounding)
        sampling = Sampling(self._devices, self._invited) if section.amplification == "sampling" else None
        return GaussianRelease(multiplier, sampling)
