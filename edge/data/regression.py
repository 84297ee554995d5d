"""Generated regression data on clients, identically distributed or shifted in its inputs or its labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.errors import DataError
from edge.core.rng import stream
from edge.data.store import hash_arrays

HETEROGENEITIES = ("iid", "feature-shift", "label-shift")
"""How clients may differ from one another."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredSamples:
    """The samples of a few clients: indptr int64[n + 1], x float64[N, features], y float64[N]."""

    indptr: npt.NDArray[np.int64]
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RegressionStore:
    """Samples of all clients, one after the other.

    Attributes
    ----------
    indptr : int64[n_clients + 1]; client ``c`` owns rows ``indptr[c]:indptr[c + 1]``.
    x : float64[N, features].
    y : float64[N].
    weights : float64[features], the coefficients behind the labels, or None when unknown.
    intercept : the constant behind the labels, or None when unknown.

    Raises
    ------
    DataError
        when the shapes or types contradict each other, or a value is not finite.
    """

    indptr: npt.NDArray[np.int64]
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64] | None = None
    intercept: float | None = None

    def __post_init__(self) -> None:
        indptr = self.indptr
        if indptr.dtype != np.int64 or indptr.ndim != 1 or indptr.size == 0:
            raise DataError("indptr must be int64[n_clients + 1]")
        if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
            raise DataError("indptr must start at 0 and never fall")
        if self.x.dtype != np.float64 or self.x.ndim != 2 or self.x.shape[0] != indptr[-1]:
            raise DataError(f"x must be float64[{indptr[-1]}, features], not {self.x.dtype}{self.x.shape}")
        if self.y.dtype != np.float64 or self.y.shape != (indptr[-1],):
            raise DataError(f"y must be float64[{indptr[-1]}], not {self.y.dtype}{self.y.shape}")
        if not (np.isfinite(self.x).all() and np.isfinite(self.y).all()):
            raise DataError("x and y must be finite")

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return self.indptr.size - 1

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.x.shape[1])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Samples per client, int64[n_clients]."""
        return np.diff(self.indptr)

    def local(self, client: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return views of one client's x float64[n, features] and y float64[n]."""
        if not 0 <= client < self.n_clients:
            raise IndexError(f"client {client} is outside 0 .. {self.n_clients - 1}")
        rows = slice(int(self.indptr[client]), int(self.indptr[client + 1]))
        return self.x[rows], self.y[rows]

    def gather(self, clients: npt.NDArray[np.int64]) -> StoredSamples:
        """Return the samples of ``clients`` (int64[n], any order) one after the other.

        Raises
        ------
        IndexError
            for a client outside ``0 .. n_clients - 1``.
        """
        clients = np.asarray(clients, dtype=np.int64)
        if clients.size and (clients.min() < 0 or clients.max() >= self.n_clients):
            raise IndexError(f"a client in the batch is outside 0 .. {self.n_clients - 1}")
        starts = self.indptr[clients]
        indptr = np.zeros(clients.size + 1, dtype=np.int64)
        np.cumsum(self.indptr[clients + 1] - starts, out=indptr[1:])
        rows = np.repeat(starts - indptr[:-1], np.diff(indptr)) + np.arange(int(indptr[-1]))
        return StoredSamples(indptr, self.x[rows], self.y[rows])

    def content_hash(self) -> str:
        """Return 32 hexadecimal digits over row pointers, inputs and labels."""
        return hash_arrays([("indptr", self.indptr), ("x", self.x), ("y", self.y)])


def generate_regression(
    *,
    clients: int,
    samples_per_client: int,
    features: int,
    seed: int,
    heterogeneity: str = "iid",
    shift: float = 1.0,
    noise_sd: float = 0.1,
) -> RegressionStore:
    """Generate y = w · x + b + noise, the same w and b for all clients.

    Heterogeneity
    -------------
    ``iid`` : x ~ N(0, I) on every client.
    ``feature-shift`` : client c draws x ~ N(m_c, I), m_c ~ N(0, shift² I); y given x is the same everywhere
        (covariate shift).
    ``label-shift`` : client c draws y ~ N(b + d_c, |w|² + noise²), d_c ~ N(0, shift²·(|w|² + noise²)); x
        given y is the same everywhere, the conditional of the ``iid`` case. It is drawn by Matheron's rule:
        from an ``iid`` pair (x′, y′), x = x′ + w · (y − y′) / (|w|² + noise²).

    Parameters
    ----------
    clients, samples_per_client, features : sizes, at least 1 each.
    seed : the run's seed.
    shift : size of the shift, in standard deviations; unused for ``iid``.
    noise_sd : standard deviation of the noise, from 0.

    Raises
    ------
    ValueError
        naming the setting and what it may be.
    """
    for name, value in (
        ("clients", clients),
        ("samples_per_client", samples_per_client),
        ("features", features),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if heterogeneity not in HETEROGENEITIES:
        raise ValueError(
            f"unknown heterogeneity {heterogeneity!r}; write one of {', '.join(HETEROGENEITIES)}"
        )
    for name, amount in (("shift", shift), ("noise_sd", noise_sd)):
        if not (math.isfinite(amount) and amount >= 0):
            raise ValueError(f"{name} must be a finite number from 0, not {amount}")
    truth = stream(seed, "synthetic-regression", "truth")
    weights = truth.standard_normal(features)
    intercept = float(truth.standard_normal())
    rng = stream(seed, "synthetic-regression", "samples")
    x = rng.standard_normal((clients, samples_per_client, features))
    noise = noise_sd * rng.standard_normal((clients, samples_per_client))
    shifts = stream(seed, "synthetic-regression", "shifts")
    if heterogeneity == "feature-shift":
        x += shift * shifts.standard_normal((clients, 1, features))
    y = x @ weights + intercept + noise
    if heterogeneity == "label-shift":
        variance = float(weights @ weights) + noise_sd**2
        offset = shift * math.sqrt(variance) * shifts.standard_normal((clients, 1))
        wanted = intercept + offset + math.sqrt(variance) * shifts.standard_normal(y.shape)
        x += ((wanted - y) / variance)[..., None] * weights
        y = wanted
    return RegressionStore(
        indptr=np.arange(clients + 1, dtype=np.int64) * samples_per_client,
        x=x.reshape(-1, features),
        y=y.reshape(-1),
        weights=weights,
        intercept=intercept,
    )
