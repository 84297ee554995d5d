"""Pages of methods say of the leaderboard what the leaderboard says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from leaderboard_notes import BEGINS, ENDS, notes, renewed

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page.stem for page in (DOCS / "methods").glob("*.md"))
WRITTEN = notes((DOCS / "leaderboard.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_figures_of_the_leaderboard(name: str) -> None:
    text = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
    if name not in WRITTEN:
        assert BEGINS not in text
        return
    assert text == renewed(text, WRITTEN[name]), "renew it: python benchmarks/leaderboard.py page"


def test_every_line_of_the_leaderboard_has_a_page() -> None:
    assert len(WRITTEN) >= 10
    assert WRITTEN.keys() <= set(PAGES)


def test_notes_are_of_the_tables_of_accuracy_by_protocol() -> None:
    row = "| [A, rank 8](methods/a.md) | .1 ± .0 | .05 ± .0 | | 5 | drawn | none |\n"
    price = "\n| | MB |\n| --- | --- |\n| [A, rank 8](methods/a.md) | 4 | 5 |\n"
    head = "| | HR@10 | NDCG@10 | |\n| --- |\n"
    text = f"# All\n\n## One\n\n{head}{row}{price}\n## Two\n\n{head}{row}"
    (note,) = notes(text).values()
    assert note.splitlines()[2:] == [
        "| One: A, rank 8 | .1 ± .0 | .05 ± .0 |",
        "| Two: A, rank 8 | .1 ± .0 | .05 ± .0 |",
    ]
    page = f"# A\n\n{BEGINS}old\n{ENDS}\nMore.\n"
    assert renewed(page, note) == f"# A\n\n{BEGINS}\n{note}\n{ENDS}\nMore.\n"
    with pytest.raises(ValueError, match="no lines"):
        renewed("# A\n", note)
