"""Personal budgets of privacy: who is in which tier, what their updates weigh, and what each tier has spent.

DPPS, Zhu et al., "Collaborative Optimization in Federated Recommendation": the more active a user, the less
noise, and updates averaged by one over the variance of their noise. A tier follows from a number that must be
public, how many ratings a device trains on; so do the weights, and who was invited when.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.scenario.privacy_section import PersonalGaussian
from edge.privacy.accounting import GaussianRelease, Neighbours
from edge.privacy.analytic_gaussian import gaussian_epsilon
from edge.privacy.protection import Protection


class PersonalBudgets:
    """The tiers of a run.

    Parameters
    ----------
    section : what the tiers ask for.
    activity : int64 [devices], how many ratings each device trains on.

    Attributes
    ----------
    reports : int64 [devices], how often each device may have reported.
    """

    def __init__(self, section: PersonalGaussian, activity: npt.NDArray[np.int64]) -> None:
        self.section = section
        self.reports = np.zeros(len(activity), np.int64)
        bounds = [tier.up_to for tier in section.tiers if tier.up_to is not None]
        self._tier = np.searchsorted(bounds, activity, side="left")
        self._weights = np.array(section.weights)
        self._protections = [
            Protection(section.clip_norm, tier.noise_multiplier * section.clip_norm, bare=True, weight=weight)
            for tier, weight in zip(section.tiers, section.weights, strict=True)
        ]

    def protection(self, device: int) -> Protection:
        """Return what a device does to its update."""
        return self._protections[int(self._tier[device])]

    def weight(self, devices: frozenset[int]) -> float:
        """Return the sum of the weights of ``devices``, in an order of its own."""
        tiers = self._tier[np.fromiter(devices, np.int64, len(devices))]
        return float(np.bincount(tiers, minlength=len(self._weights)) @ self._weights)

    def count(self, devices: npt.NDArray[np.int64] | None) -> None:
        """Count a report of each of ``devices``, or of everybody."""
        self.reports[slice(None) if devices is None else devices] += 1

    def epsilons(self) -> list[float]:
        """Return the ε of each tier: that of its user who has reported most.

        Each report is a Gaussian release, replace-one, to whoever sees it. Weights, sums and shrinkage come
        after, and the number of reports does not depend on what is in them.
        """
        found = []
        for index, tier in enumerate(self.section.tiers):
            most = int(self.reports[self._tier == index].max(initial=0))
            release = GaussianRelease(tier.noise_multiplier)
            squared = release.mu_squared(Neighbours.REPLACE_ONE) if most else 0.0
            found.append(gaussian_epsilon(math.sqrt(squared * most), self.section.delta))
        return found

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return by name of the tier: devices, noise, weight, most reports of a user, and ε."""
        return {
            tier.name: {
                "devices": int(np.count_nonzero(self._tier == index)),
                "noise_multiplier": tier.noise_multiplier,
                "weight": float(self._weights[index]),
                "most_reports": int(self.reports[self._tier == index].max(initial=0)),
                "epsilon": epsilon if math.isfinite(epsilon) else "infinite",
            }
            for index, (tier, epsilon) in enumerate(zip(self.section.tiers, self.epsilons(), strict=True))
        }
