from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.data.clients import GROUPINGS, Clients, group_users, one_user_per_client
from edge.data.store import RatingStore
from edge.data.synthetic import SyntheticRatings, generate_ratings
from edge.data.taste import taste_clusters

STORE = generate_ratings(SyntheticRatings(users=400, items=200, ratings_per_user=40), seed=11)
USERS = np.arange(400, dtype=np.int64)


def _alpha(grouping: str) -> float | None:
    return 0.5 if grouping == "dirichlet" else None


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(GROUPINGS), st.integers(1, 150), st.integers(0, 2**40))
def test_every_user_gets_one_client_and_sizes_differ_by_one_at_most(
    grouping: str, clients: int, seed: int
) -> None:
    users = USERS[::2]
    dealt = group_users(STORE, users, seed=seed, clients=clients, grouping=grouping, alpha=_alpha(grouping))
    assert dealt.n_clients == clients
    assert np.array_equal(np.sort(dealt.users), users)
    assert np.ptp(dealt.counts) <= 1
    assert all(np.all(np.diff(dealt.users_of(client)) > 0) for client in range(clients))


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_grouping_is_seeded(grouping: str) -> None:
    def deal(seed: int) -> list[int]:
        alpha = _alpha(grouping)
        dealt = group_users(STORE, USERS, seed=seed, clients=20, grouping=grouping, alpha=alpha)
        return [int(user) for user in dealt.users]

    assert deal(1) == deal(1)
    if grouping != "by-activity":
        assert deal(1) != deal(2)


def test_users_per_client_rounds_the_number_of_clients_up() -> None:
    dealt = group_users(STORE, USERS, seed=1, users_per_client=150)
    assert sorted(dealt.counts.tolist()) == [133, 133, 134]
    assert group_users(STORE, USERS, seed=1, users_per_client=50).counts.tolist() == [50] * 8


def test_by_activity_separates_quiet_from_busy_users() -> None:
    dealt = group_users(STORE, USERS, seed=1, clients=10, grouping="by-activity")
    busiest = [STORE.counts[dealt.users_of(client)].max() for client in range(9)]
    quietest = [STORE.counts[dealt.users_of(client)].min() for client in range(1, 10)]
    assert all(busy <= quiet for busy, quiet in zip(busiest, quietest, strict=True))


def _largest_share(dealt: Clients, clusters: npt.NDArray[np.int64]) -> float:
    owners = np.repeat(np.arange(dealt.n_clients), dealt.counts)
    table = np.zeros((dealt.n_clients, int(clusters.max()) + 1))
    np.add.at(table, (owners, clusters[dealt.users]), 1)
    return float((table.max(axis=1) / table.sum(axis=1)).mean())


def test_a_small_alpha_gives_clients_of_one_taste_and_a_large_one_a_mix() -> None:
    clusters = taste_clusters(STORE, USERS, n_clusters=10, seed=5)
    overall = np.bincount(clusters).max() / USERS.size

    def share(alpha: float) -> float:
        dealt = group_users(STORE, USERS, seed=5, clients=20, grouping="dirichlet", alpha=alpha)
        return _largest_share(dealt, clusters)

    narrow, mixed = share(0.1), share(1e6)
    shuffled = _largest_share(group_users(STORE, USERS, seed=5, clients=20), clusters)
    assert narrow > 2 * mixed
    # 20 users a client: even a fair mix has some cluster ahead by chance, as in the shuffle.
    assert mixed == pytest.approx(shuffled, abs=0.05)
    assert mixed > overall


def test_a_vanishing_alpha_still_deals_everyone() -> None:
    dealt = group_users(STORE, USERS, seed=5, clients=20, grouping="dirichlet", alpha=1e-9)
    assert np.array_equal(np.sort(dealt.users), USERS)


def test_taste_clusters_find_two_opposite_tastes() -> None:
    """Users of the first kind love even items and hate odd ones, the second kind the reverse."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 80)
    items = np.sort(np.stack([rng.permutation(40)[:20] for _ in range(80)]), axis=1)
    ratings = np.where((items % 2) == kind[:, None], 5, 1)
    store = RatingStore(
        indptr=np.arange(81, dtype=np.int64) * 20,
        items=items.ravel().astype(np.uint16),
        ratings=ratings.ravel().astype(np.uint8),
        n_items=40,
    )
    clusters = taste_clusters(store, np.arange(80), n_clusters=2, seed=1)
    assert np.array_equal(clusters == clusters[0], kind == kind[0])


def test_users_without_taste_are_clustered_too() -> None:
    store = RatingStore(
        indptr=np.array([0, 2, 2, 4], dtype=np.int64),
        items=np.array([0, 1, 0, 1], dtype=np.uint16),
        ratings=np.array([3, 3, 4, 4], dtype=np.uint8),
        n_items=2,
    )
    assert taste_clusters(store, np.arange(3), n_clusters=5, seed=1).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({}, "either clients or users_per_client"),
        ({"clients": 3, "users_per_client": 3}, "either clients or users_per_client"),
        ({"clients": 0}, "write 1 to 400 clients"),
        ({"clients": 401}, "write 1 to 400 clients"),
        ({"users_per_client": 0}, "at least 1"),
        ({"clients": 3, "grouping": "random"}, "write one of iid, by-activity, dirichlet"),
        ({"clients": 3, "alpha": 0.5}, "alpha belongs to grouping 'dirichlet'"),
        ({"clients": 3, "grouping": "dirichlet"}, "needs a positive alpha"),
        ({"clients": 3, "grouping": "dirichlet", "alpha": float("nan")}, "needs a positive alpha"),
    ],
)
def test_bad_settings_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_users(STORE, USERS, seed=1, **settings_)


def test_gather_of_clients_and_of_their_ratings() -> None:
    dealt = Clients(np.array([0, 2, 3, 5]), np.array([4, 7, 0, 1, 2]))
    indptr, users = dealt.gather(np.array([2, 0]))
    assert indptr.tolist() == [0, 2, 4]
    assert users.tolist() == [1, 2, 4, 7]
    assert STORE.gather(users).n_users == 4
    with pytest.raises(IndexError, match="outside"):
        dealt.gather(np.array([3]))
    with pytest.raises(IndexError, match="outside"):
        dealt.users_of(-1)


def test_one_user_per_client() -> None:
    dealt = one_user_per_client(np.array([3, 9]))
    assert dealt.users_of(1).tolist() == [9]
    assert dealt.counts.tolist() == [1, 1]
