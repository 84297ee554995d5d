"""The scenario: everything a run depends on, checked.

The reference of scenario files, the JSON Schema for editors and the flattened form of a scenario are all made
from its sections.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from coordinator.scenario.checks import problems
from coordinator.scenario.model import require
from coordinator.scenario.sections import Sections


class Scenario(Sections):
    """One scenario, complete: with it and the data, a run is determined to the last bit."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        require(problems(self))
        return self
