"""What can be done about stragglers: thirty rounds on five hundred phones, one of which is slow in five.

    python benchmarks/straggler_study.py [SEED]

A computation takes the five parts of the fleet about 10, 20, 40, 90 and 300 s, with a wide spread. A round
wants a hundred reports. Compared are waiting for the last one, a deadline, over-selection, closing early,
doing as many of ten local steps as the deadline allows, rounds within tiers of speed, leaving out devices
that will be late, Oort, and a buffer in place of rounds, which takes a step after every hundred reports too.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from five_speeds import FLEET, prepare, show, study

SECONDS = (10.0, 20.0, 40.0, 90.0, 300.0)
SPREAD = 0.5
SCENARIO = f"""
format: 2
data: {{source: synthetic-ratings, users: 500, items: 400, ratings_per_user: 60}}
{FLEET}
learning:
  algorithm: fedrecon
  factors: 8
  learning_rate: 0.05
  client: {{method: gradient-steps, steps: 10, learning_rate: 0.3, regularization: 0.02}}
rounds: {{count: 30, cohort: 100, deadline: 2 h, selection: availability-aware, quorum: 20}}
evaluation: {{every: 30}}
"""
IN_TIME = "rounds.deadline=2 min"
WAYS = {
    "wait for all": (),
    "deadline of 2 min": (IN_TIME,),
    "first 100 of 130": ("rounds.over_select=130%",),
    "30 s after 70 reports": ("rounds.quorum=70", "rounds.pacing={mode: synchronous, grace: 30 s}"),
    "partial work": (IN_TIME, "rounds.pacing={mode: partial-work}"),
    "tiers": ("rounds.pacing={mode: tiers, tiers: 5, profiling: 3, credits: 3}",),
    "deadline-aware": (IN_TIME, "rounds.selection=deadline-aware"),
    "oort": ("rounds.over_select=130%", "rounds.selection=oort"),
    "buffer, 200 at work": ("rounds.pacing={mode: buffered, concurrency: 200}",),
}


def main() -> None:
    """Train in every way for as many rounds, and print what came of it."""
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        scenario = prepare(Path(folder), SCENARIO, SECONDS, SPREAD)
        rows = {way: study(scenario, settings, seed)[1] for way, settings in WAYS.items()}
    show("30 rounds", rows, time.perf_counter() - started_s)


if __name__ == "__main__":
    main()
