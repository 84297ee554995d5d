"""What is found out about the model of a run, beside its rounds: evaluations, inferences and audits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from coordinator.engine.aggregation.audited import RatedItemsAudit
from coordinator.engine.assembly import Assembly
from coordinator.engine.best_round import BestRound
from coordinator.engine.divergence import has_run_away
from coordinator.engine.facts import Inferences, MetricValue, Recorder
from coordinator.engine.progress import RunObserver
from coordinator.engine.stop_reason import StopReason
from coordinator.engine.workload import RatingWorkload
from coordinator.scenario.metric_names import BUCKET, buckets, of_users
from coordinator.scenario.rounds_section import Audit
from coordinator.scenario.schema import ScenarioSettings
from edge.core.errors import DivergedModelError, ParityError
from edge.learning.base import State

if TYPE_CHECKING:
    from edge.privacy.attacks import AuditFigure

_USERS_A_BATCH = 512


def audit_masks(workload: RatingWorkload, section: Audit) -> list[MetricValue]:
    """Return the figures of all audits of a workload whose method is FedMMF.

    The attacks are on training ratings, the indicator on test ratings, where some are kept back. With
    ``buckets`` the figures of each attack are followed by how they are distributed over users.
    """
    # Not above: runs of other methods, which are most, start without it.
    from edge.learning.methods.fedmmf import FedMMF  # noqa: PLC0415
    from edge.privacy.attacks import (  # noqa: PLC0415
        joined,
        privacy_indicator,
        ranking_attack,
        recovery_attack,
    )

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
        for h in section.ranking:
            keep(*ranking_attack(batch.indptr, batch.ratings, masked, h=h))
        if test is not None:
            query = test.gather(part)
            known = fedmmf.mask_of(batch, query.indptr, query.items)
            keep(privacy_indicator(query.indptr, query.ratings, known, scale=scale))
    rows = []
    for name, parts in figures.items():
        whole = joined(parts)
        metric = whole.metric()
        where = "test" if name == "audit.indicator" else "train"
        rows.append(MetricValue(metric.name, metric.value, metric.users, where))
        if section.buckets is not None and where == "train":
            shares = whole.distribution(section.buckets)
            rows += [
                MetricValue(of_users(name), share, metric.users, where, tag=BUCKET, group=group)
                for share, group in zip(shares.tolist(), buckets(section.buckets), strict=True)
            ]
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
        self._evaluator = assembly.evaluator if assembly.validation is None else assembly.validation
        self._test = None if assembly.validation is None else assembly.evaluator
        self._best: BestRound | None = None
        if scenario.evaluation.select is not None:
            assert isinstance(assembly.workload, RatingWorkload), "the scenario was checked"
            section = scenario.evaluation
            self._best = BestRound(scenario.evaluation.select, section.patience, assembly.workload)
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
                if self._scenario.evaluation.on_devices:
                    raise
                # Factors of a model that has run away are ill-conditioned, and float32 is not what is wrong.
                values = self.evaluate(state)
                if not has_run_away(self._untrained, values):
                    raise
                return Measured(values=values, diverged=str(error))
        evaluated = self.due(number) and not self._scenario.evaluation.on_devices
        return Measured(found, self.evaluate(state) if evaluated else None)

    def due(self, number: int) -> bool:
        """Return whether the model is evaluated after round ``number``."""
        return number % self._scenario.evaluation.every == 0

    @property
    def selected(self) -> State | None:
        """The best model on validation ratings; None where none is looked for, or none is evaluated."""
        return None if self._best is None else self._best.state

    def write(self, number: int, now_s: float, measured: Measured, state: State) -> StopReason | None:
        """Write what was measured of ``state`` after a round; return why training ends, if it does."""
        if measured.inferences is not None:
            phase = self._scenario.phase_at(number - 1, now_s)
            self._recorder.inferences(number, phase, now_s, measured.inferences)
        return None if measured.values is None else self.write_values(number, now_s, measured.values, state)

    def write_values(
        self, number: int, now_s: float, values: list[MetricValue], state: State
    ) -> StopReason | None:
        """Write an evaluation of ``state`` after round ``number``; return why training ends, if it does.

        That is the scenario's target, or no better value on validation ratings for too long.
        """
        self.evaluated_at = number
        if number == 0:
            self._untrained = values
        self._record(number, now_s, values)
        too_long = self._best is not None and self._best.offer(number, now_s, values, state)
        target = self._scenario.rounds.target
        if target is not None and any(
            _is_target(target.threshold.metric, value) and target.reached(value.value) for value in values
        ):
            return StopReason.TARGET
        return StopReason.NO_BETTER if too_long else None

    def write_selected(self) -> None:
        """Test the model that did best on validation ratings, once, and write what it is worth.

        Nothing where no such model is looked for, or nothing but validation ratings is scored.
        """
        best = self._best
        if best is not None and best.round is not None and self._test is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                values = best.tested(self._test)
            self._record(best.round, best.time_s, values)

    def _record(self, number: int, now_s: float, values: list[MetricValue]) -> None:
        phase = self._scenario.phase_at(max(number - 1, 0), now_s)
        self._recorder.evaluation(number, phase, now_s, values)
        self._observer.on_evaluation(number, values)

    def write_audits(self, now_s: float) -> None:
        """Try the audits of masks, where there are any, and write what they made of them."""
        if self._scenario.audit is None or not self._workload.algorithm.has_masks:
            return
        assert isinstance(self._workload, RatingWorkload), "the scenario was checked"
        audits = audit_masks(self._workload, self._scenario.audit)
        phase = self._scenario.phase_at(0, 0.0)
        self._recorder.evaluation(0, phase, now_s, audits)

    def write_rated_items(self, number: int, now_s: float, audit: RatedItemsAudit) -> None:
        """Write what was read off updates and sums in the ``number`` rounds of training."""
        phase = self._scenario.phase_at(max(number - 1, 0), now_s)
        self._recorder.evaluation(number, phase, now_s, audit.values())


def _is_target(metric: str, value: MetricValue) -> bool:
    return metric == f"model.{value.metric}" and value.tag == "all"
