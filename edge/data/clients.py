"""Which users a client holds: one (cross-device), or a group (cross-silo)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.core.rng import stream
from edge.data.store import RatingStore
from edge.data.taste import taste_clusters

GROUPINGS = ("iid", "by-activity", "dirichlet")
"""The ways of dealing users to clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Clients:
    """Users per client, CSR.

    Attributes
    ----------
    indptr : int64[n_clients + 1].
    users : int64[n], user indices; those of a client are contiguous and ascending, no user has two clients.
    """

    indptr: npt.NDArray[np.int64]
    users: npt.NDArray[np.int64]

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return self.indptr.size - 1

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Users per client, int64[n_clients]."""
        return np.diff(self.indptr)

    def users_of(self, client: int) -> npt.NDArray[np.int64]:
        """Return the users of one client, int64[k]."""
        if not 0 <= client < self.n_clients:
            raise IndexError(f"client {client} is outside 0 .. {self.n_clients - 1}")
        return self.users[self.indptr[client] : self.indptr[client + 1]]

    def gather(self, clients: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return ``(indptr int64[n + 1], users int64[N])`` of ``clients`` (int64[n]) in the order given.

        The users go to :meth:`RatingStore.gather`; ``indptr`` says which of them belong to which client.
        """
        clients = np.asarray(clients, dtype=np.int64)
        if clients.size and (clients.min() < 0 or clients.max() >= self.n_clients):
            raise IndexError(f"a client in the batch is outside 0 .. {self.n_clients - 1}")
        starts = self.indptr[clients]
        indptr = np.zeros(clients.size + 1, dtype=np.int64)
        np.cumsum(self.indptr[clients + 1] - starts, out=indptr[1:])
        positions = np.repeat(starts - indptr[:-1], np.diff(indptr)) + np.arange(int(indptr[-1]))
        return indptr, self.users[positions]


def one_user_per_client(users: npt.NDArray[np.int64]) -> Clients:
    """Return a client for every user of ``users`` (int64[n]), in that order."""
    return Clients(np.arange(users.size + 1, dtype=np.int64), np.asarray(users, dtype=np.int64))


def group_users(
    store: RatingStore,
    users: npt.NDArray[np.int64],
    *,
    seed: int,
    clients: int | None = None,
    users_per_client: int | None = None,
    grouping: str = "iid",
    alpha: float | None = None,
    taste_clusters_wanted: int = 10,
) -> Clients:
    """Deal ``users`` to clients of (nearly) equal size.

    Exactly one of ``clients`` and ``users_per_client`` says how many. With ``users_per_client`` the last
    clients get one user less when the number does not divide (ceil(n / users_per_client) clients); sizes
    never differ by more than one.

    Groupings
    ---------
    ``iid`` : a seeded shuffle.
    ``by-activity`` : users sorted by their number of ratings and cut into runs, so that one client holds the
        least active and another the most active.
    ``dirichlet`` : users are clustered by taste (:func:`edge.data.taste.taste_clusters`); every client draws
        its mix of clusters from Dirichlet(alpha · cluster shares) and is filled by that mix, as in Hsu, Qi &
        Brown 2019 ("Measuring the Effects of Non-Identical Data Distribution"), section 3, with taste in the
        place of class labels. A small alpha means one taste per client; a large one approaches ``iid``.
        When a cluster runs out, the clients still short draw again from the clusters that are left.

    Raises
    ------
    ValueError
        for a number of clients outside ``1 .. n``, an unknown grouping, or an alpha that is missing, not
        positive, or given where it means nothing.
    """
    n_clients = _client_count(users.size, clients, users_per_client)
    if grouping not in GROUPINGS:
        raise ValueError(f"unknown grouping {grouping!r}; write one of {', '.join(GROUPINGS)}")
    if grouping != "dirichlet" and alpha is not None:
        raise ValueError(f"alpha belongs to grouping 'dirichlet', not to {grouping!r}; leave it out")
    # Sizes differ by at most one: the first (n mod clients) clients are the larger ones.
    sizes = np.full(n_clients, users.size // n_clients, dtype=np.int64)
    sizes[: users.size % n_clients] += 1
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
    rng = stream(seed, "clients", grouping)
    if grouping == "iid":
        dealt = rng.permutation(users)
    elif grouping == "by-activity":
        dealt = users[np.lexsort((users, store.counts[users]))]
    else:
        if alpha is None or not (np.isfinite(alpha) and alpha > 0):
            raise ValueError(f"grouping 'dirichlet' needs a positive alpha, for example 0.5; got {alpha}")
        clusters = taste_clusters(store, users, n_clusters=taste_clusters_wanted, seed=seed)
        dealt = _deal_by_mix(users, clusters, sizes, alpha, rng)
    owners = np.repeat(np.arange(n_clients), sizes)
    return Clients(indptr, dealt[np.lexsort((dealt, owners))])


def _client_count(n_users: int, clients: int | None, users_per_client: int | None) -> int:
    if (clients is None) == (users_per_client is None):
        raise ValueError("give either clients or users_per_client")
    if users_per_client is not None:
        if users_per_client < 1:
            raise ValueError(f"users_per_client must be at least 1, not {users_per_client}")
        clients = -(-n_users // users_per_client)
    assert clients is not None
    if not 1 <= clients <= n_users:
        raise ValueError(f"cannot deal {n_users} users to {clients} clients; write 1 to {n_users} clients")
    return clients


def _deal_by_mix(
    users: npt.NDArray[np.int64],
    clusters: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    alpha: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.int64]:
    """Fill the clients' places, client by client contiguous, from clusters by their drawn mix."""
    n_clusters = int(clusters.max()) + 1
    shares = np.bincount(clusters, minlength=n_clusters) / users.size
    # A gamma with a tiny shape underflows to 0 for every cluster; the floor keeps the mix a distribution.
    gammas = rng.standard_gamma(np.broadcast_to(alpha * shares, (sizes.size, n_clusters)))
    mix = np.where(shares > 0, np.maximum(gammas, 1e-300), 0.0)
    owners = np.repeat(np.arange(sizes.size), sizes)
    dealt = np.full(users.size, -1, dtype=np.int64)
    waiting = rng.permutation(users.size)
    empty = np.arange(users.size)
    # A place goes unserved only when the cluster it wanted ran out, so a pass either ends the dealing or
    # leaves one cluster fewer: there are at most n_clusters passes.
    while empty.size > 0:
        left = np.bincount(clusters[waiting], minlength=n_clusters)
        weights = np.where(left > 0, mix, 0.0)[owners[empty]]
        cumulative = np.cumsum(weights, axis=1)
        drawn = rng.random(empty.size) * cumulative[:, -1]
        wanted = np.minimum((cumulative <= drawn[:, None]).sum(axis=1), n_clusters - 1)
        # Pair the r-th place that wants a cluster with the r-th waiting user of that cluster.
        places = rng.permutation(empty.size)
        places = places[np.argsort(wanted[places], kind="stable")]
        people = waiting[np.argsort(clusters[waiting], kind="stable")]
        want_counts = np.bincount(wanted, minlength=n_clusters)
        matched = np.minimum(want_counts, left)
        place_rank = np.arange(places.size) - np.repeat(np.cumsum(want_counts) - want_counts, want_counts)
        people_rank = np.arange(people.size) - np.repeat(np.cumsum(left) - left, left)
        served = place_rank < np.repeat(matched, want_counts)
        taken = people_rank < np.repeat(matched, left)
        dealt[empty[places[served]]] = users[people[taken]]
        empty = np.sort(empty[places[~served]])
        waiting = people[~taken]
    return dealt
