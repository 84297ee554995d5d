"""Links lead to files and headings that are there, on a code host."""

from __future__ import annotations

import pytest
from pages import DOCS, ELSEWHERE, LINK, PAGES, ROOT, anchors_of, text_of


@pytest.mark.parametrize("page", [*(f"docs/{page}" for page in PAGES), *ELSEWHERE])
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = [link["target"] for link in LINK.finditer(text_of(path)) if "://" not in link["target"]]
    for target in targets:
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors_of(there), f"{page}: {target}: no such heading"


def test_anchors_are_those_of_code_hosts() -> None:
    anchors = anchors_of(DOCS / "metrics.md")
    assert {"figures-of-summaryjson-and-the-report", "table-device_rounds", "stage"} <= anchors
