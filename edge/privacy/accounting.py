"""What a run has spent: an (ε, δ) of user-level differential privacy over its rounds.

Rényi differential privacy (Mironov 2017) of each release, added up over the rounds and converted by the
package dp-accounting (Canonne, Kamath and Steinke 2020, Proposition 12). That package is optional:
``pip install 'recfleet[dp]'``. As long as every release was Gaussian and not amplified, what they add up to
is known exactly (:func:`gaussian_epsilon`), and that is reported.

Two runs are neighbours if they differ in one user. What that means decides the sensitivity, in units of the
clipping norm C, of the sum of updates. ε is given under both relations, which are not to be compared:

* :attr:`Neighbours.ZERO_OUT`: the user's update is replaced by zeros. Sensitivity 1, the usual choice for a
  sum over users: adding or removing a user, with the number of users in a sum fixed.
* :attr:`Neighbours.REPLACE_ONE`: it is replaced by any other update. Sensitivity 2: two vectors of norm C are
  up to 2·C apart. It is what sampling without replacement is analysed for, and what local privacy means: a
  report tells little between any two updates that a device could have sent. Zeros are one of them, so every
  bound for this relation holds for the other.

The three mechanisms:

* central Gaussian: one :class:`GaussianRelease` of z = (noise on the sum)/C for each sum that was applied;
* local Gaussian: for the coordinator's view of one device, one :class:`GaussianRelease` of z = (noise on the
  update)/C for each report of the device that arrived, whether or not its round counted. The sum of
  n honest reports has √n times the multiplier, for those who see the model only;
* distributed discrete Gaussian: one :class:`DiscreteGaussianRelease` for each sum that was revealed.
"""

from __future__ import annotations

import enum
import functools
import importlib.util
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.core.errors import LocalProtocolError, MissingExtraError
from edge.secagg.config import LEAST_NOISE_STEPS, CountPart, SecAggConfig

_STEPS = 200
_FARTHEST = 40.0
"""Φ(−40) is below the smallest double."""
_PACKAGE = "dp_accounting"
_AMPLIFIED = (1e-3, 1e4)
"""Multipliers between which the bound of sampling can be evaluated in float64."""


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε of Gaussian noise at ``delta``, to within rounding, from above.

    Balle and Wang 2018, "Improving the Gaussian Mechanism for Differential Privacy", Theorem 8:

        δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)

    Releases add up exactly: k of them, each chosen knowing the ones before, are as one with μ² = Σ μ_i²
    (Dong, Roth and Su 2022, "Gaussian Differential Privacy", Corollary 3.3). So nothing is lost to a bound,
    as it is where Rényi divergences are converted: at μ = 1 and δ = 1e-5, 4.38 and not 4.73.

    Parameters
    ----------
    mu : sensitivity over standard deviation, 0 or more; of several releases the root of the sum of squares.
        Infinite without noise.
    delta : above 0 and below 1.

    Raises ``LocalProtocolError`` for others.
    """
    if not 0 < delta < 1:
        raise LocalProtocolError(f"delta is above 0 and below 1, not {delta}")
    if not mu >= 0:
        raise LocalProtocolError(f"sensitivity over noise is 0 or more, not {mu}")
    if math.isinf(mu):
        return math.inf
    # In b = ε/μ − μ/2, which is small where ε is huge; ε = 0 lies at −μ/2, and δ falls with b.
    low, high = -0.5 * mu, _FARTHEST
    if mu == 0 or _delta(mu, low) <= delta:
        return 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if _delta(mu, middle) > delta:
            low = middle
        else:
            high = middle
    return mu * (high + 0.5 * mu)


def naive_multiplier(claimed_epsilon: float) -> float:
    """Return σ/Δ of the calibration σ = Δ/ε, found in papers, under which ε is not what is claimed.

    It is the scale of Laplace noise for the L1 norm, taken for the standard deviation of Gaussian noise for
    the L2 norm, and for one release whatever the number of rounds. At δ = 1e-5, ε = 1 so claimed is 4.38 for
    one release and 54.4 after 50; it would take σ/Δ = 3.73 and 26.4.

    Raises ``LocalProtocolError`` unless ``claimed_epsilon`` is positive and finite.
    """
    if not 0 < claimed_epsilon < math.inf:
        raise LocalProtocolError(f"a claimed epsilon is positive and finite, not {claimed_epsilon}")
    return 1.0 / claimed_epsilon


def _delta(mu: float, b: float) -> float:
    """Return δ at ε = μ·(b + μ/2): Φ(−b) − φ(b)·R(b + μ), with Mills' ratio R(a) = Φ(−a)/φ(a).

    e^ε·φ(b + μ) = φ(b), so nothing overflows.
    """
    density = math.exp(-0.5 * b * b) / math.sqrt(2.0 * math.pi)
    return 0.5 * math.erfc(b / math.sqrt(2.0)) - density * _mills(b + mu)


def _mills(a: float) -> float:
    """Return Φ(−a)/φ(a), for a of −μ/2 … ∞ at a = b + μ ≥ μ/2 ≥ 0."""
    if a < 25.0:
        return 0.5 * math.erfc(a / math.sqrt(2.0)) * math.exp(0.5 * a * a) * math.sqrt(2.0 * math.pi)
    # The asymptotic series; its next term is below 1e-9 of the first there.
    inverse = 1.0 / (a * a)
    return (1.0 - inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse * (1.0 - 7.0 * inverse)))) / a


class Neighbours(enum.Enum):
    """How two neighbouring runs differ in one user's update; the value is the sensitivity in units of C."""

    ZERO_OUT = 1
    REPLACE_ONE = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """Devices drawn uniformly without replacement: ``sample`` invited of ``population`` that could be.

    ``sample`` counts everyone who was drawn, reported or not. Only a draw from the whole, fixed population is
    one: where unavailable devices are left out, or the same user has several devices, there is none.

    Raises ``LocalProtocolError`` unless 1 <= ``sample`` <= ``population``.
    """

    population: int
    sample: int

    def __post_init__(self) -> None:
        if not 1 <= self.sample <= self.population:
            raise LocalProtocolError(
                f"{self.sample} of {self.population} devices cannot be drawn without replacement"
            )


