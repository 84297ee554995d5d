"""Personal budgets of privacy: who is in which tier, and what their updates weigh.

DPPS, Zhu et al., "Collaborative Optimization in Federated Recommendation": the more active a user, the less
noise, and updates averaged by one over the variance of their noise. A tier follows from a number that must be
public, how many ratings a device trains on; so do the weights, and who was invited when.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coordinator.scenario.privacy_section import PersonalGaussian
from edge.crypto.noise import Sampler
from edge.privacy.protection import Protection


class PersonalBudgets:
    """The tiers of a run.

    Parameters
    ----------
    section : what the tiers ask for.
    activity : int64 [devices], how many ratings each device trains on.

    Attributes
    ----------
    tier : int64 [devices], the index of each device's tier.
    """

    def __init__(self, section: PersonalGaussian, activity: npt.NDArray[np.int64]) -> None:
        self.section = section
        bounds = [tier.up_to for tier in section.tiers if tier.up_to is not None]
        self.tier: npt.NDArray[np.int64] = np.searchsorted(bounds, activity, side="left").astype(np.int64)
        self.weights = np.array(section.weights)

    def protections(self, sampler: Sampler) -> list[Protection]:
        """Return what the devices of each tier do to an update."""
        section = self.section
        return [
            Protection(
                section.clip_norm,
                tier.noise_multiplier * section.clip_norm,
                bare=True,
                weight=weight,
                sampler=sampler,
            )
            for tier, weight in zip(section.tiers, section.weights, strict=True)
        ]

    def weight(self, devices: frozenset[int]) -> float:
        """Return the sum of the weights of ``devices``, in an order of its own."""
        tiers = self.tier[np.fromiter(devices, np.int64, len(devices))]
        return float(np.bincount(tiers, minlength=len(self.weights)) @ self.weights)
