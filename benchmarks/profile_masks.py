"""What a user's own profile adds to the mask on that user's device.

    python benchmarks/profile_masks.py DATA [USERS]

DATA is a folder with ``ml-1m``, as grouplens.org has it. Gender, age and occupation of ``users.dat`` (23
columns, standardised over users, cut as features are) stand beside the genres and years of the films in the
masks of the first USERS users. They are the same in every row of a device, so a linear mask with them is one
without them whose intercept is shrunk less: with c + v·z = t, the least λ_0 (c − μ)² + λ|v|² is
(t − μ)² / (1/λ_0 + |z|²/λ). The third line has that penalty, a user's own, and no profile; what it predicts
differs from the second by rounding. Errors are those of masks alone on 20% of the ratings, seed 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import load
from edge.learning.masks.base import MaskModel
from edge.learning.masks.one_order import OneOrder, OneOrderSettings
from edge.learning.masks.two_order import TwoOrder, TwoOrderSettings
from edge.learning.methods.fedmmf import FedMMF

SCENARIO = Path(__file__).parents[1] / "scenarios" / "fedmmf_one_order.yaml"
PENALTY, OF_INTERCEPT, LIMIT = 150.0, 5.0, 2.0
Floats = npt.NDArray[np.float32]


def profiles(file: Path) -> Floats:
    """Return gender, age and one column an occupation, float32 [users, 23], standardised and cut."""
    rows = [line.split("::") for line in file.read_text(encoding="latin-1").splitlines()]
    occupations = np.array([int(row[3]) for row in rows])
    columns = np.column_stack(
        [
            [row[1] == "F" for row in rows],
            [float(row[2]) for row in rows],
            occupations[:, None] == np.unique(occupations),
        ]
    ).astype(np.float64)
    standard = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    return np.clip(standard, -LIMIT, LIMIT).astype(np.float32)


class Masks:
    """Masks of users one by one, and what they predict of the ratings that are kept back."""

    def __init__(self, workload: RatingWorkload, users: int) -> None:
        method, split = workload.algorithm, workload.split
        assert isinstance(method, FedMMF)
        assert split.test is not None
        self._features, self._mean = method.features, method.mean
        self._batches = [
            (split.train.gather(np.array([user])), split.test.gather(np.array([user])))
            for user in range(users)
        ]

    def errors(self, masks: list[MaskModel], beside: Floats | None = None) -> npt.NDArray[np.float64]:
        """Return prediction less rating, float64 [N]; ``beside`` [users, d] are further columns of a user."""
        found = []
        for user, (train, query) in enumerate(self._batches):
            features = self._features
            if beside is not None:
                constant = np.broadcast_to(beside[user], (len(features), beside.shape[1]))
                features = np.ascontiguousarray(np.concatenate([features, constant], axis=1))
            mask = masks[user]
            parameters = mask.fit(train, features, self._mean, np.zeros(1, np.uint64))
            said = mask.predict(parameters, features, query.indptr, query.items)
            found.append(said.astype(np.float64) - query.ratings)
        return np.concatenate(found)


def linear(intercept: float) -> MaskModel:
    """Return a linear mask with this penalty of the intercept."""
    settings: dict[str, Any] = {"regularization": PENALTY, "intercept_regularization": intercept}
    return OneOrder(OneOrderSettings(**settings))


def main() -> None:
    """Print the RMSE of each kind of mask, with and without profiles."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("users", nargs="?", type=int, default=6040)
    asked = parser.parse_args()
    folder = asked.data / "ml-1m"
    workload = assemble(load(SCENARIO, ["data.source=movielens-1m", f"data.path={folder}"])).workload
    assert isinstance(workload, RatingWorkload)
    of_users, masks = profiles(folder / "users.dat"), Masks(workload, asked.users)
    weaker = 1 / (1 / OF_INTERCEPT + np.square(of_users.astype(np.float64)).sum(axis=1) / PENALTY)
    plain: list[MaskModel] = [linear(OF_INTERCEPT)] * asked.users
    pairs: list[MaskModel] = [
        TwoOrder(TwoOrderSettings(regularization=PENALTY, factor_regularization=PENALTY))
    ] * asked.users
    with_profile = masks.errors(plain, of_users)
    equal = masks.errors([linear(float(one)) for one in weaker[: asked.users]])
    rows = {
        "one-order": masks.errors(plain),
        "one-order, with profiles": with_profile,
        "one-order, intercept shrunk less": equal,
        "two-order": masks.errors(pairs),
        "two-order, with profiles": masks.errors(pairs, of_users),
    }
    print(
        f"{asked.users} users, {len(equal)} ratings; "
        f"λ_0 is {weaker.min():.2f} to {weaker.max():.2f} in place of {OF_INTERCEPT:g}"
    )
    for name, errors in rows.items():
        print(f"{name:<34} RMSE {np.sqrt(np.mean(errors**2)):.4f}", flush=True)
    print(f"profiles beside an intercept shrunk less: {np.abs(with_profile - equal).max():.1e} apart at most")


if __name__ == "__main__":
    main()