@dataclass(frozen=True, slots=True)
class GaussianRelease:
    """A vector released with Gaussian noise of ``noise_multiplier`` · C, on a sum or on a device's update.

    With a ``sampling`` the privacy is amplified by not knowing who was drawn; without, nothing is assumed of
    who takes part. Amplification is analysed for ``REPLACE_ONE``; for ``ZERO_OUT`` it is the smaller of that
    bound and the one without amplification.

    Raises ``LocalProtocolError`` for a multiplier that is negative or not finite.
    """

    noise_multiplier: float
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        _check_multiplier(self.noise_multiplier)

    def mu_squared(self, neighbours: Neighbours) -> float:
        """Return (sensitivity/standard deviation)², whoever was drawn; infinite without noise."""
        multiplier = self.noise_multiplier / neighbours.value
        # Dividing twice: the square of a tiny multiplier would underflow.
        return 1.0 / multiplier / multiplier if multiplier > 0 else math.inf

    def rdp(self, neighbours: Neighbours) -> npt.NDArray[np.float64]:
        """Return the Rényi divergence at each of :func:`orders`, float64[orders]; infinite without noise.

        α·Δ²/2z² (Mironov 2017, Proposition 7). Sampled, the bound of Wang, Balle and Kasiviswanathan 2019,
        Theorem 27, for a Gaussian of multiplier z/2, where it is the smaller. A z/2 above 10⁴ is amplified
        as 10⁴, one below 10⁻³ not at all.

        Raises ``MissingExtraError``.
        """
        alpha = orders()
        multiplier = self.noise_multiplier / neighbours.value
        if multiplier == 0:
            return np.full(alpha.size, math.inf)
        plain = alpha * (0.5 / multiplier / multiplier)
        least, most = _AMPLIFIED
        multiplier = self.noise_multiplier / Neighbours.REPLACE_ONE.value
        if self.sampling is None or multiplier < least:
            return plain
        # Mixing over who was drawn cannot raise a divergence, so the plain bound holds as well.
        return np.minimum(plain, _amplified(self.sampling, min(multiplier, most)))


