"""What is listed can happen: every name of the vocabulary is given by some part of the product."""

import ast
import enum
from pathlib import Path

import pytest

from edge.core.vocabulary import (
    Direction,
    EventKind,
    Fate,
    Outcome,
    Reason,
    RoundOutcome,
    Stage,
    Way,
    label,
    labels,
)

ROOT = Path(__file__).resolve().parents[2]
ENUMS = (Direction, EventKind, Fate, Outcome, Reason, RoundOutcome, Stage, Way)


def used_names() -> set[tuple[str, str]]:
    """Return every ``Enum.MEMBER`` that the sources name, outside the vocabulary itself."""
    found = set()
    for package in ("edge", "coordinator"):
        for path in (ROOT / package).rglob("*.py"):
            if path == ROOT / "edge" / "vocabulary.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    found.add((node.value.id, node.attr))
    return found


@pytest.mark.slow
def test_every_name_is_given_somewhere() -> None:
    used = used_names()
    never = [
        f"{vocabulary.__name__}.{member.name}"
        for vocabulary in ENUMS
        for member in vocabulary
        if (vocabulary.__name__, member.name) not in used
    ]
    assert never == []


@pytest.mark.parametrize("vocabulary", ENUMS)
def test_numbers_are_positions(vocabulary: type[enum.IntEnum]) -> None:
    assert [member.value for member in vocabulary] == list(range(len(vocabulary)))
    assert labels(vocabulary) == tuple(label(member) for member in vocabulary)
