"""The workload that every simulator is given: a dense table of item factors down and up, no learning.

Of 1,000 clients 100 take part in each of 10 rounds. Each receives a float32 array [1682, 16] (107,648 bytes),
adds a constant of its own, and sends it back; the server averages. There is next to nothing to compute, so
what is measured is what a simulator spends on a client and round. ``measure.py`` runs the scripts.
"""

import itertools
import json
import os
import platform
from importlib import metadata

CLIENTS = 1_000
COHORT = 100
ROUNDS = 10
ITEMS = 1_682
FACTORS = 16


def offset(client: int) -> float:
    """Return what a client adds to each number."""
    return 0.001 * (client % 7)


def report(
    distribution: str, marks: list[float], started: float, check: float, cpu_marks: list[float] | None = None
) -> None:
    """Print one line of JSON.

    Parameters
    ----------
    distribution : whose version is reported.
    marks : monotonic seconds at the start of each round and at the end of the last, ``ROUNDS + 1`` of them.
    started : monotonic seconds at which the simulator was started.
    check : mean of the final array, which shows that the updates were applied.
    cpu_marks : CPU seconds at the same moments, of a simulator that is one process.
    """
    if len(marks) != ROUNDS + 1:
        raise ValueError(f"{len(marks)} marks of {ROUNDS} rounds; expected {ROUNDS + 1}")
    durations = [end - start for start, end in itertools.pairwise(marks)]
    later = sorted(durations[1:])
    cpu = {}
    if cpu_marks is not None:
        later_cpu = sorted(end - start for start, end in itertools.pairwise(cpu_marks[1:]))
        cpu["cpu_ms_per_client_round"] = 1e3 * later_cpu[len(later_cpu) // 2] / COHORT
    print(
        json.dumps(
            {
                "simulator": distribution,
                "version": metadata.version(distribution),
                "python": platform.python_version(),
                "clients": CLIENTS,
                "cohort": COHORT,
                "rounds": ROUNDS,
                "shape": [ITEMS, FACTORS],
                "ms_per_client_round": 1e3 * later[len(later) // 2] / COHORT,
                "ms_per_client_round_mean": 1e3 * sum(later) / len(later) / COHORT,
                **cpu,
                "first_round_s": durations[0],
                "start_s": marks[0] - started,
                "mean_of_result": check,
                "load_average_1_min": os.getloadavg()[0],
            }
        ),
        flush=True,
    )
