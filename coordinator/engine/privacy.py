"""Differential privacy of a run: what devices add, what the coordinator or the method adds, and ε spent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.active_round import ActiveRound
from coordinator.engine.device_sums import DeviceSums
from coordinator.engine.secure_sums import SecureSums, lengths
from coordinator.engine.workload import RatingWorkload, Workload
from coordinator.scenario.privacy_section import (
    CentralGaussian,
    DistributedDiscreteGaussian,
    LocalGaussian,
    PersonalGaussian,
)
from coordinator.scenario.schema import ScenarioSettings
from edge.core.rng import stream_bytes
from edge.core.vocabulary import RoundKind
from edge.crypto.entropy import Entropy, SecretSource, SeededEntropy, SystemEntropy
from edge.crypto.noise import Sampler, grid_step, with_gaussian
from edge.learning.updates import Aggregate
from edge.privacy.accounting import (
    DiscreteGaussianRelease,
    GaussianRelease,
    Neighbours,
    Release,
    Sampling,
    gaussian_epsilon,
)
from edge.privacy.ledger import Epsilon, Ledger
from edge.privacy.protection import Protection

_COORDINATOR = 0
"""Whose entropy the noise on the sum comes from; devices have keys of their own."""


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


class RunPrivacy:
    """The privacy of one run.

    Parameters
    ----------
    scenario : with a section ``privacy``.
    sums : how updates are summed in each phase, by its name; None: in the clear.
    activity : int64 [devices], how many ratings each device trains on.
    elements : how many real numbers a dense update has, or another report, if that is more.
    asked : what devices report beside updates; None: nothing.

    Raises ``MissingExtraError`` if ε is asked for and cannot be computed.
    """

    def __init__(
        self,
        scenario: ScenarioSettings,
        sums: Mapping[str, SecureSums | None],
        activity: npt.NDArray[np.int64],
        elements: int,
        asked: Mapping[RoundKind, DeviceSums] | None = None,
    ) -> None:
        section = scenario.privacy
        assert section is not None
        self.section = section
        by_kind = {RoundKind.TRAINING: (sums, scenario.rounds)}
        by_kind |= {kind: (one.secure_sums, one.rounds) for kind, one in (asked or {}).items()}
        self._sums = {(phase, kind): one for kind, (of, _) in by_kind.items() for phase, one in of.items()}
        """How reports are summed, by phase and kind of round."""
        self._elements = elements
        self._devices = len(activity)
        self._invited = {kind: min(of.invited, self._devices) for kind, (_, of) in by_kind.items()}
        """Devices invited to a round of each kind."""
        self._central_key = stream_bytes(scenario.seed, "privacy", "central")
        self._local_key = stream_bytes(scenario.seed, "privacy", "local")
        self._budgets = PersonalBudgets(section, activity) if isinstance(section, PersonalGaussian) else None
        self._amplified = isinstance(section, CentralGaussian) and section.amplification == "sampling"
        self._secrets: SecretSource | None = None
        self.draw_from(SecretSource.SEED)

    def draw_from(self, secrets: SecretSource) -> None:
        """Draw the coordinator's noise from ``secrets``; another source is for a run that has spent nothing.

        From the seed it is the same whenever a round is repeated. From the system it is fresh, for the same
        noise on two sums would show their difference; and unless the scenario says how noise is sampled, it
        is discrete there, on the devices as well.
        """
        if secrets is self._secrets:
            return
        section = self.section
        self._secrets = secrets
        self.sampler = Sampler.DISCRETE
        """How noise is drawn."""
        if not isinstance(section, DistributedDiscreteGaussian):
            by_clock = Sampler.DISCRETE if secrets is SecretSource.SYSTEM else Sampler.FLOATING_POINT
            self.sampler = by_clock if section.sampler is None else Sampler(section.sampler)
        if self._budgets is not None:
            self._protections = self._budgets.protections(self.sampler)
            self._tier = self._budgets.tier
        else:
            self._protections = [self._same_for_all()]
            self._tier = np.zeros(self._devices, np.int64)
        self._ledger: Ledger | None = None
        if section.accounting:
            by_phase = {
                (phase, kind): self._releases(sums, kind) for (phase, kind), sums in self._sums.items()
            }
            kinds = list(dict.fromkeys(by_phase.values()))  # phases may release alike
            self._kind = {where: kinds.index(releases) for where, releases in by_phase.items()}
            self._ledger = Ledger(self._tier, kinds, section.delta)
            self._ledger.epsilon()  # what cannot be computed is found before the first round

    def _same_for_all(self) -> Protection:
        section = self.section
        if isinstance(section, LocalGaussian):
            noise_sd = section.multiplier * section.clip_norm
            return Protection(section.clip_norm, noise_sd, bare=True, sampler=self.sampler)
        return Protection(section.clip_norm, 0.0, bare=not isinstance(section, CentralGaussian))

    def entropy(self, device: int, round_number: int) -> SeededEntropy:
        """Return where the noise of a device comes from in a round."""
        return SeededEntropy(self._local_key, device, round_number)

    def protection(self, device: int) -> Protection:
        """Return what a device does to its update before anybody sees it."""
        return self._protections[int(self._tier[device])]

    def noised(self, aggregate: Aggregate, round_number: int, devices: frozenset[int]) -> Aggregate:
        """Return the sum as it may be applied: with the coordinator's noise, where that is the mechanism.

        With personal budgets, as heavy as the updates of ``devices``, those in the sum, and to be shrunk.
        """
        section = self.section
        if isinstance(section, PersonalGaussian):
            assert self._budgets is not None
            weight = self._budgets.weight(devices)
            return dataclasses.replace(aggregate, weight=weight, shrinkage=section.shrinkage)
        if not isinstance(section, CentralGaussian) or section.multiplier == 0:
            return aggregate
        entropy: Entropy = SystemEntropy()
        if self._secrets is SecretSource.SEED:
            entropy = SeededEntropy(self._central_key, _COORDINATOR, round_number)
        sums = with_gaussian(aggregate.sums, section.multiplier * section.clip_norm, entropy, self.sampler)
        return dataclasses.replace(aggregate, sums=sums)

    # -- what is spent ---------------------------------------------------------------------------------

    @property
    def on_devices(self) -> bool:
        """Whether each update carries noise that hides it alone, so that it is spent once it has arrived."""
        return isinstance(self.section, LocalGaussian | PersonalGaussian)

    def own_epsilon(self, device: int, reports: int) -> float | None:
        """Return the replace-one ε of a device of which so many reports have been seen.

        None where noise is not on devices, so that no device can count for itself.
        """
        if not self.on_devices:
            return None
        release = self._releases(None, RoundKind.TRAINING)[int(self._tier[device])]
        assert isinstance(release, GaussianRelease)
        squared = release.mu_squared(Neighbours.REPLACE_ONE)
        return gaussian_epsilon(math.sqrt(squared * reports), self.section.delta) if reports else 0.0

    def spent_in(self, active: ActiveRound) -> frozenset[int]:
        """Return the devices that have spent a release in a round so far, whatever becomes of it.

        With noise on devices, those whose update has reached the coordinator, be it too late, refused,
        beside the wanted ones, or in a round that was abandoned. Else those in a sum that was made: noise on
        a sum hides nobody in it any better because the sum was not applied.
        """
        return frozenset(active.arrived) if self.on_devices else active.machine.opened

    def spend(self, phase: str, devices: frozenset[int], kind: RoundKind = RoundKind.TRAINING) -> None:
        """Count a release of a round of a ``kind`` in ``phase``, for each of ``devices``.

        With ``amplification: sampling`` it counts for the whole fleet, for it is part of what is hidden who
        was drawn.
        """
        if self._ledger is None or not devices:
            return
        ids = None if self._amplified else np.array(sorted(devices), np.int64)
        self._ledger.count(self._kind[phase, kind], ids)

    def epsilon(self) -> Epsilon | None:
        """Return the ε of the device that has spent most; None if it is not asked for."""
        return None if self._ledger is None else self._ledger.epsilon()

    def memory(self) -> dict[str, npt.NDArray[Any]]:
        """Return what has been spent, as arrays by name; nothing where nobody counts."""
        return {} if self._ledger is None else {"spent": self._ledger.counts}

    def memory_at_most(
        self, phase: str, devices: npt.NDArray[np.int64], kind: RoundKind
    ) -> dict[str, npt.NDArray[Any]]:
        """Return :meth:`memory` as if each of ``devices`` had spent a round of a ``kind`` in ``phase``."""
        if self._ledger is None:
            return {}
        counts = self._ledger.counts.copy()
        counts[self._kind[phase, kind], slice(None) if self._amplified else devices] += 1
        return {"spent": counts}

    def recall(self, memory: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what :meth:`memory` returned."""
        if self._ledger is not None:
            self._ledger.recall(memory["spent"])

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says: mechanism, sampler, δ, what is claimed, what was spent."""
        section, ledger = self.section, self._ledger
        return {
            "mechanism": section.mechanism,
            "sampler": self.sampler.value,
            "delta": section.delta,
            "claimed_epsilon": None if isinstance(section, PersonalGaussian) else section.claimed_epsilon,
            **epsilon_facts(None if ledger is None else ledger.epsilon()),
            "counted_for": "every device" if self._amplified else "the device that reported most",
            "most_releases": None if ledger is None else max(map(ledger.most, range(len(self._protections)))),
            "tiers": {} if ledger is None else self._tiers(ledger),
        }

    def _tiers(self, ledger: Ledger) -> dict[str, dict[str, Any]]:
        section = self.section
        if not isinstance(section, PersonalGaussian):
            return {}
        return {
            tier.name: {
                "devices": int(np.count_nonzero(self._tier == index)),
                "noise_multiplier": tier.noise_multiplier,
                "weight": float(weight),
                "most_reports": ledger.most(index),
                **epsilon_facts(ledger.epsilon(index)),
            }
            for index, (tier, weight) in enumerate(zip(section.tiers, section.weights, strict=True))
        }

    def _releases(self, sums: SecureSums | None, kind: RoundKind) -> tuple[Release, ...]:
        """Return what a release is to a device of each tier, where reports are summed by ``sums``.

        ``kind`` is that of the round they are in.
        """
        section = self.section
        if isinstance(section, PersonalGaussian):
            return tuple(self._gaussian(tier.noise_multiplier) for tier in section.tiers)
        if section.multiplier == 0:
            return (GaussianRelease(0.0),)
        if isinstance(section, DistributedDiscreteGaussian):
            config = None if sums is None else sums.masked
            assert config is not None, "the scenario was checked"
            return (DiscreteGaussianRelease.of(config, section.clip_norm, config.honest_contributors),)
        if isinstance(section, LocalGaussian):
            return (self._gaussian(section.multiplier),)
        # What rounding adds to an update, it adds to what one user can do to the sum.
        rounding = 0.0 if sums is None else sums.rounding_norm
        sampling = Sampling(self._devices, self._invited[kind]) if self._amplified else None
        return (self._gaussian(section.multiplier, rounding, sampling),)

    def _gaussian(
        self, multiplier: float, rounding: float = 0.0, sampling: Sampling | None = None
    ) -> GaussianRelease:
        """Return the release of Gaussian noise; ``rounding`` is an L2 norm that comes on top of the clip."""
        clip_norm = self.section.clip_norm
        if self.sampler is Sampler.DISCRETE:
            rounding += grid_step(multiplier * clip_norm) * math.sqrt(self._elements)
        return GaussianRelease(multiplier * clip_norm / (clip_norm + rounding), sampling)


def epsilon_facts(epsilon: Epsilon | None) -> dict[str, float | str | None]:
    """Return ε under each relation; JSON has no infinity but as a word."""
    zero_out, replace_one = (None, None) if epsilon is None else map(_json_number, epsilon)
    return {"epsilon": zero_out, "epsilon_replace_one": replace_one}


def value_facts(workload: Workload, sums: Iterable[SecureSums | None]) -> dict[str, Any]:
    """Return what the manifest says of a method that hides the values of ratings by noise of its own.

    ε of the value of one rating in the model, which a run releases once, δ = 0, with what rounding in any of
    the secure ``sums`` adds; and ε of all values of the user who has most, where it is known here how many
    those are.
    """
    algorithm = workload.algorithm
    numbers = sum(length for _, length in lengths(algorithm.summed_spec()))
    rounding = max((one.rounding_norm for one in sums if one is not None), default=0.0) / math.sqrt(numbers)
    epsilon = algorithm.value_epsilon(rounding)
    most = int(workload.split.train.counts.max(initial=0)) if isinstance(workload, RatingWorkload) else None
    return {
        "mechanism": algorithm.name(),
        "hides": "the value of one rating",
        "delta": 0.0,
        "epsilon": epsilon,
        "releases": 1,
        "most_ratings": most,
        "epsilon_of_most_ratings": None if most is None else epsilon * most,
    }


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"
