"""The generator of synthetic ratings: time, memory and ratio to a plain loop over users.

    python benchmarks/synthetic_data.py [--users 1000000] [--items 5000] [--ratings-per-user 100]

The loop draws the same kind of data (weighted items without replacement, low-rank taste) one user at a time
with numpy; it runs for a sample of the users and is scaled up to all.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

import numpy as np

from edge.data.synthetic import SyntheticRatings, generate_ratings


def loop_over_users(spec: SyntheticRatings, users: int) -> float:
    """Return the seconds that a loop takes for ``users`` users."""
    rng = np.random.default_rng(0)
    weights = (rng.permutation(spec.items) + 1.0 + 0.01 * spec.items) ** -spec.popularity_exponent
    log_weights = np.log(weights)
    factors = rng.normal(0, spec.taste_sd / np.sqrt(spec.taste_rank), (spec.items, spec.taste_rank))
    item_bias = rng.normal(0, spec.item_bias_sd, spec.items)
    start = time.perf_counter()
    for _ in range(users):
        left = spec.ratings_per_user - spec.min_ratings_per_user
        count = int(left * np.exp(rng.normal(-(spec.activity_sigma**2) / 2, spec.activity_sigma)))
        count = min(count + spec.min_ratings_per_user, spec.items // 2)
        # The largest of log w + Gumbel are a weighted draw without replacement (Efraimidis & Spirakis 2006).
        keys = log_weights + rng.gumbel(size=spec.items)
        items = np.sort(np.argpartition(keys, -count)[-count:])
        taste = rng.normal(size=spec.taste_rank)
        score = (
            spec.mean_rating + rng.normal(0, spec.user_bias_sd) + item_bias[items] + factors[items] @ taste
        )
        np.clip(np.rint(score + rng.normal(0, spec.noise_sd, count)), 1, 5).astype(np.uint8)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--items", type=int, default=5_000)
    parser.add_argument("--ratings-per-user", type=float, default=100.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--loop-users", type=int, default=2_000)
    arguments = parser.parse_args()
    spec = SyntheticRatings(
        users=arguments.users, items=arguments.items, ratings_per_user=arguments.ratings_per_user
    )
    walls, processors, ready = [], [], []
    for repeat in range(arguments.repeats):
        wall, processor = time.perf_counter(), time.process_time()
        store = generate_ratings(spec, seed=repeat)
        ready.append((time.process_time() - processor, store.nbytes))
        store.item_counts()  # has all of them made
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
        n_ratings, n_bytes = store.n_ratings, store.nbytes
        del store
    loop_users = min(arguments.loop_users, spec.users)
    loop_s = loop_over_users(spec, loop_users) * spec.users / loop_users
    wall_s, processor_s = statistics.median(walls), statistics.median(processors)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{spec.users} users, {spec.items} items, {n_ratings} ratings")
    print(f"generator: {wall_s:.2f} s wall, {processor_s:.2f} s processor (median of {arguments.repeats})")
    ready_s, ready_bytes = sorted(ready)[len(ready) // 2]
    print(f"ready: {ready_s:.2f} s processor, {ready_bytes / 1e6:.0f} MB")
    print(f"store: {n_bytes / 1e6:.0f} MB, {n_bytes / n_ratings:.2f} bytes a rating")
    print(f"peak memory of the process: {peak_bytes / 1e6:.0f} MB")
    print(f"loop over users: {loop_s:.1f} s (scaled from {loop_users} users)")
    print(f"ratio loop/generator: {loop_s / wall_s:.0f}")


if __name__ == "__main__":
    main()
