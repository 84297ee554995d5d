"""Whether what is measured suits the data and the method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator.scenario.data_section import SyntheticRegression
from coordinator.scenario.errors import Problem
from coordinator.scenario.learning_section import method_name
from coordinator.scenario.protection import secure_sections
from coordinator.scenario.secure_section import Masking
from edge.data.split import PUBLISHED_NEGATIVES
from edge.learning.registry import METHODS

if TYPE_CHECKING:
    from coordinator.scenario.schema import Scenario


def evaluation_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield what keeps a model from being measured as the scenario says."""
    evaluation, data = scenario.evaluation, scenario.data
    if scenario.audit is not None and not METHODS[method_name(scenario.learning)].has_masks:
        yield Problem(("audit",), "audits are of the masks of fedmmf; leave it out", None, of_key=True)
    if isinstance(data, SyntheticRegression):
        if evaluation.ranking is not None:
            message = "samples cannot be ranked; leave it out"
            yield Problem(("evaluation", "ranking"), message, None, of_key=True)
        return
    if evaluation.on == "validation" and not getattr(data.split, "validation", False):
        share = "true" if data.split.kind == "published-leave-one-out" else "10%"
        message = f"the split keeps nothing back for validation; write 'validation: {share}' in data.split"
        yield Problem(("evaluation", "on"), message)
    yield from _implicit_problems(scenario)
    yield from _ranking_problems(scenario)


def _implicit_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield what does not go together where predictions are no ratings."""
    data = scenario.data
    assert not isinstance(data, SyntheticRegression)
    only_ranks = METHODS[method_name(scenario.learning)].only_ranks(scenario.learning)
    if scenario.evaluation.ranking is None and scenario.draws_items:
        whose = "this method predicts" if only_ranks else "with data.negatives a method predicts"
        message = f"missing; {whose} no ratings, only which items somebody takes to"
        yield Problem(("evaluation", "ranking"), f"{message}; write 'ranking: {{}}' in evaluation")
    if data.negatives is None:
        return
    if only_ranks:
        message = "this method draws negatives by itself; write 'negatives' in learning instead"
        yield Problem(("data", "negatives"), message, None, of_key=True)
    reason = "and with data.negatives there are only ones and zeros; leave it out"
    if scenario.audit is not None:
        yield Problem(("audit",), f"audits compare masks with ratings, {reason}", None, of_key=True)
    for place, section in secure_sections(scenario):
        if isinstance(section, Masking) and section.shielded is not None:
            message = f"masks are judged by ratings, {reason}"
            yield Problem((*place, "shielded"), message, None, of_key=True)


def _ranking_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield what does not suit the split where a held-out item is ranked among sampled ones."""
    data, ranking = scenario.data, scenario.evaluation.ranking
    if ranking is None or ranking.negatives == "full":
        return
    assert not isinstance(data, SyntheticRegression)
    kind = data.split.kind
    if kind == "published-leave-one-out" and ranking.negatives != PUBLISHED_NEGATIVES:
        message = f"the published split has {PUBLISHED_NEGATIVES} negatives a user; write that, or 'full'"
        yield Problem(("evaluation", "ranking", "negatives"), message)
    elif kind not in ("leave-one-out", "published-leave-one-out"):
        message = (
            "sampled negatives rank one held-out rating a user, and split"
            f" {kind!r} does not hold back one each; write 'full', or"
            " 'kind: leave-one-out' in data.split"
        )
        yield Problem(("evaluation", "ranking", "negatives"), message)
