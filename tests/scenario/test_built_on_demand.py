"""Sections are built when they are read, and their defaults, which are not validated, are valid."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from coordinator.scenario.model import field_shape, item_shape
from coordinator.scenario.schema import ScenarioSettings

ROOT = Path(__file__).resolve().parents[2]

BUILT = """\
import sys
from pydantic import BaseModel
from coordinator.scenario.load import load
load(sys.argv[1])
def below(model):
    for one in model.__subclasses__():
        yield one
        yield from below(one)
print(*sorted({one.__name__ for one in below(BaseModel) if one.__pydantic_complete__}))
"""


def built(scenario: str) -> set[str]:
    """Return the names of the sections that reading a scenario builds."""
    done = subprocess.run(
        [sys.executable, "-c", BUILT, f"scenarios/{scenario}.yaml"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_only_the_sections_that_a_scenario_names_are_built() -> None:
    of_quickstart = built("quickstart")
    assert {"ScenarioSettings", "SyntheticRatingsSection", "Rounds", "FedReconSettings"} <= of_quickstart
    unnamed = {"Masking", "Ckks", "CentralGaussian", "Fault", "Connection", "Retry", "Audit", "FileRatings"}
    assert unnamed.isdisjoint(of_quickstart)
    assert "Masking" in built("secagg_active")


def sections() -> Iterator[type[BaseModel]]:
    """Yield every section that a scenario may have."""
    found: list[type[BaseModel]] = [ScenarioSettings]
    for section in found:
        yield section
        for name in section.model_fields:
            shape = field_shape(section, name)
            for place in (shape, item_shape(shape)):
                inner = [] if place.section is None else [place.section]
                inner += [] if place.choice is None else place.choice.sections.values()
                found += [one for one in inner if one not in found]


@pytest.mark.parametrize("section", [*sections()], ids=lambda section: section.__name__)
def test_defaults_are_valid(section: type[BaseModel]) -> None:
    for name, info in section.model_fields.items():
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            given = {key: getattr(default, key) for key in default.model_fields_set}
            assert type(default).model_validate(given) == default, name
