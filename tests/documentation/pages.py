"""The pages of the documentation, their links, and the order in which the site has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "site"
INDEX = "README.md"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
"""Relative to ``docs``."""
ELSEWHERE = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/peers/README.md")
"""Pages outside ``docs``."""

LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")
_FENCE = re.compile(r"^( *)(`{3,}).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+?)\s*$", re.MULTILINE)


def text_of(page: Path) -> str:
    """Return the text of a page, without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts make them."""
    seen: Counter[str] = Counter()
    for heading in _HEADING.findall(text_of(page)):
        text = LINK.sub(r"\g<text>", heading).lower()
        seen[re.sub(r"[^\w\- ]", "", text).replace(" ", "-")] += 1
    return {f"{name}-{n}" if n else name for name, times in seen.items() for n in range(times)}


def title_of(page: str) -> str:
    """Return the heading of a page of ``docs``, or of the repository."""
    path = ROOT / page.removeprefix("repository/") if page.startswith("repository/") else DOCS / page
    return path.read_text(encoding="utf-8").split("# ", 1)[1].split("\n", 1)[0]


def navigation() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the sections of the site, each with its pages and what they are called there."""
    configuration: dict[str, Any] = YAML().load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    for section in configuration["nav"]:
        ((title, pages),) = section.items()
        if isinstance(pages, str):
            yield title, {pages: title}
        else:
            named = (one if isinstance(one, dict) else {title_of(one): one} for one in pages)
            yield title, {page: name for one in named for name, page in one.items()}


def index() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the sections of the index, ``docs/README.md``, each with the pages and names of its table."""
    for section in (DOCS / INDEX).read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        links = re.findall(r"^\| \[([^\]]*)\]\(([^)]+)\)", rest, re.MULTILINE)
        yield title, {page: name for name, page in links}
