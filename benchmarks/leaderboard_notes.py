"""What the leaderboard has of a method, as a table in the page of that method, so that both agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

BEGINS: Final = "<!-- leaderboard: written by `python benchmarks/leaderboard.py page` -->\n"
ENDS: Final = "<!-- leaderboard: end -->\n"
_HEAD: Final = (
    "| full rankings, on the [leaderboard](../leaderboard.md) | HR@10 | NDCG@10 |\n| --- | --- | --- |\n"
)
_ACCURACY: Final = "| | HR@10 | NDCG@10 |"
_ROW: Final = re.compile(
    r"\| \[(?P<title>[^]]+)\]\(methods/(?P<page>[\w-]+)\.md\) \| (?P<hr>[^|]+) \| (?P<ndcg>[^|]+) \|"
)


def notes(leaderboard: str) -> dict[str, str]:
    """Return the table of every method that the text of the leaderboard has, by the name of its page."""
    rows: dict[str, list[str]] = {}
    for section in leaderboard.split("\n## ")[1:]:
        protocol, _, body = section.partition("\n")
        _, _, table = body.partition(_ACCURACY)
        for row in _ROW.finditer(table.partition("\n\n")[0]):
            cells = f"{protocol}: {row['title']} | {row['hr']} | {row['ndcg']}"
            rows.setdefault(row["page"], []).append(f"| {cells} |\n")
    return {page: _HEAD + "".join(found) for page, found in rows.items()}


def renewed(text: str, note: str) -> str:
    """Return a page of a method with another table.

    Raises
    ------
    ValueError : it has no place for one.
    """
    before, begins, rest = text.partition(BEGINS)
    _, ends, after = rest.partition(ENDS)
    if not begins or not ends:
        raise ValueError(f"a method on the leaderboard has no lines {BEGINS!r} and {ENDS!r} in its page")
    return f"{before}{begins}\n{note}\n{ends}{after}"


def renew(leaderboard: Path) -> None:
    """Write the tables of all methods on a leaderboard into their pages, in ``methods`` beside it."""
    for name, note in notes(leaderboard.read_text(encoding="utf-8")).items():
        page = leaderboard.parent / "methods" / f"{name}.md"
        page.write_text(renewed(page.read_text(encoding="utf-8"), note), encoding="utf-8")
