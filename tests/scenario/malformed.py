"""Scenarios that must be refused, and with what."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from scenario_files import BASE, write_files

from coordinator.scenario.load import ScenarioError, load


@dataclass(frozen=True)
class Malformed:
    """A scenario that must be refused, with the first line of each error after the folder's name."""

    name: str
    scenario: str | bytes | None
    errors: tuple[str, ...]
    others: dict[str, str | bytes] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    hint: str | None = None


def case(
    name: str, scenario: str | bytes | None, *errors: str, hint: str | None = None, **others: str | bytes
) -> Malformed:
    files = {f"{file}.yaml": content for file, content in others.items()}
    return Malformed(name, scenario, errors, files, (), hint)


def option(name: str, error: str, *overrides: str) -> Malformed:
    return Malformed(name, BASE, (error,), {}, overrides)


def check_refused(malformed: Malformed, folder: Path) -> None:
    """Load a scenario below ``folder`` and compare the errors with those expected."""
    main = {} if malformed.scenario is None else {"s.yaml": malformed.scenario}
    path = write_files(folder, {**main, **malformed.others})
    with pytest.raises(ScenarioError) as caught:
        load(path, malformed.overrides)
    shown = [str(problem).replace(f"{folder}{os.sep}", "", 1) for problem in caught.value.problems]
    assert [line[: len(error)] for line, error in zip(shown, malformed.errors, strict=True)] == list(
        malformed.errors
    )
    if malformed.hint is not None:
        assert shown[0].split("\n    ")[1] == malformed.hint
