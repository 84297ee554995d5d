"""The sections of a report, one module each; ``None`` stands for a section with nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.results.report.blocks import SectionBlock
from coordinator.results.report.sections.durations import durations
from coordinator.results.report.sections.held_up import blame, slowest
from coordinator.results.report.sections.host import host
from coordinator.results.report.sections.key_figures import key_figures, verdicts
from coordinator.results.report.sections.latency import inference, latency
from coordinator.results.report.sections.learning import learning
from coordinator.results.report.sections.participation import endings, participation
from coordinator.results.report.sections.privacy import privacy
from coordinator.results.report.sections.timeline import timeline
from coordinator.results.report.sections.traffic import traffic
from coordinator.results.report.view import RunView

SECTIONS: Final[tuple[Callable[[RunView], SectionBlock | None], ...]] = (
    verdicts,
    key_figures,
    learning,
    durations,
    blame,
    slowest,
    latency,
    traffic,
    endings,
    timeline,
    participation,
    privacy,
    inference,
    host,
)
"""The sections of the report of one run, in their order."""
