"""What objective perturbation costs on MovieLens 1M, under the conditions of its theorem.

    python benchmarks/objective_perturbation.py DATA

DATA is a folder with ``ml-1m``, as grouplens.org has it. User factors must not depend on the ratings that
are protected. So half of the training ratings, drawn at random, are taken as public: user factors of four
numbers and a constant are fitted to them by alternating least squares, and scaled to a norm of 1 at most. The
values of the other half are protected: item factors are solved from them, once, with noise in the objective.
The RMSE is on 20% of all ratings, seeds 1 to 3. λ is chosen for each ε on a tenth that is kept back for
validation.

Epsilon is pure (delta 0) and for the value of one rating, not for a user. "Public alone" is what the item
factors that were fitted to the public half reach: below it, the protected half was worth its noise.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from accuracy import spread

from edge.core.errors import LocalProtocolError
from edge.core.rng import stream, stream_bytes
from edge.data.split import Split, split_ratio
from edge.data.table.reading import read_ratings
from edge.learning.least_squares import segment_grams
from edge.learning.methods.dp_mf import minimiser, objective_noise

FACTORS, SWEEPS, WEIGHT = 5, 10, 5.0
"""Numbers of a user, the constant among them; sweeps, and λ, of the public half."""
EPSILONS = (0.1, 1.0, 10.0, math.inf)
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
MIDDLE, REACH = 3.0, 2.0
"""Ratings less the middle lie within ± the reach: public, and no mean of anybody's."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_NORM_SLACK = 1e-12


def perturbed_item_factors(
    users: Floats,
    indptr: Ints,
    raters: Ints,
    values: Floats,
    *,
    regularization: float,
    epsilon: float,
    lowest: float,
    highest: float,
    seed: bytes,
) -> Floats:
    """Return the factors of every item, float64 [items, k], ε-differentially private in each of ``values``.

    It is the theorem of :mod:`edge.learning.methods.dp_mf` where all ratings are in one place.

    Parameters
    ----------
    users : p_u, [users, k], fixed in advance: see condition 3.
    indptr : int64 [items + 1], where each item's ratings start.
    raters : [N], the user of each rating, ordered by item.
    values : t_uj, [N], within ``lowest`` and ``highest``, which are public.
    regularization : λ, above 0.
    epsilon : ε, above 0; infinite adds no noise.
    seed : 16 secret bytes, used once.

    Raises
    ------
    LocalProtocolError : a condition of the theorem does not hold; the message says which.
    """
    _check(users, values, regularization, epsilon, lowest, highest)
    items, k = len(indptr) - 1, users.shape[1]
    design = np.concatenate([users[raters], values[:, None]], axis=1)
    whole = np.empty((items, k + 1, k + 1))
    segment_grams(design, indptr.tolist(), whole)
    hessian = np.ascontiguousarray(whole[:, :k, :k])
    hessian[:, np.arange(k), np.arange(k)] += regularization
    return minimiser(hessian, whole[:, :k, k] - objective_noise(items, k, (highest - lowest) / epsilon, seed))


def _check(
    users: Floats, values: Floats, regularization: float, epsilon: float, lowest: float, highest: float
) -> None:
    longest = math.sqrt(float(np.einsum("uk,uk->u", users, users).max(initial=0.0)))
    if not longest <= 1 + _NORM_SLACK:
        raise LocalProtocolError(f"condition 1: user factors have a norm of 1 at most, not {longest:g}")
    if not lowest < highest or not (np.all(values >= lowest) and np.all(values <= highest)):
        raise LocalProtocolError(f"condition 2: a value is outside {lowest:g} to {highest:g}")
    if not 0 < regularization < math.inf:
        raise LocalProtocolError(f"condition 4: λ is positive and finite, not {regularization}")
    if not epsilon > 0:
        raise LocalProtocolError(f"epsilon is above 0, not {epsilon}")


def solve(other: Floats, indptr: Ints, rows: Ints, values: Floats) -> Floats:
    """Return one side's factors given the other's, by ridge regression."""
    k = other.shape[1]
    design = np.concatenate([other[rows], values[:, None]], axis=1)
    grams = np.empty((len(indptr) - 1, k + 1, k + 1))
    segment_grams(design, indptr.tolist(), grams)
    return np.asarray(
        np.linalg.solve(grams[:, :k, :k] + WEIGHT * np.eye(k), grams[:, :k, k:])[:, :, 0], dtype=np.float64
    )


class Halves:
    """The public and the protected ratings of a split, by item, and the user factors of the public ones."""

    def __init__(self, split: Split, seed: int) -> None:
        train = split.train
        owners, values = train.owners(), train.decoded().astype(np.float64) - MIDDLE
        public = stream(seed, "benchmark", "public").random(train.n_ratings) < 0.5
        items = train.items.astype(np.int64)

        def by_item(chosen: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, Floats]:
            order = np.flatnonzero(chosen)[np.argsort(items[chosen], kind="stable")]
            return np.searchsorted(items[order], np.arange(train.n_items + 1)), owners[order], values[order]

        self.protected = by_item(~public)
        indptr, raters, rated = by_item(public)
        mine = np.flatnonzero(public)
        starts = np.searchsorted(mine, train.indptr)
        item = stream(seed, "benchmark", "items").normal(0, 0.1, (train.n_items, FACTORS))
        for _ in range(SWEEPS):
            user = solve(item, starts, items[mine], values[mine])
            user[:, -1] = 1.0  # an item's factor of it is the item's bias
            item = solve(user, indptr, raters, rated)
        longest = float(np.linalg.norm(user, axis=1).max())
        # Rounding must not leave a norm above 1.
        self.user, self.item = user / (longest * (1 + 1e-12)), item * longest
        self.seed = stream_bytes(seed, "benchmark", "noise")

    def items(self, epsilon: float, penalty: float) -> Floats:
        """Return the item factors of the protected half."""
        indptr, raters, values = self.protected
        return perturbed_item_factors(
            self.user, indptr, raters, values, regularization=penalty, epsilon=epsilon, lowest=-REACH,
            highest=REACH, seed=self.seed[:16],
        )  # fmt: skip

    def rmse(self, item: Floats, split: Split, *, validation: bool) -> float:
        """Return the error of user and item factors on the part that is scored."""
        scored = split.validation if validation else split.test
        assert scored is not None
        guess = MIDDLE + np.einsum("nk,nk->n", self.user[scored.owners()], item[scored.items])
        return float(np.sqrt(np.mean((scored.decoded() - np.clip(guess, 1, 5)) ** 2)))


def main() -> None:
    """Print a row for each ε."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    store = read_ratings(parser.parse_args().data / "ml-1m", "movielens-1m").store
    found: dict[float | str, list[float]] = {}
    for seed in (1, 2, 3):
        split = split_ratio(store, test=0.2, validation=0.1, seed=seed)
        halves = Halves(split, seed)
        found.setdefault("public alone", []).append(halves.rmse(halves.item, split, validation=False))
        for epsilon in EPSILONS:
            tried = [halves.items(epsilon, penalty) for penalty in PENALTIES]
            best = min(tried, key=lambda item: halves.rmse(item, split, validation=True))
            found.setdefault(epsilon, []).append(halves.rmse(best, split, validation=False))
    print("epsilon of a rating  test RMSE")
    for name, values in found.items():
        print(f"{name!s:19}  {spread(values)}", flush=True)


if __name__ == "__main__":
    main()
