"""The sections of a report, one module each; ``None`` stands for a section with nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.results.report.blocks import Fold, SectionBlock
from coordinator.results.report.sections.drops import drops
from coordinator.results.report.sections.host import host
from coordinator.results.report.sections.key_figures import key_figures
from coordinator.results.report.sections.latency import inference
from coordinator.results.report.sections.learning import learning
from coordinator.results.report.sections.participation import participation
from coordinator.results.report.sections.privacy import privacy
from coordinator.results.report.sections.promises import promises
from coordinator.results.report.sections.rounds import rounds
from coordinator.results.report.sections.traffic import traffic
from coordinator.results.report.view import RunView

QUESTIONS: Final[tuple[Callable[[RunView], SectionBlock | None], ...]] = (
    promises,
    rounds,
    traffic,
    drops,
    learning,
)
"""The questions that the report of one run answers, in their order."""
ELSE: Final[tuple[Callable[[RunView], Fold | None], ...]] = (
    key_figures,
    privacy,
    participation,
    inference,
    host,
)
"""Everything else about one run, folded, in this order."""
