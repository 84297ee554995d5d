"""Whether a run's sampler of training negatives gives away what is held out, and how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.engine.assembly import Assembly
from coordinator.engine.evaluation import RatingEvaluator
from coordinator.engine.samplers import LEAKY, counter_values
from coordinator.engine.workload import RatingWorkload
from coordinator.results.analysis.rows import read_rows
from coordinator.results.tables.reader import RunTables
from coordinator.scenario.data_section import SyntheticRegression
from coordinator.scenario.schema import ScenarioSettings
from edge.core.vocabulary import Outcome, label


def sampler_facts(
    scenario: ScenarioSettings, assembly: Assembly, tables: RunTables | None = None
) -> dict[str, Any] | None:
    """Return the sampler of a run, whether it leaks, and what a counter reaches; None: nothing is sampled.

    ``leaky_protocol`` is whether what is held out shapes the model. Then, given the run's ``tables``,
    ``counter`` holds the metrics of ranking by how seldom a device drew an item as a negative in the rounds
    whose reports were applied, up to that of the model that was scored; see
    :func:`~coordinator.engine.samplers.counter_values`. There is none where devices brought their ratings.
    """
    data = scenario.data
    if isinstance(data, SyntheticRegression) or not scenario.draws_items:
        return None
    leaky = data.held_out_negatives == LEAKY
    facts: dict[str, Any] = {"sampler": data.held_out_negatives, "leaky_protocol": leaky}
    workload, evaluator = assembly.workload, assembly.evaluator
    if not leaky or tables is None or not isinstance(workload, RatingWorkload):
        return facts
    scored = read_rows(tables, "evaluations", ["round", "split"])
    of_part = scored.numbers["round"][scored.equal("split", scenario.evaluation.part)]
    if len(of_part) and isinstance(evaluator, RatingEvaluator):
        trained = _trained(tables, until=int(of_part[-1]))
        facts["counter"] = counter_values(workload, evaluator, trained, scenario.seed)
    return facts


def _trained(tables: RunTables, until: int) -> dict[int, npt.NDArray[np.int64]]:
    """Return the devices whose reports were applied, by number of the round, in rounds up to ``until``."""
    rows = read_rows(tables, "device_rounds", ["round", "device", "outcome"])
    rows = rows.where(rows.equal("outcome", label(Outcome.COMPLETED)) & (rows.numbers["round"] <= until))
    rounds, devices = (rows.numbers[name].astype(np.int64) for name in ("round", "device"))
    order = np.lexsort((devices, rounds))
    numbers, starts = np.unique(rounds[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(devices[order], starts)[1:], strict=True))