@dataclass(frozen=True, slots=True)
class NoisyPart:
    """A part of a masked vector with noise.

    Attributes
    ----------
    length : d, its elements.
    scale : S, ring units per unit of the update.
    noise_sd : σ of each device's discrete Gaussian, in units of the update.
    """

    length: int
    scale: float
    noise_sd: float


@dataclass(frozen=True, slots=True)
class DiscreteGaussianRelease:
    """A sum in the ring, of updates clipped to a norm, with the discrete Gaussian noise of each device.

    Kairouz, Liu and Steinke 2021, Theorem 1 and Proposition 14. With n honest devices, σ the noise of each in
    ring units, and

        Δ₂ = S·C + √d            (stochastic rounding moves each element by less than 1)
        τ = 10·Σ_{k=1}^{n−1} exp(−2π²σ²·k/(k+1))

    the Rényi divergence of order α is at most the smaller of

        (α/2)·(Δ₂/(√n·σ) + τ·√d)²     and     (α/2)·Δ₂²/(nσ²) + τ·d

    τ bounds twice the largest log-ratio of the n-fold sum to one discrete Gaussian of variance nσ² (Poisson
    summation gives 5·exp(…) for each device that joins, if σ ≥ ½). The first bound is the triangle inequality
    of concentrated privacy, from sum to discrete Gaussian, moved, and back; the second holds as the loss of a
    moved Gaussian is linear in the noise, whose moments are at most a Gaussian's. As one ½ε²-concentrated
    privacy they are ε = min{Δ₂/(√n·σ) + τ√d, √(Δ₂²/(nσ²) + 2τd)}. Theorem 1 has ½τd under the root; 2τd is
    what the second bound gives for every α > 1, and the difference vanishes with τ.

    Parts of different scale and noise are put in units of their own σ: Δ₂/σ becomes C/min σ + √Σ d/(Sσ)²,
    with C and the smallest σ in units of the update; τ√d and τ·d are summed over parts, √Σ τ²d and Σ τd.

    That is for exact discrete Gaussians. As they are drawn (:func:`edge.crypto.noise.discrete_gaussian`,
    cut at 12 σ) add at most n·d·2**−43 to ε and n·d·(1+e^ε)·1.1e−31 to δ for each release.

    Attributes
    ----------
    clip_norm : C, in units of the update, over all parts together.
    parts : every real part of the masked vector.
    honest : n, the least number of devices in the sum that added their noise and keep it secret, the user's
        own included. More of them only add noise; devices that tell theirs do not count.

    Raises ``LocalProtocolError`` for a norm that is not positive and finite, no honest device, no part, or a
    part with noise below half a ring unit.
    """

    clip_norm: float
    parts: tuple[NoisyPart, ...]
    honest: int

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm < math.inf:
            raise LocalProtocolError(f"the clipping norm {self.clip_norm} is not positive and finite")
        if self.honest < 1 or not self.parts:
            raise LocalProtocolError(
                f"a sum of {len(self.parts)} parts over {self.honest} honest devices has no noise"
            )
        for part in self.parts:
            if part.length < 1 or not LEAST_NOISE_STEPS <= part.noise_sd * part.scale < math.inf:
                raise LocalProtocolError(
                    f"{part} cannot be accounted for: each element needs noise of at least "
                    f"{LEAST_NOISE_STEPS} ring units"
                )

    @classmethod
    def of(cls, config: SecAggConfig, clip_norm: float, honest: int) -> DiscreteGaussianRelease:
        """Return the release of a sum under ``config``; the other arguments as of the class.

        Raises ``LocalProtocolError`` also where part of the sum is released without noise: a part of counts,
        a real part without noise, or weights that differ. An update is weighted before it is clipped.
        """
        if config.weight_max != 1:
            raise LocalProtocolError(
                f"the sum of weights up to {config.weight_max} is released without noise; give all devices 1"
            )
        parts = []
        for part in config.parts:
            if isinstance(part, CountPart):
                raise LocalProtocolError(f"the counts of part {part.name!r} are released without noise")
            parts.append(NoisyPart(part.length, config.quantizers[part.name].scale, part.noise_sd))
        return cls(clip_norm, tuple(parts), honest)

    def rdp(self, neighbours: Neighbours) -> npt.NDArray[np.float64]:
        """Return the Rényi divergence at each of :func:`orders`, float64[orders].

        Raises ``MissingExtraError``.
        """
        alpha = orders()
        slack_squares = slack_sum = rounding = 0.0
        for part in self.parts:
            sigma = part.noise_sd * part.scale
            tau = _tau(sigma, self.honest)
            slack_squares += tau * tau * part.length
            slack_sum += tau * part.length
            rounding += part.length / (sigma * sigma)
        least_sd = min(part.noise_sd for part in self.parts)
        distance = (self.clip_norm / least_sd + math.sqrt(rounding)) / math.sqrt(self.honest)
        distance *= neighbours.value
        bound = 0.5 * alpha * (distance + math.sqrt(slack_squares)) ** 2
        return np.minimum(bound, 0.5 * alpha * distance**2 + slack_sum)


