"""The sections of a report, one module each; ``None`` stands for a section with nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.report.blocks import Section
from coordinator.report.sections.blame import blame
from coordinator.report.sections.durations import durations
from coordinator.report.sections.endings import endings
from coordinator.report.sections.host import host
from coordinator.report.sections.inference import inference
from coordinator.report.sections.key_figures import key_figures
from coordinator.report.sections.latency import latency
from coordinator.report.sections.learning import learning
from coordinator.report.sections.participation import participation
from coordinator.report.sections.privacy import privacy
from coordinator.report.sections.slowest import slowest
from coordinator.report.sections.timeline import timeline
from coordinator.report.sections.traffic import traffic
from coordinator.report.sections.verdicts import verdicts
from coordinator.report.view import RunView

SECTIONS: Final[tuple[Callable[[RunView], Section | None], ...]] = (
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
