"""The table of docs/threat-model.md: every cell names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
ENTRY = re.compile(r"^(\d+)\. \[`(tests/[\w/]+\.py)::[\w:]+`\]\(\.\./(tests/[\w/]+\.py)\)$", re.MULTILINE)


def names_in(file: str) -> set[str]:
    """Return the names of the tests in a file, those in classes as ``Class::test``."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef):
            prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            found |= {prefix + one.name for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_every_test_that_the_page_names_exists() -> None:
    named = NAMED.findall(PAGE)
    assert len(named) > 20
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []


def test_every_cell_names_tests_and_every_test_of_the_list_is_in_a_cell() -> None:
    section = PAGE.split("## Who learns what\n")[1].split("\n### In the clear")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| **")]
    entries = ENTRY.findall(section)
    assert [int(number) for number, _, _ in entries] == list(range(1, len(entries) + 1))
    assert all(named == linked for _, named, linked in entries)
    assert len(rows) == 8
    used = set()
    for _, *cells in rows:
        assert len(cells) == 4
        for cell in cells:
            numbers = {int(n) for group in re.findall(r"\[([\d, ]+)\]", cell) for n in group.split(",")}
            assert numbers, cell
            used |= numbers
    assert used == set(range(1, len(entries) + 1))
