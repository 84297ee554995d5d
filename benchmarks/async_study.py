"""Buffered asynchronous training beside synchronous rounds, on phones of five speeds.

    python benchmarks/async_study.py [SEED]

Five hundred phones in five parts of equal size need about 1, 3, 8, 13 and 25 s for a computation: the delays
that Chai et al. 2021 ("FedAT: A High-Performance and Communication-Efficient Federated Learning System with
Asynchronous Tiers", section 6) let their clients sleep. Fifty are at work at any time: in rounds that wait
for the last of them, in rounds of 130% that take the first fifty, or without rounds, a step after every ten
reports. All train until the error on held-out ratings is the same.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from five_speeds import FLEET, prepare, show, study

DELAYS_S = (1.0, 3.0, 8.0, 13.0, 25.0)
SPREAD = 0.15
RMSE = 0.63
SCENARIO = f"""
format: 2
data: {{source: synthetic-ratings, users: 500, items: 400, ratings_per_user: 60}}
{FLEET}
learning: {{algorithm: fedrecon, factors: 8, learning_rate: 0.015}}
rounds: {{count: 2000, cohort: 50, deadline: 2 min, target: "model.rmse <= {RMSE}"}}
evaluation: {{every: 5}}
"""
WAYS = {
    "rounds of all 50": (),
    "rounds, first 50 of 65": ("rounds.over_select=130%",),
    "buffer of 10, 50 at work": (
        "rounds.cohort=10",
        "evaluation.every=25",
        "rounds.pacing={mode: buffered, concurrency: 50, staleness_limit: 50}",
    ),
}


def main() -> None:
    """Train in every way to the same error, and print what it took."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    started_s = time.perf_counter()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        scenario = prepare(Path(folder), SCENARIO, DELAYS_S, SPREAD)
        for way, settings in WAYS.items():
            outcome, rows[way] = study(scenario, settings, seed)
            assert outcome.reason == "target reached", outcome.reason
    show(f"to an RMSE of {RMSE}", rows, time.perf_counter() - started_s)


if __name__ == "__main__":
    main()
