"""The centralised lines of the leaderboard, on the splits of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from ranking_references import Candidates, Ease, ImplicitLeastSquares, ItemKnn, Scores, popularity

from coordinator.engine.workload import RatingWorkload
from coordinator.run.assembling import assemble
from coordinator.scenario.load import LoadedScenario
from coordinator.scenario.load import edited as with_settings
from edge.data.split import Split
from edge.data.store import RatingStore
from edge.metrics.ranking import RankingSums, rank_fully

METRICS: Final = ("hr@10", "ndcg@10")


@dataclass(frozen=True)
class Reference:
    """A centralised line: ``scores`` makes it of the value that is tried for ``searched``."""

    title: str
    searched: str
    tried: tuple[float, ...]
    scores: Callable[[float], Callable[[RatingStore, Candidates], Scores]]


REFERENCES: Final[Mapping[str, Reference]] = {
    "popularity": Reference("popularity", "", (0,), lambda _: popularity),
    "item-knn": Reference("item-KNN", "neighbours", (20, 100, 500), lambda n: ItemKnn(int(n)).scores),
    "ials": Reference(
        "iALS, k = 32", "regularization", (10, 30, 100), lambda l2: ImplicitLeastSquares(32, 10, l2).scores
    ),
    "ease": Reference("EASE", "regularization", (100, 300, 1000), lambda l2: Ease(l2).scores),
}  # fmt: skip


@dataclass(frozen=True)
class _Lists:
    """Items of users, as :class:`~edge.metrics.ranking.ItemLists`."""

    indptr: npt.NDArray[np.int64]
    items: npt.NDArray[np.int32]


def _known(stores: Sequence[RatingStore], users: npt.NDArray[np.int64]) -> _Lists:
    """Return the items of some users in any of the stores."""
    lists = [np.sort(np.concatenate([store.local(user)[0] for store in stores])) for user in users.tolist()]
    indptr = np.concatenate([[0], np.cumsum([len(items) for items in lists])]).astype(np.int64)
    return _Lists(indptr, np.concatenate(lists).astype(np.int32))


def ranked(scores: Scores, split: Split, *, on_test: bool) -> dict[str, float]:
    """Return HR@10 and NDCG@10 of full rankings, as the evaluation of a run has them.

    Training items are masked, on the test those kept back for validation, too; who has nothing to be scored
    on, or nothing to train on, is not scored.

    Parameters
    ----------
    scores : float [n_users, n_items].
    """
    scored = split.test if on_test else split.validation
    assert scored is not None
    assert split.validation is not None
    users = np.flatnonzero((scored.counts > 0) & (split.train.counts > 0))
    sums = RankingSums((10,))
    masked = [split.train, split.validation] if on_test else [split.train]
    sums.add(rank_fully(scores[users], scored.gather(users), _known(masked, users), places=10))
    results = sums.results()
    return {metric: float(results[metric][0]) for metric in METRICS}


def measure_reference(
    name: str, loaded: LoadedScenario, seeds: Sequence[int], search_seed: int
) -> dict[str, Any]:
    """Choose a setting by NDCG@10 on validation ratings of one seed; score it on the test of all."""
    reference = REFERENCES[name]
    splits = {seed: _split(with_settings(loaded, [f"seed={seed}"])) for seed in {search_seed, *seeds}}

    def scores(value: float, split: Split) -> Scores:
        everything = np.arange(split.train.n_items)
        candidates = np.broadcast_to(everything, (split.train.n_users, split.train.n_items))
        return reference.scores(value)(split.train, candidates)

    search = {
        value: ranked(scores(value, splits[search_seed]), splits[search_seed], on_test=False)["ndcg@10"]
        for value in reference.tried
    }
    chosen = max(search, key=lambda value: search[value])
    tested = {seed: ranked(scores(chosen, splits[seed]), splits[seed], on_test=True) for seed in seeds}
    return {
        "title": reference.title,
        "searched": reference.searched,
        "search": {f"{value:g}": found for value, found in search.items()},
        "chosen": f"{chosen:g}",
        "seeds": {str(seed): found for seed, found in tested.items()},
    }


def _split(loaded: LoadedScenario) -> Split:
    workload = assemble(loaded).workload
    assert isinstance(workload, RatingWorkload)
    return workload.split
