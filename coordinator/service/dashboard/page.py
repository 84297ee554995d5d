"""The dashboard as one file: no asset comes from anywhere else."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from coordinator.results import report

_TEMPLATES: Final = Path(__file__).parent / "templates"
_REPORT_STYLE: Final = Path(report.__file__).parent / "templates" / "report.css"
"""Reports and dashboard look alike."""
_STYLE_PLACE: Final = "/* style */"
_SCRIPT_PLACE: Final = "/* script */"


class Page(NamedTuple):
    """The page, and what a browser may do for it: run its own script, and ask its own server."""

    html: str
    policy: str


def _source(text: str) -> str:
    """Return what names an inline style or script in a content security policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@lru_cache(maxsize=1)
def dashboard_page() -> Page:
    """Return the page, which is the same for every run: what it shows comes as events."""
    html, style, script = (
        (_TEMPLATES / name).read_text(encoding="utf-8")
        for name in ("dashboard.html", "dashboard.css", "dashboard.js")
    )
    style = f"{_REPORT_STYLE.read_text(encoding='utf-8')}{style}"
    policy = (
        f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html.replace(_STYLE_PLACE, style).replace(_SCRIPT_PLACE, script), policy)