Release = GaussianRelease | DiscreteGaussianRelease


class Accountant:
    """Adds up the privacy loss of a run, one release at a time.

    Raises ``MissingExtraError`` if dp-accounting is not installed.
    """

    def __init__(self, neighbours: Neighbours = Neighbours.ZERO_OUT) -> None:
        self.neighbours = neighbours
        self.spent = np.zeros(orders().size)
        """Rényi divergence of everything so far, by order, float64 [orders]."""
        self.gaussian = np.zeros(2)
        """Σ (sensitivity/noise)² of plain Gaussian releases, and the number of all others, float64 [2]."""
        self._known: dict[Release, npt.NDArray[np.float64]] = {}

    def compose(self, release: Release, times: int = 1) -> None:
        """Count a release, ``times`` over, whatever was released before."""
        if times == 0:
            return  # infinite divergences would not vanish
        if release not in self._known:
            self._known[release] = release.rdp(self.neighbours)
        self.spent += times * self._known[release]
        if isinstance(release, GaussianRelease) and release.sampling is None:
            self.gaussian[0] += times * release.mu_squared(self.neighbours)
        else:
            self.gaussian[1] += times

    def epsilon(self, delta: float) -> float:
        """Return ε at ``delta``, which is above 0 and below 1, for everything so far; 0 before any release.

        Raises ``LocalProtocolError`` for another ``delta``.
        """
        if not 0 < delta < 1:
            raise LocalProtocolError(f"delta is above 0 and below 1, not {delta}")
        if self.gaussian[1] == 0:
            return gaussian_epsilon(math.sqrt(self.gaussian[0]), delta)
        spent, _ = _dp_accounting().rdp.compute_epsilon(orders(), self.spent, delta)
        return float(spent)


def available() -> bool:
    """Return whether dp-accounting is installed, without importing it."""
    return importlib.util.find_spec(_PACKAGE) is not None


def orders() -> npt.NDArray[np.float64]:
    """Return the Rényi orders α > 1 at which losses are kept, float64[orders].

    Raises ``MissingExtraError``.
    """
    return np.asarray(_dp_accounting().rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS, dtype=np.float64)


@functools.lru_cache(maxsize=64)
def _amplified(sampling: Sampling, multiplier: float) -> npt.NDArray[np.float64]:
    """Return the Rényi divergences of a sampled Gaussian, replace-one; they take most of a second."""
    dp = _dp_accounting()
    accountant = dp.rdp.RdpAccountant(orders(), dp.NeighboringRelation.REPLACE_ONE)
    event = dp.GaussianDpEvent(multiplier)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(sampling.population, sampling.sample, event))
    found = np.asarray(accountant.rdp, dtype=np.float64)
    found.flags.writeable = False
    return found


def _tau(sigma: float, honest: int) -> float:
    k = np.arange(1, honest, dtype=np.float64)
    return 10.0 * float(np.exp(-2.0 * (math.pi * sigma) ** 2 * (k / (k + 1))).sum())


def _check_multiplier(noise_multiplier: float) -> None:
    if not 0 <= noise_multiplier < math.inf:
        raise LocalProtocolError(f"a noise multiplier is 0 or more and finite, not {noise_multiplier}")


def _dp_accounting() -> Any:
    # Imported when it is needed: the package is optional, and takes scipy and most of a second with it.
    try:
        import dp_accounting  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "privacy accounting needs the package dp-accounting; pip install 'recfleet[dp]'"
        ) from error
    return dp_accounting
