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


def navigation() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the site, each with its pages."""
    configuration: dict[str, Any] = YAML().load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    for section in configuration["nav"]:
        ((title, pages),) = section.items()
        yield title, [pages] if isinstance(pages, str) else list(pages)


def index() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the index, ``docs/README.md``, each with the pages of its table."""
    for section in (DOCS / INDEX).read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        yield title, re.findall(r"^\| \[[^\]]*\]\(([^)]+)\)", rest, re.MULTILINE)
