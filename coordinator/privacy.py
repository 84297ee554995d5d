"""Differential privacy of a run: what devices add, what the coordinator adds, and the ε that was spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from coordinator.scenario.privacy_section import (
    CentralGaussian,
    DistributedDiscreteGaussian,
    LocalGaussian,
)
from coordinator.scenario.schema import Scenario
from coordinator.sums.base import SecureSums
from edge.learning.base import Aggregate
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
from edge.secagg.entropy import SeededEntropy

_COORDINATOR = 0
"""Whose entropy the noise on the sum comes from; devices have keys of their own."""


class RunPrivacy:
    """The privacy of one run.

    Parameters
    ----------
    scenario : with a section ``privacy``.
    devices : how many the fleet has.

    Raises ``MissingExtraError`` if ε is asked for and cannot be computed.
    """

    def __init__(self, scenario: Scenario, devices: int) -> None:
        section = scenario.privacy
        assert section is not None
        self.section = section
        self._invited = min(scenario.rounds.invited, devices)
        self._devices = devices
        self._central_key = stream_bytes(scenario.seed, "privacy", "central")
        self._local_key = stream_bytes(scenario.seed, "privacy", "local")
        local = isinstance(section, LocalGaussian)
        noise_sd = section.noise_multiplier * section.clip_norm if local else 0.0
        bare = not isinstance(section, CentralGaussian)
        self.protection = Protection(section.clip_norm, noise_sd, bare)
        self._accountant = Accountant(self._neighbours()) if section.accounting else None

    def entropy(self, device: int, round_number: int) -> SeededEntropy:
        """Return where the noise of a device comes from in a round."""
        return SeededEntropy(self._local_key, device, round_number)

    def noised(self, aggregate: Aggregate, round_number: int) -> Aggregate:
        """Return the sum as it may be applied: with the coordinator's noise, where that is the mechanism."""
        section = self.section
        if not isinstance(section, CentralGaussian) or section.noise_multiplier == 0:
            return aggregate
        entropy = SeededEntropy(self._central_key, _COORDINATOR, round_number)
        sums = with_gaussian(aggregate.sums, section.noise_multiplier * section.clip_norm, entropy)
        return dataclasses.replace(aggregate, sums=sums)

    def spend(self, sums: SecureSums | None, *, completed: bool) -> float | None:
        """Count a round and return the ε of everything so far; None if it is not asked for.

        A round counts for everybody, as if all had taken part. ``sums`` is how its updates were summed; None
        for in the clear. An abandoned round revealed no sum, but what devices reported with local noise.
        """
        if self._accountant is None:
            return None
        if completed or isinstance(self.section, LocalGaussian):
            self._accountant.compose(self._release(sums))
        return self._accountant.epsilon(self.section.delta)

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what has been spent, as arrays by name; nothing where nobody counts."""
        return {} if self._accountant is None else {"spent": self._accountant.spent}

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        if self._accountant is not None:
            self._accountant.spent[:] = memory["spent"]

    def _neighbours(self) -> Neighbours:
        section = self.section
        sampled = isinstance(section, CentralGaussian) and section.amplification == "sampling"
        replace = sampled or isinstance(section, LocalGaussian)
        return Neighbours.REPLACE_ONE if replace else Neighbours.ZERO_OUT

    def _release(self, sums: SecureSums | None) -> Release:
        section = self.section
        if section.noise_multiplier == 0:
            return GaussianRelease(0.0)
        if isinstance(section, DistributedDiscreteGaussian):
            config = None if sums is None else sums.masked
            assert config is not None, "the scenario was checked"
            return DiscreteGaussianRelease.of(config, section.clip_norm, config.honest_contributors)
        if isinstance(section, LocalGaussian):
            return GaussianRelease(section.noise_multiplier)
        # What rounding adds to an update, it adds to what one user can do to the sum.
        rounding = 0.0 if sums is None else sums.rounding_norm
        multiplier = section.noise_multiplier * section.clip_norm / (section.clip_norm + rounding)
        sampling = Sampling(self._devices, self._invited) if section.amplification == "sampling" else None
        return GaussianRelease(multiplier, sampling)
