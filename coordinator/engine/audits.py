"""Audits of personalised masks: what somebody who saw the masked ratings could make of them.

They stand outside the simulated time, like an evaluation, and look at every training user once: a mask
depends on its user's ratings alone, and these do not change.
"""

from __future__ import annotations

import numpy as np

from coordinator.engine.facts import MetricValue
from coordinator.engine.workload import RatingWorkload
from coordinator.scenario.audit_section import Audit
from edge.learning.methods.fedmmf import FedMMF
from edge.privacy.attacks import privacy_indicator, ranking_attack, recovery_attack
from edge.privacy.audit_figures import AuditFigure, joined

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
