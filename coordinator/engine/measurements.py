"""What is found out about the model of a run, beside its rounds: evaluations, inferences and audits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.engine.assembly import Assembly
from coordinator.engine.divergence import has_run_away
from coordinator.engine.facts import Inferences, MetricValue, Recorder
from coordinator.engine.progress import RunObserver
from coordinator.engine.workload import RatingWorkload
from coordinator.scenario.rounds_section import Audit
from coordinator.scenario.schema import ScenarioSettings
from edge.core.errors import DivergedModelError, ParityError
from edge.learning.base import State
from edge.learning.methods.fedmmf import FedMMF
from edge.privacy.attacks import AuditFigure, joined, privacy_indicator, ranking_attack, recovery_attack

_USERS_A_BATCH = 512


def audit_masks(workload: RatingWorkload, section: Audit) -> list[MetricValue]:
    """Return the figures of all audits of a workload whose method is FedMMF.

    The attacks are on training ratings, the indicator on test ratings, where some are kept back.
    """
    fedmmf = workload.algorithm
    assert isinstance(fedmmf, FedMMF), "the scenario was checked"
    split = workload.split
    train, test = split.train, split.test
    scale = np.unique(train.ratings).astype(np.float64)
    figures: dict[str, list[AuditFigure]] = {}

    def keep(*found: AuditFigure) -> None:
        for figure in found:
            figures.setdefault(figure.name, []).append(figure)

    users = split.seen_users
    for start in range(0, len(users), _USERS_A_BATCH):
        part = users[start : start + _USERS_A_BATCH]
        batch = train.gather(part)
        masked = fedmmf.masked(batch).ratings
        for within in section.recovery:
            keep(*recovery_attack(batch.indptr, batch.ratings, masked, scale=scale, within_stars=within))
        keep(*ranking_attack(batch.indptr, batch.ratings, masked, h=section.ranking))
        if test is not None:
            query = test.gather(part)
            known = fedmmf.mask_of(batch, query.indptr, query.items)
            keep(privacy_indicator(query.indptr, query.ratings, known, scale=scale))
    rows = []
    for name, parts in figures.items():
        metric = joined(parts).metric()
        where = "test" if name == "audit.indicator" else "train"
        rows.append(MetricValue(metric.name, metric.value, metric.users, where))
    return rows


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found out about a model: when devices ran it, and when it was evaluated.

    ``diverged`` says on which device it could not be run, since it has run away; None: nowhere.
    """

    inferences: Inferences | None = None
    values: list[MetricValue] | None = None
    diverged: str | None = None


class Measurements:
    """Measures models and writes what comes out.

    Parameters
    ----------
    scenario, assembly : what is run.
    recorder : takes what is measured.
    observer : receives evaluations.

    Attributes
    ----------
    evaluated_at : the round after which the model was evaluated last; −1 before the first time.
    """

    def __init__(
        self, scenario: ScenarioSettings, assembly: Assembly, recorder: Recorder, observer: RunObserver
    ) -> None:
        self._scenario = scenario
        self._workload = assembly.workload
        self._evaluator = assembly.evaluator
        self._inference = assembly.inference
        self._recorder = recorder
        self._observer = observer
        self.evaluated_at = -1
        self._untrained: Sequence[MetricValue] = ()
        """What the model was worth before the first round; unknown to a process that goes on with a run."""

    def evaluate(self, state: State) -> list[MetricValue]:
        """Return what a model is worth."""
        with np.errstate(over="ignore", invalid="ignore"):  # what a model that has run away is worth
            return self._evaluator.evaluate(state)

    def after(self, state: State, number: int) -> Measured:
        """Let a model run and be evaluated after round ``number``, if it is one after which that is done."""
        section, found = self._scenario.inference, None
        if self._inference is not None and section is not None and number % section.every == 0:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    found = self._inference.run(state, number)
            except DivergedModelError as error:
                return Measured(diverged=str(error))
            except ParityError as error:
                # Factors of a model that has run away are ill-conditioned, and float32 is not what is wrong.
                values = self.evaluate(state)
                if not has_run_away(self._untrained, values):
                    raise
                return Measured(values=values, diverged=str(error))
        evaluated = number % self._scenario.evaluation.every == 0
        return Measured(found, self.evaluate(state) if evaluated else None)

    def write(self, number: int, now_s: float, measured: Measured) -> bool:
        """Write what was measured after a round; return whether the scenario's target is reached."""
        if measured.inferences is not None:
            phase = self._scenario.phase_at(number - 1, now_s)
            self._recorder.inferences(number, phase, now_s, measured.inferences)
        return measured.values is not None and self.write_values(number, now_s, measured.values)

    def write_values(self, number: int, now_s: float, values: list[MetricValue]) -> bool:
        """Write an evaluation after round ``number``; return whether the scenario's target is reached."""
        self.evaluated_at = number
        if number == 0:
            self._untrained = values
        phase = self._scenario.phase_at(max(number - 1, 0), now_s)
        self._recorder.evaluation(number, phase, now_s, values)
        self._observer.on_evaluation(number, values)
        target = self._scenario.rounds.target
        return target is not None and any(
            _is_target(target.threshold.metric, value) and target.reached(value.value) for value in values
        )

    def write_audits(self, now_s: float) -> None:
        """Try the audits of masks, where there are any, and write what they made of them."""
        if self._scenario.audit is None:
            return
        assert isinstance(self._workload, RatingWorkload), "the scenario was checked"
        audits = audit_masks(self._workload, self._scenario.audit)
        phase = self._scenario.phase_at(0, 0.0)
        self._recorder.evaluation(0, phase, now_s, audits)


def _is_target(metric: str, value: MetricValue) -> bool:
    return metric == f"model.{value.metric}" and value.tag == "all"
